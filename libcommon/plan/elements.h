/*
 * elements.h - operations of plan items on elements in memory: conversion and transposition
 *
 * Used by the executor. Numbers are rounded to nearest even; NaN stays NaN.
 */
#ifndef SHARDKIT_PLAN_ELEMENTS_H
#define SHARDKIT_PLAN_ELEMENTS_H

#include "libcommon/plan/plan.h"

/* Numbers that fp16 cannot represent. */
struct elements_loss {
    uint64_t n_overflow;        /* finite numbers that became infinite */
    uint64_t n_flushed;         /* numbers other than 0 that became 0 */
};

/*
 * Convert n elements in place. For a widening conversion the buffer must have room for the whole output. Adds to
 * *loss.
 */
void elements_convert(enum plan_op op, void *bytes, uint64_t n, struct elements_loss *loss);
/*
 * Transpose src[rows][cols] into dst[cols][rows]. Elements have 2 or 4 bytes (size). Rows of dst begin `dst_stride`
 * bytes apart. The buffers must not overlap.
 */
void elements_transpose(void *dst, uint64_t dst_stride, const void *src, uint64_t rows, uint64_t cols, int size);

#endif
