/*
 * executor.h - run a plan on all cores, in one pass over the data, with a fixed amount of memory
 *
 * Worker threads process chunks of items in order. Each worker has its own io_uring, and a few buffers from a pool made
 * of huge pages. It reads the extents of a chunk with O_DIRECT, computes their part of the CRCs of the source records,
 * gathers them in the order of the destination, computes the CRC of the result (the CRC of the item), and writes it.
 * Bytes that do not fill a 4 KiB block of the destination are written through the page cache, so that writes to
 * adjacent ranges never overwrite each other. If io_uring or O_DIRECT is refused (containers, tmpfs, NFS), pread and
 * pwrite are used instead, and written ranges are then removed from the page cache.
 */
#ifndef SHARDKIT_PLAN_EXECUTOR_H
#define SHARDKIT_PLAN_EXECUTOR_H

#include <pthread.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "libcommon/plan/plan.h"

struct exec_opts {
    int threads;                /* >= 1 */
    /*
     * Size of the buffer pool. If it is less than 8 MiB, 8 MiB are used. Transposing needs up to 96 MiB in addition
     * (tiles.h).
     */
    uint64_t mem_bytes;
    bool buffered;              /* never use O_DIRECT (tests, unusual file systems) */
    bool no_uring;              /* use pread and pwrite even if io_uring is available (tests) */
    uint64_t chunk_bytes;       /* size of a chunk, a multiple of 4096; tests set it to small values; 0: derived from
                                 * mem_bytes */
    bool (*stopped)(void);      /* called between chunks; if it returns true, the run ends with ERR_STOP. May be NULL */
    struct progress *progress;  /* is advanced by plan_read_bytes() in total; may be NULL */
    /*
     * Called once for each item, by any thread, when the last byte of the item has been checked or written (but not
     * synced). It is also called for the check-only items that plan_close() adds; their `user` is NULL. If it returns
     * -1 with *e filled, the run ends. May be NULL.
     */
    int (*item_done)(void *ctx, struct plan_item *it, struct err *e);
    void *ctx;
    /*
     * Called with the bytes of every chunk of an item, by any thread. This allows checks of the values during the run.
     * The bytes are those of the logical tensor, in its order; replicas have been combined, and elements converted.
     * Each byte is passed once. `from` and `len` count converted bytes. `from` is the offset from the start of the
     * tensor, not of the item. Transposed items are not passed. If it returns -1 with *e filled, the run ends. May be
     * NULL.
     */
    int (*look)(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes,
                uint64_t len, struct err *e);
    /*
     * Report for the finding "crc" of each complete record with a wrong CRC; the run then continues. If this is NULL,
     * such a record ends the run with an error.
     */
    struct report *report;
};

struct exec_stats {
    uint64_t read_bytes, write_bytes;   /* bytes of tensors; extra bytes that only complete blocks are not counted */
    double wall_s;
    bool used_uring, used_direct;
};

/*
 * Run every item that does not have `done` set. The plan must be closed. `done` is not changed, because it describes
 * what an earlier run has completed. Destination files must already have their final length. Their space should be
 * allocated, because a write to unallocated space takes a lock of the file system. Returns 0, or -1 with the first
 * failure:
 *   ERR_SYS    a system call failed; *e has the path and errno
 *   ERR_DATA   a file is shorter than when the plan was built; a record that was read completely has a wrong CRC; or
 *              replicas disagree under REPLICAS_FAIL
 *   ERR_STOP   stopped() returned true
 */
MUST_CHECK int exec_run(struct plan *p, const struct exec_opts *o, struct exec_stats *st, struct err *e);

/* ---- items that are compared in pairs (executor_twins.c) ---- */

/*
 * The chunks of twins (plan.h) that were read before the chunks of the other item. There are never more kept chunks
 * than chunks in progress, so the memory is limited.
 */
struct twin_chunks {
    pthread_mutex_t lock;
    struct twin_chunk *waiting; /* chunks that wait for the chunk of the other item */
    struct twin_chunk *spare;   /* free buffers */
};
struct twin_chunk {
    struct twin_chunk *next;
    const void *pair;
    uint64_t from, room;        /* offset from the start of the tensor; size of `bytes` */
    bool second;                /* the bytes are those of the second item */
    uint64_t bytes[];           /* aligned for elements of any type */
};
void twin_chunks_init(struct twin_chunks *t);
void twin_chunks_free(struct twin_chunks *t);
/*
 * Functions for `look` that pair the chunks of two items. They are called in this order, by any thread, when a chunk of
 * one item of `pair` has been read. twin_chunk_pop() returns the chunk of the other item at the same offset, or NULL if
 * it has not been read yet. In the second case the caller gets a buffer with twin_chunk_new(), fills it with the bytes
 * that will be needed later, and leaves it with twin_chunk_leave(). If the other chunk has arrived in the meantime,
 * twin_chunk_leave() returns that chunk and releases the buffer. The caller releases a returned chunk with
 * twin_chunk_release().
 */
struct twin_chunk *twin_chunk_pop(struct twin_chunks *t, const void *pair, bool second, uint64_t from);
struct twin_chunk *twin_chunk_new(struct twin_chunks *t, uint64_t room);
struct twin_chunk *twin_chunk_leave(struct twin_chunks *t, struct twin_chunk *c, const void *pair, bool second,
                                    uint64_t from);
void twin_chunk_release(struct twin_chunks *t, struct twin_chunk *c);

#endif
