/*
 * dev_net.h - messages between devices: what comm.h needs of NCCL, without knowing it
 *
 * The CUDA backend fills it (kernels.h, net) and comm_use_device() takes it, so neither
 * room includes the other. Buffers are device memory; calls only queue, in the stream that is given.
 * A link joins some ranks, one device each; all members call the same things of a link
 * in the same order.
 *
 * Errors: 0, or -1 (NULL) with *e filled. What fails after it was queued is told by check().
 * Threads: the one that communicates.
 */
#ifndef SHARDKIT_BASE_DEV_NET_H
#define SHARDKIT_BASE_DEV_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/dev.h"
#include "libcommon/base/dtype.h"

#define DEV_NET_ID 128          /* bytes of a link's id */
#define DEV_NET_BLOB 256        /* bytes that members tell each other to share memory */
#define DEV_NET_SHARERS 8       /* members at most of a link that shares memory */

struct dev_link;

struct dev_net {
    const char *name;           /* "NCCL 2.28.9" */
    const struct dev_ops *dev;  /* whose memory and streams these are; its who() names the device */
    /* One member makes the id of a new link and hands it to the others. */
    int (*id_new)(void *id, struct err *e);
    /*
     * Returns when all members have called it. sms: the multiprocessors it may take, since it works while
     * others compute; 0: as many as it likes. `what` ("tp") is for messages.
     */
    struct dev_link *(*open)(const void *id, int rank, int size, int sms, const char *what, struct err *e);
    void (*close)(struct dev_link *l);          /* NULL is fine; may wait for the other members */
    /*
     * Devices of one host may reach each other's memory. offer() makes [base, base + bytes) of dev->alloc()
     * reachable, and as much room as is needed to receive parts of `room` bytes, and says how in blob; share()
     * takes all members' blobs in rank order. From then on calls of this link go that way where they can, with next
     * to no multiprocessors: collectives between memory that is shared, and, where base is NULL, messages of
     * `room` bytes at most to the member that has offered it. false: not possible here; unshare() then, on all
     * members, as if nothing had been.
     */
    bool (*offer)(struct dev_link *l, void *base, uint64_t bytes, uint64_t room, void *blob);
    bool (*share)(struct dev_link *l, const void *blobs);
    void (*unshare)(struct dev_link *l);
    /* As in comm.h; dtypes F64 F32 BF16 I64 I32 U8; `max` or the sum. */
    int (*all_reduce)(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                      struct dev_stream *s, struct err *e);
    int (*reduce_scatter)(struct dev_link *l, const void *in, void *out, int64_t n, enum dtype t, bool max,
                          struct dev_stream *s, struct err *e);
    int (*all_gather)(struct dev_link *l, const void *in, void *out, uint64_t n_bytes, struct dev_stream *s,
                      struct err *e);
    int (*broadcast)(struct dev_link *l, void *buf, uint64_t n_bytes, int root, struct dev_stream *s, struct err *e);
    /* Of a link of two: to, and from, the other. The stream stands until the other has come. */
    int (*send)(struct dev_link *l, const void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e);
    int (*recv)(struct dev_link *l, void *buf, uint64_t n_bytes, struct dev_stream *s, struct err *e);
    /* The first link that something has happened to: "NCCL 2.28.9, group tp: remote process has exited". No waiting. */
    int (*check)(struct err *e);
};

#endif
