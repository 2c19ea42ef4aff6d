/*
 * tmap_permute.h - map a tensor with its rows in a different order
 *
 * The permutation is expressed only in extents, so it costs nothing when bytes are moved. Used for the query, key
 * and value rows of attention, which trainers and libraries interleave in different ways.
 */
#ifndef SHARDKIT_PLAN_TMAP_PERMUTE_H
#define SHARDKIT_PLAN_TMAP_PERMUTE_H

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

/*
 * Cut the tensor into runs of `run` bytes (which must divide its length). Run i of the result is run from[i] of m,
 * which must be a CONCAT without windows. The result is allocated in the arena and does not refer to m.
 */
struct tmap *tmap_permute(struct arena *a, const struct tmap *m, uint64_t run, const int64_t *from);
/*
 * Returns the from[] that transposes matrix[rows][cols] of runs to matrix[cols][rows]: run c * rows + r of the
 * result is run r * cols + c. Allocated in the arena.
 */
int64_t *tmap_permute_transposed(struct arena *a, int64_t rows, int64_t cols);

#endif
