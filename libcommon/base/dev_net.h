/*
 * dev_net.h - communication between devices: the part of NCCL that comm.h needs, as an abstract interface
 *
 * The CUDA backend implements it (`net` in kernels.h) and comm_use_device() uses it, so neither folder includes the
 * other. Buffers are device memory. Calls only queue work in the given stream. A link connects some ranks, with one
 * device each. All members of a link must make the same calls on it in the same order.
 *
 * Functions return 0, or -1 (NULL) with *e filled. Failures after the work was queued are reported by check(). Only
 * the thread that communicates may call these functions.
 */
#ifndef SHARDKIT_BASE_DEV_NET_H
#define SHARDKIT_BASE_DEV_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/dtype.h"

#define DEV_NET_ID 128          /* size of a link's id in bytes */
#define DEV_NET_BLOB 256        /* bytes that members exchange in order to share memory */
#define DEV_NET_SHARERS 8       /* maximum number of members of a link that shares memory */

struct dev_link;

struct dev_net {
    const char *name;           /* "NCCL 2.28.9" */
    const struct dev_ops *dev;  /* provides the memory and streams; its who() identifies the device */
    /* Create the id of a new link. One member calls this and sends the id to the others. */
    int (*id_new)(void *id, struct err *e);
    /*
     * Open a link. Returns when all members have called it. `sms` is the maximum number of multiprocessors that the
     * link may use while other kernels compute; 0: no limit. `what` names the link in messages ("tp").
     */
    struct dev_link *(*open)(const void *id, int rank, int size, int sms, const char *what, struct err *e);
    void (*close)(struct dev_link *l);          /* NULL is allowed; may wait for the other members */
    /*
     * Share memory between devices of one host that can access each other's memory. offer() makes [base, base + bytes),
     * allocated by dev->alloc(), accessible to the other members, and also a buffer that can receive parts of `room`
     * bytes. It stores a description of both in `blob`. share() receives the blobs of all members in rank order. Later
     * calls on this link then use almost no multiprocessors in two cases: collectives between shared memory and, where
     * base is NULL, messages of at most `room` bytes to the member that has offered the buffer. offer() and share()
     * return false if sharing is impossible here. All members must then call unshare(), which restores the previous
     * state.
     */
    bool (*offer)(struct dev_link *l, void *base, uint64_t bytes, uint64_t room, void *blob);
    bool (*share)(struct dev_link *l, const void *blobs);
    void (*unshare)(struct dev_link *l);
    /*
     * Reduce like comm_all_reduce() in comm.h. The dtypes F64, F32, BF16, I64, I32 and U8 are supported. The result is
     * the maximum if `max` is true, and otherwise the sum.
     */
    int (*all_reduce)(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                      struct dev_stream *s, struct err *e);
    int (*reduce_scatter)(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                          struct dev_stream *s, struct err *e);
    int (*all_gather)(struct dev_link *l, const void *in, void *out, uint64_t n_bytes, struct dev_stream *s,
                      struct err *e);
    int (*broadcast)(struct dev_link *l, void *buf, uint64_t n_bytes, int root, struct dev_stream *s, struct err *e);
    /*
     * Send to the other member of a link of two, or receive from it. Later work in stream s runs only after the other
     * member has made the matching call.
     */
    int (*send)(struct dev_link *l, const void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e);
    int (*recv)(struct dev_link *l, void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e);
    /*
     * Returns -1 if a link has failed. *e then names the first link that failed: "NCCL 2.28.9, group tp: remote process
     * has exited". Does not wait.
     */
    int (*check)(struct err *e);
};

#endif
