/*
 * columns.cuh - column sums of [m, n], for biases before a dropout or in a linear layer
 */
#ifndef SHARDKIT_KERNELS_CUDA_COLUMNS_CUH
#define SHARDKIT_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/device.cuh"

/* Returns the number of chunks that the rows are split into. */
int64_t cuda_column_chunks(int64_t m, int64_t n);
struct cuda_columns {
    int64_t m, n;
    const void *x;                      /* T [m, n] */
    struct dropout drop;
    void *da;                           /* T [m, n], x * mask, rounded before it is summed; may be x. NULL: not
                                           stored */
    float *part;                        /* fp32 [chunks, n], column sums of each chunk of rows, or NULL */
};
void cuda_columns(const struct cuda_columns *c, enum dtype t, struct dev_stream *s);
/* Sums over chunks, added in the order of the chunks. */
struct cuda_chunks {
    const float *part;                  /* fp32 [chunks, stride] */
    int64_t chunks, stride, h;
    void *out;                          /* [h] (+)= the sums of part */
    void *out2;                         /* [h] (+)= the sums of part + h, or NULL */
    bool add;
    enum dtype g;                       /* dtype of out and out2: DTYPE_F32 or F16 */
};
void cuda_add_chunks(const struct cuda_chunks *c, struct dev_stream *s);
/* l->dbias (+)= column sums of l->dy, using the stream's scratch buffer */
void cuda_bias_back(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s);

#endif
