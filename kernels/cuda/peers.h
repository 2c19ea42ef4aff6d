/*
 * peers.h - collectives between GPUs of one host without their multiprocessors
 *
 * Each member can reach the others' memory, so parts of tensors are pushed by the copy engines, over NVLink,
 * and arrival is told by words that the stream itself writes and waits for: while parts travel,
 * nothing runs on the multiprocessors, whose products would otherwise lose as much as the overlap
 * gains (NCCL's blocks displace theirs). Only adding up the parts is a kernel, a short one.
 *
 * Sums are ((x_0 + x_1) + x_2) + ... in rank order, in fp32, rounded once: the CPU's bits (comm.h).
 *
 * All members make the same calls in the same order, in one stream each.
 */
#ifndef SHARDKIT_KERNELS_CUDA_PEERS_H
#define SHARDKIT_KERNELS_CUDA_PEERS_H

#include "kernels/cuda/common.h"

struct peers;

#define PEERS_MOST DEV_NET_SHARERS      /* members; who plans memory counts on it */

/*
 * Make [base, base + bytes), memory of dev->alloc() or NULL, and a box of our own reachable. room: bytes that each
 * member may leave in the box at once, the same for all who add up; larger sums go in pieces. Fills blob, DEV_NET_BLOB
 * bytes for the others. NULL when that is not possible here.
 */
struct peers *peers_offer(int rank, int size, void *base, uint64_t bytes, uint64_t room, void *blob);
/* blobs: all members', in rank order. false: some member cannot be reached. */
bool peers_open(struct peers *p, const void *blobs);
void peers_close(struct peers *p);      /* NULL is fine; every stream that works here has ended */

/*
 * As in dev_net.h. false, and nothing is queued, where it is not for peers: the outputs that others
 * write into (all_reduce, all_gather) must lie in the shared memory, parts must be of whole 16 bytes; `p` may be NULL.
 */
bool peers_all_reduce(struct peers *p, const void *in, void *out, int64_t n, enum dtype t, cudaStream_t s);
bool peers_reduce_scatter(struct peers *p, const void *in, void *out, int64_t n, enum dtype t, cudaStream_t s);
bool peers_all_gather(struct peers *p, const void *in, void *out, uint64_t n_bytes, cudaStream_t s);
/* Of two members, of which one only sends and the other only receives, into room at least as large as the message. */
bool peers_send(struct peers *p, const void *buf, uint64_t n_bytes, cudaStream_t s);
bool peers_recv(struct peers *p, void *buf, uint64_t n_bytes, cudaStream_t s);

#endif
