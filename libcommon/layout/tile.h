/*
 * tile.h - the map of a tensor that was cut into boxes, each kept row-major by itself
 *
 * Boxes come in any order, cut in any dimension. They must tile the tensor: no element twice, none missing; boxes
 * without elements count as nothing, wherever up to the tensor's end they say they are.
 */
#ifndef SHARDKIT_LAYOUT_TILE_H
#define SHARDKIT_LAYOUT_TILE_H

#include "libcommon/format/pt.h"
#include "libcommon/plan/tmap.h"

/* A tensor's element and shape. Their product fits 64 bits: the caller has multiplied it out. */
struct tile_tensor {
    enum dtype dtype;
    int ndim;                   /* 0 .. TENSOR_MAX_DIM */
    const int64_t *shape;
};

struct tile_chunk {
    const int64_t *at, *len;    /* as many as the tensor has dimensions */
    int n_extents;
    struct extent *extent;      /* its bytes; the map shares them */
};

/*
 * Where the elements of a stored tensor lie, row-major: an extent for each contiguous run. NULL where there are more
 * than `most`.
 */
struct extent *tile_runs(struct arena *a, const struct pt_tensor *t, int64_t most, int *n);

/*
 * Of a tensor that tile_map() took: the chunks of each row, as chunks of a tensor with one dimension fewer. Those of
 * row r begin at number (*first)[r] of what is returned and end before (*first)[r + 1]. NULL where there would be more
 * than `most` chunks or rows. Caller frees both; extents are the arena's, numbers those of `chunk`.
 */
struct tile_chunk *tile_rows(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                             int64_t most, int **first);

/* What is wrong with the chunks: numbers of the caller's array. */
struct tile_flaw {
    enum { TILE_GAP, TILE_OVERLAP, TILE_OUTSIDE } what;
    int chunk, other;           /* OUTSIDE: chunk; OVERLAP: both; GAP: neither */
    uint64_t n_missing;         /* GAP: elements that no chunk has */
};

/* The map, in the arena: a concatenation where that is enough, else boxes. NULL: the flaw says why. */
struct tmap *tile_map(struct arena *a, const struct tile_tensor *t, const struct tile_chunk *chunk, int n,
                      struct tile_flaw *flaw);

#endif
