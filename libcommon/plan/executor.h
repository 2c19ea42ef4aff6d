/*
 * executor.h - run a plan on all cores, in one pass over the data, with a fixed amount of memory
 *
 * Worker threads process chunks of items in order. Each worker has its own io_uring and a few slots of a buffer
 * pool made of huge pages. A slot reads the extents of its chunk with O_DIRECT, hashes them (source record CRC),
 * gathers them in the order of the destination, hashes the result (item CRC), and writes it. Bytes that do not fill
 * a 4 KiB block of the destination are written through the page cache, so that writes to adjacent ranges never
 * overwrite each other. Where io_uring or O_DIRECT is refused (containers, tmpfs, NFS), the same slots use pread
 * and pwrite, and written ranges are dropped from the page cache afterwards.
 */
#ifndef SHARDKIT_PLAN_EXECUTOR_H
#define SHARDKIT_PLAN_EXECUTOR_H

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "libcommon/plan/plan.h"

struct exec_opts {
    int threads;                /* >= 1 */
    /* Size of the buffer pool. At least 8 MiB are used regardless, and up to 96 MiB more to transpose (tiles.h). */
    uint64_t mem_bytes;
    bool buffered;              /* never use O_DIRECT (tests, unusual file systems) */
    bool no_uring;              /* use pread and pwrite even if io_uring is available (tests) */
    uint64_t chunk_bytes;       /* 0: derived from mem_bytes; tests set small values, multiples of 4096 */
    bool (*stopped)(void);      /* polled between chunks; true ends the run with ERR_STOP. May be NULL */
    struct progress *progress;  /* advanced to plan_read_bytes() in total; may be NULL */
    /*
     * Called once for each item, by any thread, when its last byte has been written (not yet synced) or checked.
     * Also called for the check-only items of plan_close(), whose user is NULL. Returning -1 with *e filled ends
     * the run. May be NULL.
     */
    int (*item_done)(void *ctx, struct plan_item *it, struct err *e);
    void *ctx;
    /*
     * Called with every chunk of an item, in the byte order of the logical tensor (replicas combined, elements
     * converted), by any thread. Each byte is passed once. `from` and `len` count bytes as written, from the start
     * of the tensor, not of the item. For checks that need the values during the run. Transposed items are not
     * passed. Returning -1 with *e filled ends the run. May be NULL.
     */
    int (*look)(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes,
                uint64_t len, struct err *e);
    /*
     * A complete record whose CRC is wrong is added to this report with code "crc", and the run continues. NULL: it
     * ends the run.
     */
    struct report *report;
};

struct exec_stats {
    uint64_t read_bytes, write_bytes;   /* payload bytes, without alignment padding */
    double wall_s;
    bool used_uring, used_direct;
};

/*
 * Run every item that is not done. The plan must be closed. `done` is not changed: it describes what an earlier run
 * did. Destination files must already have their final length, and should be preallocated: writing into holes costs
 * the file system a lock. Returns 0, or -1 with the first failure: ERR_SYS (path and errno), ERR_DATA (a file is
 * shorter than when the plan was built; a complete record has a wrong CRC, reported as soon as it is detected;
 * replicas disagree under REPLICAS_FAIL), ERR_STOP.
 */
MUST_CHECK int exec_run(struct plan *p, const struct exec_opts *o, struct exec_stats *st, struct err *e);

#endif
