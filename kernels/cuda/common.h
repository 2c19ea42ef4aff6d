/*
 * common.h - what the files of the CUDA backend share
 *
 * Each .cu file fills its members of struct kernels. Work is only queued, in the stream that is
 * given; a call that the driver refuses is kept for dev_ops.check(). Random numbers, masks and
 * formulas are the CPU's, bit for bit where the contract says so; sums are cut by the shapes
 * alone, never by who finishes first, and there are no floating-point atomics.
 */
#ifndef SHARDKIT_KERNELS_CUDA_COMMON_H
#define SHARDKIT_KERNELS_CUDA_COMMON_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/kernels.h"

/* ---- device.cu ---- */
extern const struct dev_ops cuda_dev;
/* Take the GPU and say who it is in messages; -1 and *e when it cannot be had. */
int cuda_device_open(int ordinal, struct err *e);
void cuda_device_close(void);
int cuda_sm_count(void);
/* Keep the first failure for check(). `what` is a literal. */
void cuda_note(const char *what, cudaError_t status);
/* The same in words: what other libraries say. */
void cuda_note_text(const char *what, const char *text);
/* After a launch: hear of its refusal. */
void cuda_launched(const char *what);
/*
 * Room of a stream for the length of one call, 256-byte aligned; who gets it next in that
 * stream may overwrite it. NULL (and noted) without memory. CUDA_ROOM_BYTES at most.
 */
#define CUDA_ROOM_BYTES (64u << 20)
void *cuda_room(struct dev_stream *s);

/* ---- nccl.cu ---- */
const struct dev_net *cuda_net_open(struct err *e);

/* ---- each file's functions, into *k ---- */
void cuda_flat_fill(struct kernels *k);
void cuda_optimizer_fill(struct kernels *k);
void cuda_norm_fill(struct kernels *k);
void cuda_linear_fill(struct kernels *k);
void cuda_embed_fill(struct kernels *k);
void cuda_xent_fill(struct kernels *k);

static inline cudaStream_t cuda_stream(struct dev_stream *s)
{
    return (cudaStream_t)s;
}
static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

#ifdef __cplusplus
}
#endif

#endif
