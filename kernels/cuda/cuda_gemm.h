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
    /*
     * y = gelu(sum + bias). If pre is not NULL, pre = sum + bias is stored as well. Supported by cuda_gemm_lt() only.
     */
    GEMM_GELU,
    GEMM_SLOPE,                         /* y = sum * gelu'(pre) */
};

struct cuda_gemm {
    int64_t m, n, k;
    const void *a, *b;
    bool a_across, b_across;
    /* in: dtype of the operands. out: dtype of y, pre and bias, which is fp32 or equal to `in`. */
    enum dtype in, out;
    void *y, *pre;
    const void *bias;                   /* [n] */
    bool add;                           /* add the result to y */
    bool grad;                          /* y is a gradient of type T: the result is rounded before it is added to y */
    enum gemm_finish finish;
};

/*
 * Queue a product through cuBLASLt. If cuBLASLt has no algorithm for the product, because sizes or addresses are odd,
 * this function queues nothing and returns false.
 */
bool cuda_gemm_lt(const struct cuda_gemm *g, struct dev_stream *s);
int cuda_gemm_lt_open(struct err *e);
void cuda_gemm_lt_close(void);

/* Queue a product of any size. Used for the products that cuda_gemm_lt() refuses. */
void cuda_gemm_plain(const struct cuda_gemm *g, struct dev_stream *s);

#endif
