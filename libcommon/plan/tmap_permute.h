/*
 * tmap_permute.h - the same tensor with its rows in another order
 *
 * Expressed in extents alone, so it costs nothing when bytes move. For the query, key and
 * value rows of attention, which trainers and libraries interleave in different ways.
 */
#ifndef SHARDKIT_PLAN_TMAP_PERMUTE_H
#define SHARDKIT_PLAN_TMAP_PERMUTE_H

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

/*
 * Cut the tensor into runs of `run` bytes (which divides its length); run i of the result
 * is run from[i] of m, a CONCAT without windows. In the arena; m may go.
 */
struct tmap *tmap_permute(struct arena *a, const struct tmap *m, uint64_t run, const int64_t *from);
/* from[] that takes matrix[rows][cols] of runs to matrix[cols][rows]: result run c * rows + r is run r * cols + c. */
int64_t *tmap_permute_transposed(struct arena *a, int64_t rows, int64_t cols);

#endif
