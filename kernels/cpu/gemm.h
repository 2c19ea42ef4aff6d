/*
 * gemm.h - the three matrix products of a linear layer, one loop for all
 */
#ifndef SHARDKIT_KERNELS_CPU_GEMM_H
#define SHARDKIT_KERNELS_CPU_GEMM_H

#include "kernels/cpu/panels.h"

/*
 * result [m, n] = a [m, k] b [n, k]^T in fp32, handed to `finish` a piece of a row at a time:
 * acc holds columns col .. col + width of row `row`. Each result is summed in the order of k,
 * whatever the number of threads.
 */
struct gemm {
    struct operand a, b;                /* of the same T */
    int64_t m, n, k;
    void (*finish)(const void *arg, const float *acc, int64_t row, int64_t col, int64_t width);
    const void *arg;
};
#define gemm_run ISA_NAME(gemm_run)
void gemm_run(const struct gemm *g);

#endif
