/*
 * dcp_flat.h - tensors that were split along each dimension, whose pieces were flattened and shared among ranks
 *
 * Megatron-core up to 0.15 stores the states of its distributed optimizer in this form
 * ("fully_sharded_model_space"). For a tensor [X, Y] with pieces [x, y] the folder holds a tensor [X / x, Y / y, x *
 * y]. A rank's share of a piece may begin and end at any element.
 */
#ifndef SHARDKIT_LAYOUT_DCP_FLAT_H
#define SHARDKIT_LAYOUT_DCP_FLAT_H

#include "libcommon/ckpt/tile.h"
#include "libcommon/layout/dcp/dcp_metadata.h"

/* Returns true if the entry's shape and chunks match the original shape recorded for it. */
bool dcp_flat_fits(const struct dcp_entry *en);
/*
 * Convert the chunks of an entry, which tile_map() has accepted, to chunks of the original shape, one per piece. *out
 * is allocated in the arena. Returns the number of new chunks.
 */
int dcp_flat_unfold(struct arena *a, const struct dcp_entry *en, const struct tile_chunk *tile,
                    struct tile_chunk **out);

#endif
