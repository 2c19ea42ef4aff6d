/*
 * gemm.h - the two ways to a matrix product: cuBLASLt, and a plain kernel for what it does not take
 *
 * result [m, n] = a [m, k] b [n, k]^T, row-major, summed in fp32. `across`: the operand lies the
 * other way round, a [k, m] or b [k, n].
 */
#ifndef SHARDKIT_KERNELS_CUDA_GEMM_H
#define SHARDKIT_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/common.h"

enum gemm_finish {
    GEMM_PLAIN,                         /* + bias unless NULL */
    GEMM_GELU,                          /* pre = sum + bias, unless pre is NULL; y = gelu(sum + bias); cuBLASLt only */
    GEMM_SLOPE,                         /* y = sum * gelu'(pre) */
};

struct cuda_gemm {
    int64_t m, n, k;
    const void *a, *b;
    bool a_across, b_across;
    enum dtype in, out;                 /* of the operands; of y, pre and bias: fp32 or that of the operands */
    void *y, *pre;
    const void *bias;                   /* [n] */
    bool add;                           /* y += */
    bool grad;                          /* y is a gradient of T: what is added to it is rounded first */
    enum gemm_finish finish;
};

/* false: cuBLASLt has nothing for this one (odd sizes or addresses), and nothing was queued. */
bool cuda_gemm_lt(const struct cuda_gemm *g, struct dev_stream *s);
int cuda_gemm_lt_open(struct err *e);
void cuda_gemm_lt_close(void);

/* Any size, whatever cuda_gemm_lt() refuses. */
void cuda_gemm_plain(const struct cuda_gemm *g, struct dev_stream *s);

#endif
