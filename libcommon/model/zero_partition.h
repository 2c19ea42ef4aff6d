/*
 * zero_partition.h - how BF16_Optimizer and ZeRO-1/2 divide flat groups over data-parallel ranks
 *
 * The parameters of a group, S elements in total, are stored one after the other in a flat buffer. The buffer is padded
 * to F = align_up(S, 2 * DP) elements. Of these, data-parallel rank d owns the partition [d * P, (d + 1) * P), where P
 * = F / DP (docs/formats.md, section 4.5).
 */
#ifndef SHARDKIT_MODEL_ZERO_PARTITION_H
#define SHARDKIT_MODEL_ZERO_PARTITION_H

#include <stdint.h>

static inline int64_t zero_flat_elems(int64_t sum, int dp)
{
    int64_t a = 2 * (int64_t)dp;

    return (sum + a - 1) / a * a;
}

static inline int64_t zero_partition_elems(int64_t sum, int dp) { return zero_flat_elems(sum, dp) / dp; }

/*
 * Compute the elements that rank d holds of a parameter at [first, first + n) of the flat buffer. Returns the number of
 * elements, which may be 0. *start receives the offset of the first of them in the rank's partition, and *skip its
 * offset in the parameter.
 */
int64_t zero_fragment(int64_t first, int64_t n, int64_t partition, int d, int64_t *start, int64_t *skip);

#endif
