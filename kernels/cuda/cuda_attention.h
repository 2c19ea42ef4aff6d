/*
 * cuda_attention.h - causal attention on the GPU: the two implementations and their selection
 *
 * The Hopper implementation (attention_forward.cu, attention_back_q.cu, attention_back_kv.cu) supports bf16 and
 * fp16, head dimensions 64, 80, 96 and 128, and rows that begin at multiples of 16 bytes. The plain implementation
 * (attention_plain.cu) supports everything else. attention.cu selects one. Their results agree except for rounding.
 */
#ifndef SHARDKIT_KERNELS_CUDA_CUDA_ATTENTION_H
#define SHARDKIT_KERNELS_CUDA_CUDA_ATTENTION_H

#include "kernels/cuda/common.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- members of struct kernels ---- */
void cuda_attention(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
void cuda_attention_back(const struct kernel_attention *a, const struct kernel_attention_back *g, enum dtype t,
                         struct dev_stream *s);
uint64_t cuda_attention_scratch(const struct kernel_attention *a);

/* The largest head dimension that any kernel supports. */
#define CUDA_ATTENTION_MAX_HD 256

/* ---- the two implementations ---- */
/*
 * Queue the work with kernels for Hopper. Each function queues nothing and returns false if the tensors cannot be
 * described to the copy engine.
 */
bool attention_forward_fast(const struct kernel_attention *a, enum dtype t, struct dev_stream *s);
/*
 * `dot` is fp32 [b, heads, s]. It is the sum over d of d_o * o, which the gradient of softmax subtracts.
 * attention_back_q_fast() writes `dot`, and attention_back_kv_fast() reads it. For the plain implementation,
 * attention_dots() writes `dot`.
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
