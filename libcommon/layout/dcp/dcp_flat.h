/*
 * dcp_flat.h - tensors that were cut along each dimension, and whose pieces were flattened before ranks shared them
 *
 * Megatron-core up to 0.15 keeps the states of its distributed optimizer so ("fully_sharded_model_space"): of a tensor
 * [X, Y] whose pieces are [x, y] the folder holds one of [X / x, Y / y, x * y]. In one piece's elements a rank's share
 * may begin and end anywhere.
 */
#ifndef SHARDKIT_LAYOUT_DCP_FLAT_H
#define SHARDKIT_LAYOUT_DCP_FLAT_H

#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/tile.h"

/* Do the entry's shape and chunks give the shape that it says it stands for? */
bool dcp_flat_fits(const struct dcp_entry *en);
/* Chunks of that shape, a piece each, of the entry's own, which tile_map() took. Returns how many, in the arena. */
int dcp_flat_unfold(struct arena *a, const struct dcp_entry *en, const struct tile_chunk *tile,
                    struct tile_chunk **out);

#endif
