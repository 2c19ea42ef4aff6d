/*
 * tile.h - the map of a tensor that was split into boxes, each stored row-major by itself
 *
 * Boxes may be in any order and split in any dimension. They must tile the tensor: no element twice, none missing.
 * Boxes without elements are ignored, but must be located within the tensor.
 */
#ifndef SHARDKIT_CKPT_TILE_H
#define SHARDKIT_CKPT_TILE_H

#include "libcommon/base/tensor.h"
#include "libcommon/format/pt.h"
#include "libcommon/plan/tmap.h"

/* The type and shape of a tensor. The caller has checked that its size in bytes fits 64 bits. */
struct tile_tensor {
    enum dtype dtype;
    int ndim;                   /* 0 .. TENSOR_MAX_DIM */
    const int64_t *shape;
};

struct tile_chunk {
    const int64_t *at, *len;    /* as many as the tensor has dimensions */
    int n_extents;
    struct extent *extent;      /* its bytes; the map shares this array */
};

/*
 * Returns the location of a stored tensor's elements in row-major order, as an extent for each contiguous run. Returns
 * NULL if there are more than `most` runs.
 */
struct extent *tile_runs(struct arena *a, const struct pt_tensor *t, int64_t most, int *n);

/*
 * Split the chunks of a tensor by rows. tile_map() must have accepted the chunks. The chunks of each row are chunks of
 * a tensor with one dimension less. Those of row r are [(*first)[r], (*first)[r + 1]) in the returned array. Returns
 * NULL if there would be more than `most` chunks or rows. The caller frees both arrays. Extents are in the arena;
 * positions and lengths are those of `chunk`.
 */
struct tile_chunk *tile_rows(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                             int64_t most, int **first);

/* A flaw of a tensor's chunks. Chunks are given by their indices in the caller's array. */
struct tile_flaw {
    enum { TILE_GAP, TILE_OVERLAP, TILE_OUTSIDE } what;
    int chunk, other;           /* OUTSIDE: chunk; OVERLAP: both; GAP: neither */
    uint64_t n_missing;         /* GAP: number of elements in no chunk */
};

/*
 * Returns the map of the tensor, in the arena: a concatenation if that is sufficient, else boxes. Returns NULL and sets
 * the flaw if the chunks do not tile the tensor.
 */
struct tmap *tile_map(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                      struct tile_flaw *flaw);

#endif
