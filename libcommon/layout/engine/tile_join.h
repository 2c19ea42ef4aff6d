/*
 * tile_join.h - make the map of a tensor from the parts that several ranks hold; some parts may be copies
 */
#ifndef SHARDKIT_LAYOUT_TILE_JOIN_H
#define SHARDKIT_LAYOUT_TILE_JOIN_H

#include "libcommon/ckpt/tile.h"

/*
 * A part of a tensor, which consists of elements at[d] to at[d] + len[d] - 1 in each dimension d, and the place of its
 * bytes.
 */
struct tile_part {
    int64_t at[TENSOR_MAX_DIM], len[TENSOR_MAX_DIM];
    int ndim, rank, n_extents;
    struct extent *extent;
};

/*
 * Returns the map of tensor t, allocated in the arena. The function sorts the parts. All parts must have the same
 * number of copies, and the different parts must tile the tensor. If each part has one copy, the map is that of
 * tile_map(). Otherwise the map has the operation TMAP_REPLICAS and one slice for each copy of the whole tensor.
 * Returns NULL and sets *why to the reason, a string in the arena or a constant, if the parts do not form the tensor.
 */
struct tmap *tile_join(struct arena *a, const struct tile_tensor *t, struct tile_part *part, int n, const char **why);

#endif
