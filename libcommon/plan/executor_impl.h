/*
 * executor_impl.h - declarations that are shared by the executor*.c files
 *
 *   executor.c          the run, its workers, and the sequence of steps
 *   executor_cut.c      where a chunk of an item ends, and which chunk a worker gets next
 *   executor_chunk.c    start and end of chunks and items
 *   executor_read.c     read as many pieces as fit in a chunk's buffer, in whole blocks
 *   executor_gather.c   choose the output buffer, and call gather.c
 *   executor_write.c    write whole blocks with O_DIRECT, the rest through the page cache
 *
 * A single worker executes all steps of a chunk:
 *
 *   exec_next_chunk     get the next part of the plan, cut so that it ends at a multiple of the chunk size
 *                       in the destination; exec_start_chunk() assigns it an input buffer
 *   exec_read_round     read as many pieces as fit in that buffer, each as the 4 KiB blocks that contain it
 *   exec_gather_round   hash, and copy to an output buffer; start another round if pieces are left, else
 *                       convert and transpose
 *   exec_write_chunk    write whole 4 KiB blocks with O_DIRECT, and the partial blocks at both ends through
 *                       the page cache, so that writes to the same block never overwrite each other. An item
 *                       whose columns are distributed is copied through the chunk's other buffer, where the
 *                       bytes of each destination are contiguous
 *   exec_end_chunk      finish the chunk and, after the last chunk of an item, the item
 *
 * A worker keeps many chunks in progress and uses at most half of its buffers for reading. A chunk holds an output
 * buffer only from the gather to the end of its write. A chunk whose bytes need no copy (they are already aligned
 * for the disk) is written from its input buffer.
 *
 * There is no deadlock over buffers: a chunk starts only while two buffers are free, so one remains for some
 * gathered chunk, and the write of that chunk needs no further buffer.
 *
 * A step does not call the next step. It returns which step is next, and executor.c executes it. The files
 * therefore depend on each other in one direction: executor -> gather -> write -> chunk -> cut, and executor ->
 * read.
 *
 * Functions that return bool return false if the run has failed and the error has been recorded (exec_fail()),
 * except where their comment differs.
 */
#ifndef SHARDKIT_PLAN_EXECUTOR_IMPL_H
#define SHARDKIT_PLAN_EXECUTOR_IMPL_H

#include <pthread.h>

#include "libcommon/plan/executor.h"
#include "libcommon/plan/gather.h"
#include "libcommon/plan/io_engine.h"
#include "libcommon/plan/outputs.h"
#include "libcommon/plan/tiles.h"

enum {
    BLOCK = 4096,               /* unit of O_DIRECT; no two writes share a block of a file */
    MAX_PIECES = 64,            /* maximum per round */
    MAX_REQS = 32,              /* maximum in flight per chunk */
    SLACK = 64 << 10,           /* extra space per buffer, for blocks that extend beyond the pieces */
    SMALL_WRITE = 64 << 10,     /* smaller writes use the page cache: two descriptors cost more */
};

/* ---- the run as a whole ---- */

/*
 * A part of the plan whose chunks are handed out in order. There is one lane for the whole plan, unless the
 * destinations are stored in memory (executor_cut.c).
 */
struct exec_lane {
    int item, end;              /* next item; end of the range (exclusive) */
    uint64_t at;                /* bytes of the item that have been handed out */
    bool twin;                  /* for twins: the chunk of the second twin is next */
};

struct run {
    struct plan *plan;
    const struct exec_opts *o;
    struct outputs *outputs;
    struct tiles *tiles;
    uint64_t chunk;
    int max_reads;              /* maximum in flight per chunk: MAX_REQS unless descriptors are few */
    bool uring;
    _Atomic bool direct_reads, used_direct;
    _Atomic uint64_t read_bytes, write_bytes;

    pthread_mutex_t lock;       /* protects the members below */
    int n_lanes;
    struct exec_lane *lane;
    struct err err;
    _Atomic bool stop;
};

/* Record an error, if it is the first of the run, and stop all workers. Returns false. */
static inline bool exec_fail(struct run *x, const struct err *e)
{
    pthread_mutex_lock(&x->lock);
    if (x->err.kind == ERR_NONE)
        x->err = *e;
    x->stop = true;
    pthread_mutex_unlock(&x->lock);
    return false;
}

/* ---- a worker ---- */

