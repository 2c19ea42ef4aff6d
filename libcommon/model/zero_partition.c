/*
 * zero_partition.c - compute which piece of a parameter a data-parallel rank holds
 */
#include "libcommon/model/zero_partition.h"

int64_t zero_fragment(int64_t first, int64_t n, int64_t partition, int d, int64_t *start, int64_t *skip)
{
    int64_t own = d * partition;
    int64_t from = first > own ? first : own;
    int64_t end = first + n < own + partition ? first + n : own + partition;

    *start = from - own;
    *skip = from - first;
    return end > from ? end - from : 0;
}
