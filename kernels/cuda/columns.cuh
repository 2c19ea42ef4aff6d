/*
 * columns.cuh - column sums of [m, n], for biases behind a dropout or a linear layer
 */
#ifndef SHARDKIT_KERNELS_CUDA_COLUMNS_CUH
#define SHARDKIT_KERNELS_CUDA_COLUMNS_CUH

#include "kernels/cuda/device.cuh"

/* Into how many chunks the rows are cut. */
int64_t cuda_column_chunks(int64_t m, int64_t n);
/*
 * part fp32 [chunks, n] = column sums of each chunk of x * mask, which also goes to da T [m, n], rounded,
 * before it is summed. part and da may be NULL; da may be x.
 */
void cuda_columns(float *part, void *da, const void *x, const struct kernel_dropout *drop, int64_t m, int64_t n,
                  enum dtype t, struct dev_stream *s);
/* out [h] (+)= sums over chunks of part [chunks, stride]; out2 the same of part + h, unless NULL */
void cuda_add_chunks(float *out, float *out2, const float *part, int64_t chunks, int64_t stride, int64_t h, bool add,
                     struct dev_stream *s);
/* out fp32 [n] (+)= column sums of x, through the stream's room */
void cuda_column_sums(float *out, const void *x, int64_t m, int64_t n, bool add, enum dtype t, struct dev_stream *s);

#endif
