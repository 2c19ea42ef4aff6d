/*
 * tmap_slice.h - tensor maps of a part of a tensor, for sinks that cut tensors anew
 *
 * Rows of a tensor are consecutive logical bytes: a plan item takes them from the map as it
 * is. Columns are not, so they get a map of their own, made of the same extents.
 */
#ifndef SHARDKIT_PLAN_TMAP_SLICE_H
#define SHARDKIT_PLAN_TMAP_SLICE_H

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

/*
 * Bytes [at, at+len) of every row of `row` bytes of the tensor that m maps. The result is
 * in the arena and shares m's extents where it can, so m must outlive it. m has no windows.
 */
struct tmap *tmap_slice_columns(struct arena *a, const struct tmap *m, uint64_t row, uint64_t at, uint64_t len);

/* Bytes [at, at+len) of a slice's extents, which has no windows, as a slice of its own. In the arena. */
void tmap_slice_cut(struct arena *a, const struct tmap_slice *from, uint64_t at, uint64_t len, struct tmap_slice *to);

/*
 * Parts of maps end to end, n >= 1, all of one dtype: some rows of one tensor, or of several. One part is as compact as
 * the map it is of where that can be; parts in a new order become an extent for each contiguous run. In the arena; the
 * result may share extents.
 */
struct tmap_part {
    const struct tmap *map;
    uint64_t at, len;           /* logical bytes, whole elements */
};
struct tmap *tmap_parts(struct arena *a, const struct tmap_part *part, int n);

/*
 * `len` zero bytes. They come from a record of the files, made on the first call (*record
 * < 0) and shared by all later ones.
 */
struct tmap *tmap_slice_zeros(struct arena *a, struct files *f, int *record, enum dtype dtype, uint64_t len);

#endif
