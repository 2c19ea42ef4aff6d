/*
 * dcp_flat.h - tensors that were cut into equal pieces along each dimension, whose pieces were then flattened and
 * divided among ranks
 *
 * Megatron-core up to 0.15 stores the states of its distributed optimizer in this form ("fully_sharded_model_space").
 * A tensor of shape [X, Y] that was cut into pieces of shape [x, y] is stored as a tensor of shape [X / x, Y / y, x *
 * y]. The share of a piece that a rank stores may begin and end at any element.
 */
#ifndef SHARDKIT_LAYOUT_DCP_FLAT_H
#define SHARDKIT_LAYOUT_DCP_FLAT_H

#include "libcommon/ckpt/tile.h"
#include "libcommon/layout/dcp/dcp_metadata.h"

/* Returns true if the stored shape and the chunks of the entry fit the original shape en->whole. */
bool dcp_flat_fits(const struct dcp_entry *en);
/*
 * Convert the chunks of an entry to chunks of its original shape, one per piece. tile_map() must have accepted the
 * chunks. *out is allocated in the arena. Returns the number of chunks in *out.
 */
int dcp_flat_unfold(struct arena *a, const struct dcp_entry *en, const struct tile_chunk *tile,
                    struct tile_chunk **out);

#endif
