/*
 * cpu_gemm.h - the three matrix products of a linear layer, with one loop for all
 */
#ifndef SHARDKIT_KERNELS_CPU_CPU_GEMM_H
#define SHARDKIT_KERNELS_CPU_CPU_GEMM_H

#include "kernels/cpu/panels.h"

/*
 * Compute result [m, n] = a [m, k] b [n, k]^T in fp32, and pass it to `finish` one tile at a time. The order in
 * which each result is summed depends only on k, not on the number of threads.
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
