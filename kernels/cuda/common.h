/*
 * common.h - declarations shared by the files of the CUDA backend
 *
 * Each .cu file sets its members of struct kernels. Calls only queue work, in the given stream. If the driver refuses a
 * call, the error is stored, and dev_ops.check() reports it later. Random numbers, masks and formulas are those of the
 * CPU, bit for bit where the contract requires it. Sums are split by shape alone, never by which block finishes first,
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
/* Select the GPU and format its name for messages. Returns -1 with *e filled if the GPU cannot be used. */
int cuda_device_open(int ordinal, struct err *e);
void cuda_device_close(void);
int cuda_sm_count(void);
/*
 * Record a failure, which check() reports later. If a failure is already recorded, the new failure is ignored. `what`
 * must be a string literal.
 */
void cuda_record_fault(const char *what, cudaError_t status);
/*
 * Record a failure of another library, which `text` describes. If a failure is already recorded, the new failure is
 * ignored.
 */
void cuda_record_fault_text(const char *what, const char *text);
/* Must be called after each launch of a kernel. If the launch was refused, the failure is recorded. */
void cuda_launched(const char *what);
/*
 * Returns a scratch buffer of CUDA_ROOM_BYTES bytes that belongs to a stream, aligned to 256 bytes. Its contents are
 * valid during one call only, because the next user in the same stream may overwrite them. Returns NULL and records the
 * failure if there is not enough memory.
 */
#define CUDA_ROOM_BYTES (64u << 20)
void *cuda_room(struct dev_stream *s);

/* ---- nccl.cu ---- */
const struct dev_net *cuda_net_open(struct err *e);

/* ---- each source file has a function that sets its members of *k ---- */
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
