/*
 * tile.h - make the map of a tensor that was split into boxes, which are stored in row-major order
 *
 * Boxes may be in any order and split in any dimension. They must tile the tensor: each element must be in exactly one
 * box. Boxes without elements are ignored, but must be located within the tensor.
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
    /* first index and size of the box; both arrays have one member for each dimension of the tensor */
    const int64_t *at, *len;
    int n_extents;
    struct extent *extent;      /* places at which the bytes of the box are stored; the map shares this array */
};

/*
 * Returns the places of the elements of t, in row-major order, with one extent for each contiguous run. *n receives the
 * number of extents. Returns NULL if there are more than `most`.
 */
struct extent *tile_runs(struct arena *a, const struct pt_tensor *t, int64_t most, int *n);

/*
 * Split the chunks of a tensor by rows. tile_map() must accept the chunks. The chunks of row r are members (*first)[r]
 * to (*first)[r + 1] - 1 of the returned array. They are chunks of a tensor with one dimension less. Returns NULL if
 * there would be more than `most` chunks or rows. The caller frees both arrays. The extents are allocated in the arena;
 * positions and lengths belong to `chunk`.
 */
struct tile_chunk *tile_rows(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                             int64_t most, int **first);

/* The reason why chunks do not tile a tensor. `chunk` and `other` are indices in the caller's array. */
struct tile_flaw {
    enum { TILE_GAP, TILE_OVERLAP, TILE_OUTSIDE } what;
    int chunk, other;           /* OUTSIDE sets `chunk`, OVERLAP sets both, GAP sets neither */
    uint64_t n_missing;         /* GAP: number of elements that are in no chunk */
};

/*
 * Returns the map of the tensor, allocated in the arena. The map is a concatenation of the chunks if possible, and
 * otherwise a map of boxes. Returns NULL and sets *flaw if the chunks do not tile the tensor.
 */
struct tmap *tile_map(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                      struct tile_flaw *flaw);

#endif
