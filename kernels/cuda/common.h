/*
 * common.h - declarations shared by the files of the CUDA backend
 *
 * Each .cu file sets its members of struct kernels. Calls only queue work, in the given stream. If the driver
 * refuses a call, the error is kept for dev_ops.check(). Random numbers, masks and formulas are those of the CPU,
 * bit for bit where the contract requires it. Sums are split by shape alone, never by which block finishes first,
 * and there are no floating-point atomics.
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
/* Select the GPU, and determine its name for messages. Returns -1 with *e filled if it cannot be used. */
int cuda_device_open(int ordinal, struct err *e);
void cuda_device_close(void);
int cuda_sm_count(void);
/* Record a failure for check(), unless there is an earlier one. `what` is a literal. */
void cuda_record_fault(const char *what, cudaError_t status);
/* Record a failure of another library, described by `text`, unless there is an earlier failure. */
void cuda_record_fault_text(const char *what, const char *text);
/* Call after a launch, to record it if it was refused. */
void cuda_launched(const char *what);
/*
 * Returns a scratch buffer of a stream, 256-byte aligned, for the duration of one call. The next user in that
 * stream may overwrite it. Returns NULL, with the failure recorded, if there is not enough memory. It has
 * CUDA_ROOM_BYTES bytes.
 */
#define CUDA_ROOM_BYTES (64u << 20)
void *cuda_room(struct dev_stream *s);

/* ---- nccl.cu ---- */
const struct dev_net *cuda_net_open(struct err *e);

/* ---- functions of each file, which set members of *k ---- */
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
