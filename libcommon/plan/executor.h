/*
 * executor.h - run a plan: all cores, one pass over the data, a fixed amount of memory
 *
 * Worker threads take chunks of items in order. Each worker owns an io_uring and a few
 * slots of a buffer pool made of huge pages; a slot reads its chunk's extents with
 * O_DIRECT, hashes them (source record CRC), gathers them into the destination's order,
 * hashes that (item CRC), and writes it. Bytes that do not fill a 4 KiB block of the
 * destination go through the page cache, so neighbours never overwrite each other.
 * Where io_uring or O_DIRECT is refused (containers, tmpfs, NFS) the same slots are
 * served by pread/pwrite, and written ranges are dropped from the page cache behind us.
 */
#ifndef SHARDKIT_PLAN_EXECUTOR_H
#define SHARDKIT_PLAN_EXECUTOR_H

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "libcommon/plan/plan.h"

struct exec_opts {
    int threads;                /* >= 1 */
    /* Buffer pool; at least 8 MiB are used whatever is asked, and up to 96 MiB more to transpose (tiles.h). */
    uint64_t mem_bytes;
    bool buffered;              /* never O_DIRECT (tests, odd file systems) */
    bool no_uring;              /* pread and pwrite even where io_uring is to be had (tests) */
    uint64_t chunk_bytes;       /* 0: chosen from mem_bytes; tests ask for small ones, multiples of 4096 */
    bool (*stopped)(void);      /* asked now and then; true ends the run with ERR_STOP. May be NULL */
    struct progress *progress;  /* is told of plan_read_bytes() in all; may be NULL */
    /*
     * Called once for each item, by any thread, when its last byte is written (not yet
     * synced) or checked; the check-only items of plan_close() too (their user is NULL).
     * -1 with *e filled ends the run. May be NULL.
     */
    int (*item_done)(void *ctx, struct plan_item *it, struct err *e);
    void *ctx;
    /*
     * Shown every chunk of an item in the order of the logical tensor (replicas already
     * combined, elements converted), by any thread, each byte once; `from` and `len` count
     * bytes as written, from the tensor's start, not the item's. For checks that want the
     * values as they pass; items that are transposed do not pass here. -1 with *e filled ends
     * the run. May be NULL.
     */
    int (*look)(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes,
                uint64_t len, struct err *e);
    /* A complete record whose CRC is wrong is told here, code "crc", and the run goes on. NULL: it ends the run. */
    struct report *report;
};

struct exec_stats {
    uint64_t read_bytes, write_bytes;   /* useful bytes, without alignment slack */
    double wall_s;
    bool used_uring, used_direct;
};

/*
 * Run every item that is not done; the plan is closed. `done` stays as it was: it tells
 * what an earlier run did. Destination files have their final length already, and are
 * best preallocated: writing into holes costs the file system a lock. 0, or -1 with the
 * first failure: ERR_SYS (path and errno), ERR_DATA (a file shorter than at planning; a
 * complete record whose CRC is wrong, named as soon as it is seen; replicas that disagree
 * under REPLICAS_FAIL), ERR_STOP.
 */
MUST_CHECK int exec_run(struct plan *p, const struct exec_opts *o, struct exec_stats *st, struct err *e);

#endif
