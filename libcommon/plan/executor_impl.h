/*
 * executor_impl.h - declarations that are shared by the executor*.c files
 *
 *   executor.c          the run, its workers, and the sequence of steps
 *   executor_cut.c      where a chunk of an item ends, and which chunk a worker gets next
 *   executor_chunk.c    start and end of chunks and items
 *   executor_read.c     read as many pieces as fit in the input buffer of a chunk, in whole blocks
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
 * buffer only from the gather to the end of its write. If the bytes of a chunk are already aligned for the disk, they
 * are not copied, but written from the input buffer.
 *
 * Chunks cannot wait for buffers forever: a chunk starts only while two buffers are free, so one is left as the output
 * buffer of another chunk, and the write of that chunk needs no further buffer.
 *
 * A step does not call the next step. It returns which step is next, and executor.c executes it. The files therefore
 * depend on each other in one direction: executor -> gather -> write -> chunk -> cut, and executor -> read.
 *
 * If a function returns bool, false means that the run has failed and exec_fail() has recorded the error, unless its
 * comment states otherwise.
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
    MAX_PIECES = 64,            /* maximum number of pieces per round */
    MAX_REQS = 32,              /* maximum number of requests in flight per chunk */
    /* extra space per buffer, because the blocks that contain a piece extend beyond the piece */
    SLACK = 64 << 10,
    SMALL_WRITE = 64 << 10,     /* smaller writes use only the page cache, because a second descriptor would cost
                                 * more */
};

/* ---- the run as a whole ---- */

/*
 * A range of the plan whose chunks are processed in order. Usually there is one lane for the whole plan. If the
 * destinations are on an in-memory file system, there are several lanes (executor_cut.c).
 */
struct exec_lane {
    int item, end;              /* item: the next item; end: first item after the range */
    uint64_t at;                /* number of bytes of the item that workers have received */
    bool twin;                  /* the next chunk is that of the second of two twin items */
};

struct run {
    struct plan *plan;
    const struct exec_opts *o;
    struct outputs *outputs;
    struct tiles *tiles;
    uint64_t chunk;
    int max_reads;              /* maximum number of reads in flight per chunk; MAX_REQS, or less if there are few
                                 * descriptors */
    bool uring;
    _Atomic bool direct_reads, used_direct;
    _Atomic uint64_t read_bytes, write_bytes;

    pthread_mutex_t lock;       /* protects the members below */
    int n_lanes;
    struct exec_lane *lane;
    struct err err;
    _Atomic bool stop;
};

/* Stop all workers. Record the error, except if the run has already failed. Returns false. */
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
    EXEC_FAILED,                /* release the chunk: it has failed, the error has been recorded, and no request is
                                 * in flight */
    EXEC_WAIT,                  /* wait until the requests of the chunk have ended */
    EXEC_READ,                  /* start the next round of reads */
    EXEC_READY,                 /* all bytes have been read; the chunk waits to be gathered */
    EXEC_WRITE,
    EXEC_END,
};

enum chunk_state { CHUNK_UNUSED, CHUNK_READING, CHUNK_READY, CHUNK_WRITING };

struct chunk {
    enum chunk_state state;
    struct gather g;
    struct tmap_cursor cursor;
    bool last_round;
    uint8_t *in, *out;          /* its buffers; NULL if it has none */
    uint64_t in_used;           /* number of bytes of `in` that the current round of reads uses */
    const uint8_t *result;      /* address of the first byte that is to be written */
    uint64_t dst_at;
    bool pinned, failed;
    int n_pieces, n_reqs, n_under_way;
    struct tmap_piece piece[MAX_PIECES];
    const uint8_t *src[MAX_PIECES];
    struct request {
        struct io_req io;
        struct chunk *chunk;
        int file;               /* for a read, number of the file; for a write, number of the destination */
        bool direct;
        /* for a read: number of bytes that are needed; the remaining bytes only complete blocks */
        size_t wanted;
        uint64_t first, origin; /* for a write: offset in the destination file at which the write begins, and offset at
                                 * which the output of the item begins */
    } req[MAX_REQS];            /* the reads of a round, and later the writes */
};

struct worker {
    struct run *x;
    int lane;                   /* the lane from which the worker takes chunks first */
    struct io_engine *io;
    uint8_t **free_buf;         /* a stack, because the buffer that was used last is most likely in the cache */
    int n_free, n_bufs;
    int n_active, n_reading;    /* n_active: number of chunks in progress; n_reading: number of those that have not been
                                 * gathered yet */
    struct chunk *chunk;        /* [n_bufs] */
    struct chunk **ready;       /* chunks that wait to be gathered, first in, first out */
    int n_ready;
    bool exhausted;             /* the plan has no chunks left */
};

/* Returns the size of the chunk's output in bytes. */
static inline uint64_t exec_out_len(const struct chunk *c)
{
    return plan_out_bytes(c->g.item, c->g.len);
}

/* ---- executor_cut.c ---- */

/* Returns the chunk size of an item. Chunks end at multiples of this size in the destination. */
uint64_t exec_chunk_bytes(const struct run *x, const struct plan_item *it);
/* Returns the smallest chunk size that has room for one row of every item whose columns are distributed. */
uint64_t exec_widest_columns(struct plan *p);
/*
 * Create the lanes: one lane for all workers, or one for each worker. Must be called before the workers start. The
 * caller frees x->lane.
 */
void exec_share_lanes(struct run *x, int workers);
/*
 * Get the next chunk of a lane. If that lane has no more chunks, gets a chunk from the next lane that has one. Returns
 * false if no lane has chunks, or if the run was stopped.
 */
bool exec_next_chunk(struct run *x, int lane, int *item, uint64_t *at, uint64_t *len);

/* ---- executor_chunk.c ---- */

/* Start another chunk. Returns NULL if the plan has no chunks left, or if too few buffers are free. */
struct chunk *exec_start_chunk(struct worker *w);
/* Finish a chunk that has been checked, written, or stored in a tile. */
void exec_end_chunk(struct worker *w, struct chunk *c);
/* Release all resources of a chunk. None of its requests may be in flight. */
void exec_drop_chunk(struct worker *w, struct chunk *c);
/* If *buf is not NULL, return it to the free buffers and set *buf to NULL. */
void exec_give_buf(struct worker *w, uint8_t **buf);
/* Open the destinations of the chunk, and keep them open until the chunk is released. */
void exec_pin(struct run *x, struct chunk *c);

/* ---- executor_read.c ---- */

/* Collect as many pieces as fit in the input buffer, and start to read them. */
enum exec_step exec_read_round(struct worker *w, struct chunk *c);
/* Process a read request that has ended. If it has read fewer bytes than requested, another request reads the rest. */
bool exec_read_came(struct worker *w, struct request *r);

/* ---- executor_gather.c ---- */

/* Choose where the output of the chunk is stored. Returns false if a buffer is needed and none is free. */
bool exec_find_place(struct worker *w, struct chunk *c);
/* Gather the pieces of a round. They must have been read, and exec_find_place() must have returned true. */
enum exec_step exec_gather_round(struct worker *w, struct chunk *c);

/* ---- executor_write.c ---- */

/* Write the output of a chunk, or start to write it. */
enum exec_step exec_write_chunk(struct worker *w, struct chunk *c);
/* Write a tile of a transposed matrix. Returns when it has been written. */
bool exec_write_tile(struct run *x, const struct plan_item *it, const struct tile *t);
/*
 * Process a write request that has ended. If it has written fewer bytes than requested, another request writes the
 * rest.
 */
bool exec_write_came(struct worker *w, struct request *r);

#endif
