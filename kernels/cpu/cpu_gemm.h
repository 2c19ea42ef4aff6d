/* cpu_gemm.h - the matrix product that the three products of a linear layer share */
#ifndef SHARDKIT_KERNELS_CPU_CPU_GEMM_H
#define SHARDKIT_KERNELS_CPU_CPU_GEMM_H

#include "kernels/cpu/panels.h"

/*
 * A matrix product: result [m, n] = a [m, k] b [n, k]^T in fp32. The results are passed to `finish` tile by tile. The
 * order in which a result is summed depends only on k, not on the number of threads.
 */
struct gemm_tile {
    const float *acc;                   /* [rows, ld] */
    int64_t ld, row, rows, col, cols;   /* position and size of the tile in the result */
};

struct gemm {
    struct operand a, b;                /* both of the same T */
    int64_t m, n, k;
    void (*finish)(const void *arg, const struct gemm_tile *t);
    const void *arg;
};
#define gemm_run ISA_NAME(gemm_run)
void gemm_run(const struct gemm *g);

#endif
