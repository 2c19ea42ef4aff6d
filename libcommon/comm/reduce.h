/*
 * reduce.h - sum or maximum of the same elements of several ranks, in rank order
 *
 * Implements only the arithmetic of comm.h's contract. Each element is computed separately, so the result does not
 * depend on how a vector is split.
 */
#ifndef SHARDKIT_COMM_REDUCE_H
#define SHARDKIT_COMM_REDUCE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/comm/comm.h"

bool reduce_can(enum dtype t);      /* Returns true for the types that can be reduced: F64 F32 BF16 F16 I64 I32 U8. */
/*
 * Set out[i], for each i < n, to in[0][i] op in[1][i] op ..., computed in this order. `out` may be one of the inputs.
 * All pointers must be aligned for the type.
 */
void reduce_ranks(void *out, const void *const *in, int n_ranks, int64_t n, enum dtype t, enum comm_op op);

#endif
