/*
 * peers.h - collectives between the GPUs of one host that do not use their multiprocessors
 *
 * Each member can access the memory of the others. The copy engines push parts of tensors over NVLink. Arrival is
 * signalled by words that the stream itself writes and waits for. The transfers use no multiprocessors; only a short
 * kernel is needed to add the parts. (NCCL's blocks displace those of matrix products, which thereby lose as much time
 * as the overlap gains.)
 *
 * Sums are ((x_0 + x_1) + x_2) + ... in rank order, in fp32, rounded once. They have the same bits as on the CPU
 * (comm.h).
 *
 * All members must make the same calls in the same order, each in one stream.
 */
#ifndef SHARDKIT_KERNELS_CUDA_PEERS_H
#define SHARDKIT_KERNELS_CUDA_PEERS_H

#include "kernels/cuda/common.h"

struct peers;

#define PEERS_MOST DEV_NET_SHARERS      /* maximum number of members; memory planning depends on it */

/*
 * Make memory accessible to the other members. This is [base, base + bytes), which is memory of dev->alloc() or NULL,
 * and an internal buffer, called the box. `room` is the number of bytes that each member may store in the box at once.
 * All members that add must use the same value. Larger sums are processed in pieces. The DEV_NET_BLOB bytes that are
 * stored in `blob` must be sent to the other members. Returns NULL if memory cannot be shared here.
 */
struct peers *peers_offer(int rank, int size, void *base, uint64_t bytes, uint64_t room, void *blob);
/*
 * Open the memory of the other members. `blobs` are the blobs of all members, in rank order. Returns false if the
 * memory of a member cannot be accessed.
 */
bool peers_open(struct peers *p, const void *blobs);
void peers_close(struct peers *p);      /* NULL is allowed; all work in streams that use p must have ended */

/*
 * The calls of dev_net.h, implemented with shared memory. `p` may be NULL. A function queues nothing and returns false
 * unless two requirements are met. First, an output that other members write to (all_reduce, all_gather) is in the
 * shared memory. Second, parts are multiples of 16 bytes.
 */
bool peers_all_reduce(struct peers *p, const void *in, void *out, int64_t n, enum dtype t, cudaStream_t s);
bool peers_reduce_scatter(struct peers *p, const void *in, void *out, int64_t n, enum dtype t, cudaStream_t s);
bool peers_all_gather(struct peers *p, const void *in, void *out, uint64_t n_bytes, cudaStream_t s);
/*
 * Transfer messages between two members. One member only sends, and the other only receives. The receiver's room must
 * be at least as large as the message.
 */
bool peers_send(struct peers *p, const void *buf, uint64_t n_bytes, cudaStream_t s);
bool peers_recv(struct peers *p, void *buf, uint64_t n_bytes, cudaStream_t s);

#endif
