/*
 * attention.h - causal attention on the GPU: the two ways there are, and who takes which
 *
 * Hopper's own (attention_forward.cu, attention_back_q.cu, attention_back_kv.cu): bf16 and fp16, head
 * dimensions 64, 80, 96, 128, rows that begin at multiples of 16 bytes. Plain
 * (attention_plain.cu): everything else. attention.cu chooses; results agree to rounding.
 */
#ifndef SHARDKIT_KERNELS_CUDA_ATTENTION_H
#define SHARDKIT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- members of struct kernels ---- */
void cuda_attention(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
void cuda_attention_back(const struct kernel_attention *a, const struct kernel_attention_back *g, enum dtype t,
                         struct dev_stream *s);
uint64_t cuda_attention_scratch(const struct kernel_attention *a);

/* The largest head dimension there is a kernel for. */
#define CUDA_ATTENTION_MAX_HD 256

/* ---- the two ways ---- */
/* Queued, or false when the tensors cannot be described to the copy engine: nothing was queued then. */
bool attention_forward_fast(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
/*
 * dot fp32 [b, heads, s] = sum over d of d_o * o, which softmax's gradient subtracts: attention_back_q_fast() writes
 * it, all others read it; for the plain way attention_dots() writes it.
 */
bool attention_back_q_fast(const struct kernel_attention *a, const struct kernel_attention_back *g, float *dot,
                           enum dtype t, struct dev_stream *s);
bool attention_back_kv_fast(const struct kernel_attention *a, const struct kernel_attention_back *g, float *dot,
                            enum dtype t, struct dev_stream *s);

void attention_forward_plain(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
void attention_back_q_plain(const struct kernel_attention *a, const struct kernel_attention_back *g, const float *dot,
                            enum dtype t, struct dev_stream *s);
void attention_back_kv_plain(const struct kernel_attention *a, const struct kernel_attention_back *g, const float *dot,
                             enum dtype t, struct dev_stream *s);
void attention_dots(float *dot, const struct kernel_attention *a, const struct kernel_attention_back *g, enum dtype t,
                    struct dev_stream *s);

#ifdef __cplusplus
}
#endif

#endif