/* The next step of a chunk. */
enum exec_step {
    EXEC_FAILED,                /* drop it: none of its requests are in flight, and the error has been recorded */
    EXEC_WAIT,                  /* wait for its requests */
    EXEC_READ,                  /* read another round */
    EXEC_READY,                 /* its bytes are in memory; it is queued to be gathered */
    EXEC_WRITE,
    EXEC_END,
};

enum chunk_state { CHUNK_UNUSED, CHUNK_READING, CHUNK_READY, CHUNK_WRITING };

struct chunk {
    enum chunk_state state;
    struct gather g;
    struct tmap_cursor cursor;
    bool last_round;
    uint8_t *in, *out;          /* buffers; NULL if not held */
    uint64_t in_used;           /* bytes of `in` that the reads of the current round use */
    const uint8_t *result;      /* address of the first byte to be written */
    uint64_t dst_at;
    bool pinned, failed;
    int n_pieces, n_reqs, n_under_way;
    struct tmap_piece piece[MAX_PIECES];
    const uint8_t *src[MAX_PIECES];
    struct request {
        struct io_req io;
        struct chunk *chunk;
        int file;               /* read: file number, for messages; write: number of the destination */
        bool direct;
        size_t wanted;          /* read: bytes that are needed; the others complete the blocks */
        uint64_t first, origin; /* write: offsets in the destination file where this write, and the item's output,
                                 * begin */
    } req[MAX_REQS];            /* the reads of a round, later the writes */
};

struct worker {
    struct run *x;
    int lane;                   /* the lane that the worker prefers */
    struct io_engine *io;
    uint8_t **free_buf;         /* a stack: the most recently used buffer is most likely in the cache */
    int n_free, n_bufs;
    int n_active, n_reading;    /* number of chunks started; of these, the number not gathered yet */
    struct chunk *chunk;        /* array of n_bufs */
    struct chunk **ready;       /* queue, first in, first out */
    int n_ready;
    bool exhausted;             /* the plan has no more chunks */
};

/* Returns the size of the chunk's output in bytes. */
static inline uint64_t exec_out_len(const struct chunk *c)
{
    return plan_out_bytes(c->g.item, c->g.len);
}

/* ---- executor_cut.c ---- */

/* Returns the chunk size of an item: chunks end at multiples of this size in the destination. */
uint64_t exec_chunk_bytes(const struct run *x, const struct plan_item *it);
/* Returns the minimum chunk size that holds one row of every item whose columns are distributed. */
uint64_t exec_widest_columns(struct plan *p);
/* Create the lanes before the workers start: one, or one per worker. The caller frees x->lane. */
void exec_share_lanes(struct run *x, int workers);
/*
 * Get the next chunk of a lane or, if it has none left, of the next lane that has one. Returns false if there is
 * none or the run was stopped.
 */
bool exec_next_chunk(struct run *x, int lane, int *item, uint64_t *at, uint64_t *len);

/* ---- executor_chunk.c ---- */

/* Start one more chunk. Returns NULL if the plan has none left, or if too few buffers are free. */
struct chunk *exec_start_chunk(struct worker *w);
/* Finish a chunk that has been checked, written, or stored in a tile. */
void exec_end_chunk(struct worker *w, struct chunk *c);
/* Release the resources of a chunk. None of its requests may be in flight. */
void exec_drop_chunk(struct worker *w, struct chunk *c);
/* Return a buffer to the free list, if *buf is not NULL, and set *buf to NULL. */
void exec_give_buf(struct worker *w, uint8_t **buf);
/* Keep the chunk's destinations open until the chunk is dropped. */
void exec_pin(struct run *x, struct chunk *c);

/* ---- executor_read.c ---- */

/* Collect pieces until the buffer is full, and start their reads. */
enum exec_step exec_read_round(struct worker *w, struct chunk *c);
/* Process a finished read request. A short read is continued with another request. */
bool exec_read_came(struct worker *w, struct request *r);

/* ---- executor_gather.c ---- */

/* Choose the location of the chunk's output. Returns false if that requires a buffer and none is free. */
bool exec_find_place(struct worker *w, struct chunk *c);
/* Gather the pieces of a round. They must be in memory, and exec_find_place() must have succeeded. */
enum exec_step exec_gather_round(struct worker *w, struct chunk *c);

/* ---- executor_write.c ---- */

/* Write the complete result. */
enum exec_step exec_write_chunk(struct worker *w, struct chunk *c);
/* Write a tile of a transposed matrix synchronously. */
bool exec_write_tile(struct run *x, const struct plan_item *it, const struct tile *t);
/* Process a finished write request. A short write is continued with another request. */
bool exec_write_came(struct worker *w, struct request *r);

#endif
