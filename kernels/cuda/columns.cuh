/* columns.cuh - column sums of a matrix [m, n], for the gradient of a bias in a linear layer or before a dropout */
#ifndef SHARDKIT_KERNELS_CUDA_COLUMNS_CUH
#define SHARDKIT_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/device.cuh"

/* Returns the number of chunks that the rows are split into. */
int64_t cuda_column_chunks(int64_t m, int64_t n);
struct cuda_columns {
    int64_t m, n;
    const void *x;                      /* T [m, n] */
    struct dropout drop;
    /*
     * T [m, n]: receives x * mask, rounded before it is summed; may be the same memory as x; NULL: x * mask is not
     * stored
     */
    void *da;
    float *part;                        /* fp32 [chunks, n], column sums of each chunk of rows, or NULL */
};
void cuda_columns(const struct cuda_columns *c, enum dtype t, struct dev_stream *s);
/* A sum over chunks. The chunks are added in order. */
struct cuda_chunks {
    const float *part;                  /* fp32 [chunks, stride] */
    int64_t chunks, stride, h;
    void *out;                          /* [h]: receives the sums of part, or is added to */
    void *out2;                         /* the same for the sums of part + h; or NULL */
    bool add;
    enum dtype g;                       /* dtype of out and out2: DTYPE_F32 or F16 */
};
void cuda_add_chunks(const struct cuda_chunks *c, struct dev_stream *s);
/* Compute l->dbias, the column sums of l->dy, or add them to it. Uses the scratch buffer of the stream. */
void cuda_bias_back(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s);

#endif
