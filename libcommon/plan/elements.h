/*
 * elements.h - what a plan item's operation does to elements in memory: convert, transpose
 *
 * For the executor. Numbers are rounded to nearest even; NaN stays NaN.
 */
#ifndef SHARDKIT_PLAN_ELEMENTS_H
#define SHARDKIT_PLAN_ELEMENTS_H

#include "libcommon/plan/plan.h"

/* What fp16 cannot hold. */
struct elements_loss {
    uint64_t n_overflow;        /* finite numbers that became infinite */
    uint64_t n_flushed;         /* numbers other than 0 that became 0 */
};

/* Convert n elements in place; a widening conversion needs room for its output behind them. */
void elements_convert(enum plan_op op, void *bytes, uint64_t n, struct elements_loss *loss);
/*
 * dst[cols][rows] = transpose of src[rows][cols], elements of 2 or 4 bytes, no overlap. Rows
 * of dst begin `dst_stride` bytes apart.
 */
void elements_transpose(void *dst, uint64_t dst_stride, const void *src, uint64_t rows, uint64_t cols, int size);

#endif
