/*
 * cuda_gemm.h - two implementations of a matrix product: cuBLASLt, and a plain kernel for what cuBLASLt does not
 * support
 *
 * result [m, n] = a [m, k] b [n, k]^T, row-major, summed in fp32. With `across` the operand is stored transposed: a
 * [k, m] or b [k, n].
 */
#ifndef SHARDKIT_KERNELS_CUDA_CUDA_GEMM_H
#define SHARDKIT_KERNELS_CUDA_CUDA_GEMM_H

#include "kernels/cuda/common.h"

enum gemm_finish {
    GEMM_PLAIN,                         /* add bias unless NULL */
    /* pre = sum + bias, unless pre is NULL; y = gelu(sum + bias). For cuBLASLt only. */
    GEMM_GELU,
    GEMM_SLOPE,                         /* y = sum * gelu'(pre) */
};

struct cuda_gemm {
    int64_t m, n, k;
    const void *a, *b;
    bool a_across, b_across;
    /* The dtype of the operands; the dtype of y, pre and bias: fp32 or that of the operands. */
    enum dtype in, out;
    void *y, *pre;
    const void *bias;                   /* [n] */
    bool add;                           /* y += */
    bool grad;                          /* y is a gradient of T: the value that is added to it is rounded first */
    enum gemm_finish finish;
};

/*
 * Queue a product. Returns false, without queueing anything, if cuBLASLt has no algorithm for it (odd sizes or
 * addresses).
 */
bool cuda_gemm_lt(const struct cuda_gemm *g, struct dev_stream *s);
int cuda_gemm_lt_open(struct err *e);
void cuda_gemm_lt_close(void);

/* Queue a product of any size, for whatever cuda_gemm_lt() refuses. */
void cuda_gemm_plain(const struct cuda_gemm *g, struct dev_stream *s);

#endif
