/*
 * gemm.h - the three matrix products of a linear layer, one loop for all
 */
#ifndef SHARDKIT_KERNELS_CPU_GEMM_H
#define SHARDKIT_KERNELS_CPU_GEMM_H

#include "kernels/cpu/panels.h"

/*
 * result [m, n] = a [m, k] b [n, k]^T in fp32, handed to `finish` a tile at a time. Each result is summed in an
 * order that follows from k, whatever the number of threads.
 */
struct gemm_tile {
    const float *acc;                   /* [rows, ld] */
    int64_t ld, row, rows, col, cols;   /* which rows and columns of the result */
};

struct gemm {
    struct operand a, b;                /* of the same T */
    int64_t m, n, k;
    void (*finish)(const void *arg, const struct gemm_tile *t);
    const void *arg;
};
#define gemm_run ISA_NAME(gemm_run)
void gemm_run(const struct gemm *g);

#endif
