/*
 * tmap_slice.h - tensor maps of a part of a tensor, for sinks that split tensors differently
 *
 * Rows of a tensor are consecutive logical bytes, so a plan item can use the original map for them. Columns are not
 * consecutive, so they need a map of their own, made of the same extents.
 */
#ifndef SHARDKIT_PLAN_TMAP_SLICE_H
#define SHARDKIT_PLAN_TMAP_SLICE_H

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/plan/tmap.h"

/*
 * Returns a map of bytes [at, at+len) of every row of `row` bytes of the tensor that m maps. The result is
 * allocated in the arena and shares m's extents where possible, so m must outlive it. m must have no windows.
 */
struct tmap *tmap_slice_columns(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, uint64_t len);

/*
 * Store bytes [at, at+len) of a slice's extents in *to, as a slice of its own. The slice must have no windows. The
 * new extents are allocated in the arena.
 */
void tmap_slice_cut(struct arena *a, const struct tmap_slice *from, uint64_t at, uint64_t len, struct tmap_slice *to);

/*
 * tmap_parts() returns a map of n >= 1 parts of maps, concatenated. All parts have one dtype; they are rows of one
 * tensor or of several. A single part is mapped as compactly as its source where that is possible; otherwise every
 * contiguous run becomes one extent. The result is allocated in the arena and may share extents with the sources.
 */
struct tmap_part {
    const struct tmap *map;
    uint64_t at, len;           /* logical bytes, whole elements */
};
struct tmap *tmap_parts(struct arena *a, const struct tmap_part *part, int n);

/*
 * Returns a map of `len` zero bytes. They are read from a record of the files that the first call creates (*record
 * < 0) and all later calls share.
 */
struct tmap *tmap_slice_zeros(struct arena *a, struct files *f, int *record, enum dtype dtype, uint64_t len);

/*
 * A rectangular part of a row-major tensor, as runs of bytes that are contiguous in the tensor. The arrays `at` and
 * `len` of the part are the caller's.
 */
struct tensor_runs {
    int ndim, outer;            /* outer: number of leading dimensions that a run does not extend over */
    uint64_t n, run, stride[TENSOR_MAX_DIM + 1];        /* number of runs, bytes of each */
    const int64_t *at, *len;
};
struct tensor_runs tensor_runs_of(uint64_t elem, int ndim, const int64_t *shape, const int64_t *at, const int64_t *len);
uint64_t tensor_runs_place(const struct tensor_runs *r, uint64_t k);    /* offset of run k in the tensor */

#endif
