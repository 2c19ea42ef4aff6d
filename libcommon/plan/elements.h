/*
 * elements.h - convert and transpose elements in memory, as items of a plan require
 *
 * The executor uses these functions. Conversions round numbers to nearest even; NaN stays NaN.
 */
#ifndef SHARDKIT_PLAN_ELEMENTS_H
#define SHARDKIT_PLAN_ELEMENTS_H

#include "libcommon/plan/plan.h"

/* Counts the numbers that fp16 could not represent. */
struct elements_loss {
    uint64_t n_overflow;        /* finite numbers that became infinite */
    uint64_t n_flushed;         /* numbers other than 0 that became 0 */
};

/*
 * Convert n elements in place. If the elements of the result are larger, the buffer must have room for all of them. The
 * count of numbers that fp16 cannot represent is added to *loss.
 */
void elements_convert(enum plan_op op, void *bytes, uint64_t n, struct elements_loss *loss);
/*
 * Transpose src[rows][cols] into dst[cols][rows]. `size` is the size of an element, 2 or 4 bytes. Rows of dst begin
 * `dst_stride` bytes apart. The buffers must not overlap.
 */
void elements_transpose(void *dst, uint64_t dst_stride, const void *src, uint64_t rows, uint64_t cols, int size);

#endif
