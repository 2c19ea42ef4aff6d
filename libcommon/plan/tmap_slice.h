/*
 * tmap_slice.h - make tensor maps of parts of a tensor, for layouts that split tensors in another way
 *
 * Rows of a tensor are consecutive logical bytes, so an item of a plan can use the original map for them. Columns are
 * not consecutive, so a new map is made for them from the same extents.
 */
#ifndef SHARDKIT_PLAN_TMAP_SLICE_H
#define SHARDKIT_PLAN_TMAP_SLICE_H

#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"
#include "libcommon/plan/tmap.h"

/*
 * Returns a map of some columns of the tensor that m maps. The columns are bytes [at, at+len) of every row; a row has
 * `row` bytes. The result is allocated in the arena and shares extents with m where possible, so m must outlive it. m
 * must have no windows. A map that tmap_alternate_rows() returned can be cut if `row` is that of its rows.
 */
struct tmap *tmap_slice_columns(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, uint64_t len);

/*
 * Make *to a slice that consists of bytes [at, at+len) of the extents of slice `from`, which must have no windows. The
 * new extents are allocated in the arena.
 */
void tmap_slice_cut(struct arena *a, const struct tmap_slice *from, uint64_t at, uint64_t len, struct tmap_slice *to);

/*
 * tmap_parts() returns a map that concatenates n >= 1 parts of maps. All parts must have the same dtype. They are rows
 * of one or several tensors. A single part is mapped as compactly as its source, if possible. Otherwise every
 * contiguous run becomes one extent. The result is allocated in the arena and may share extents with the sources.
 */
struct tmap_part {
    const struct tmap *map;
    uint64_t at, len;           /* range of logical bytes, which must be whole elements */
};
struct tmap *tmap_parts(struct arena *a, const struct tmap_part *part, int n);

/*
 * Returns a map that alternates the rows of x and y, which have `row` bytes each: row 0 of x, row 0 of y, row 1 of x,
 * ... Both maps must have the same dtype and length, and consist of whole rows. The result is allocated in the arena
 * and shares extents with both maps.
 */
struct tmap *tmap_alternate_rows(struct arena *a, const struct tmap *x, const struct tmap *y, uint64_t row);

/*
 * Returns a map of `len` zero bytes. The zeros are read from a record that the first call adds to the files. *record
 * must be < 0 before the first call. All later calls use the same record.
 */
struct tmap *tmap_slice_zeros(struct arena *a, struct files *f, int *record, enum dtype dtype, uint64_t len);
/* Returns a map of the first `len` bytes of a record. */
struct tmap *tmap_slice_record(struct arena *a, int record, enum dtype dtype, uint64_t len);

/*
 * A rectangular part of a row-major tensor, described by the runs of bytes that are contiguous in the tensor. The
 * arrays `at` and `len` belong to the caller.
 */
struct tensor_runs {
    int ndim, outer;            /* outer: number of leading dimensions that no run crosses */
    uint64_t n, run, stride[TENSOR_MAX_DIM + 1];        /* number of runs, and size of each in bytes */
    const int64_t *at, *len;
};
struct tensor_runs tensor_runs_of(uint64_t elem, int ndim, const int64_t *shape, const int64_t *at, const int64_t *len);
uint64_t tensor_runs_place(const struct tensor_runs *r, uint64_t k);    /* returns the offset of run k in the tensor */

#endif
