/*
 * tmap_permute.h - map a tensor with its rows in a different order
 *
 * Only the order of the extents changes, so a conversion needs no extra step to reorder the rows. It is used for the
 * query, key and value rows of attention, which trainers and libraries interleave in different ways.
 */
#ifndef SHARDKIT_PLAN_TMAP_PERMUTE_H
#define SHARDKIT_PLAN_TMAP_PERMUTE_H

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

/*
 * Cut the tensor into pieces of `run` bytes each, and reorder them. Piece i of the result is piece from[i] of m. `run`
 * must divide the length of the tensor. m must be a CONCAT map without windows. The result is allocated in the arena
 * and does not refer to m.
 */
struct tmap *tmap_permute(struct arena *a, const struct tmap *m, uint64_t run, const int64_t *from);
/*
 * Returns the array `from` with which tmap_permute() transposes a matrix of pieces: piece r * cols + c of
 * matrix[rows][cols] becomes piece c * rows + r of matrix[cols][rows]. The array is allocated in the arena.
 */
int64_t *tmap_permute_transposed(struct arena *a, int64_t rows, int64_t cols);

#endif
