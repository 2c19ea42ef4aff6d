/*
 * executor_impl.h - what the executor*.c files share; for the room only
 *
 *   executor.c          the run, its workers, and what each does next
 *   executor_cut.c      where a chunk of an item ends, and who gets the next
 *   executor_chunk.c    a chunk begins and ends; an item ends with its last
 *   executor_read.c     as many pieces as fit a chunk's buffer, as reads of whole blocks
 *   executor_gather.c   where the result comes to lie, and gather.c's work on it
 *   executor_write.c    whole blocks with O_DIRECT, the rest through the page cache
 *
 * The life of a chunk, all in the hands of one worker:
 *
 *   exec_take_chunk     the next piece of the plan, cut so that it ends on a chunk-sized place of
 *                       the destination; exec_start_chunk() gives it a buffer for its input
 *   exec_read_round     as many pieces as fit that buffer, each read as the 4 KiB blocks it lies in
 *   exec_gather_round   hash, and copy into an output buffer; next round if pieces are left;
 *                       convert and transpose there
 *   exec_write_chunk    whole 4 KiB blocks with O_DIRECT, what sticks out at the ends through the
 *                       page cache, so that neighbours in one block never overwrite each other. An
 *                       item that is dealt out by columns goes through the chunk's other buffer,
 *                       where each destination's bytes come to lie together
 *   exec_end_chunk      and, for the last of an item, the item
 *
 * A worker keeps many chunks under way, at most half of its buffers reading. A chunk holds
 * an output buffer only from gather to the end of its write, and a chunk that needs no
 * copy (its bytes already lie right for the disk) writes from its input buffer.
 *
 * Nobody waits for buffers that cannot come: a chunk starts only while two are free, so
 * there is one for some gathered chunk, and that one's write needs nothing more.
 *
 * A step does not call the next one: it returns which that is, and executor.c takes it. So the files depend on each
 * other one way: executor -> gather -> write -> chunk -> cut, and executor -> read.
 *
 * Functions that return bool: false means that the run fails, and knows why (exec_fail());
 * unless it says otherwise.
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
    BLOCK = 4096,               /* O_DIRECT's unit, and the unit of ownership in a file */
    MAX_PIECES = 64,            /* of a round */
    MAX_REQS = 32,              /* of a chunk, under way */
    SLACK = 64 << 10,           /* of a buffer: room for blocks that stick out of the pieces */
    SMALL_WRITE = 64 << 10,     /* through the page cache: two descriptors cost more */
};

/* ---- the run as a whole ---- */

/* A share of the plan, handed out in order: all of it, unless the destinations lie in memory (executor_cut.c). */
struct exec_lane {
    int item, end;              /* the next, and behind the last */
    uint64_t at;                /* bytes of it that were handed out */
    bool twin;                  /* of twins, the second one's turn */
};

struct run {
    struct plan *plan;
    const struct exec_opts *o;
    struct outputs *outputs;
    struct tiles *tiles;
    uint64_t chunk;
    int max_reads;              /* of a chunk, under way: MAX_REQS unless descriptors are few */
    bool uring;
    _Atomic bool direct_reads, used_direct;
    _Atomic uint64_t read_bytes, write_bytes;

    pthread_mutex_t lock;       /* of what follows */
    int n_lanes;
    struct exec_lane *lane;
    struct err err;
    _Atomic bool stop;
};

/* The first failure is the run's, and stops all workers. Returns false. */
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

/* What a chunk's step leaves to be done with it. */
enum exec_step {
    EXEC_FAILED,                /* drop it: nothing of it is under way, and the run knows why */
    EXEC_WAIT,                  /* for its requests */
    EXEC_READ,                  /* another round */
    EXEC_READY,                 /* its bytes are in memory: to be gathered in its turn */
    EXEC_WRITE,
    EXEC_END,
};

enum chunk_state { CHUNK_UNUSED, CHUNK_READING, CHUNK_READY, CHUNK_WRITING };

struct chunk {
    enum chunk_state state;
    struct gather g;
    struct tmap_cursor cursor;
    bool last_round;
    uint8_t *in, *out;          /* buffers; NULL: none held */
    uint64_t in_used;           /* bytes of `in` that the reads of a round take */
    const uint8_t *result;      /* chunk byte 0 as it will be written */
    uint64_t dst_at;
    bool pinned, failed;
    int n_pieces, n_reqs, n_under_way;
    struct tmap_piece piece[MAX_PIECES];
    const uint8_t *src[MAX_PIECES];
    struct request {
        struct io_req io;
        struct chunk *chunk;
        int file;               /* read: number, for messages; write: the destination's */
        bool direct;
        size_t wanted;          /* read: bytes that must come; the rest fills up blocks */
        uint64_t first, origin; /* write: where it begins in the file, and where the item does */
    } req[MAX_REQS];            /* reads of a round, then writes */
};

struct worker {
    struct run *x;
    int lane;                   /* which it takes chunks of first */
    struct io_engine *io;
    uint8_t **free_buf;         /* a stack: the one used last is the warmest */
    int n_free, n_bufs;
    int n_active, n_reading;    /* chunks begun; of these, not yet gathered */
    struct chunk *chunk;        /* n_bufs of them */
    struct chunk **ready;       /* first come, first served */
    int n_ready;
    bool exhausted;             /* the plan has no more chunks */
};

/* Bytes of the chunk as they will be written. */
static inline uint64_t exec_out_len(const struct chunk *c)
{
    return plan_out_bytes(c->g.item, c->g.len);
}

/* ---- executor_cut.c ---- */

/* Where an item's chunks end: multiples of this in the destination. */
uint64_t exec_chunk_bytes(const struct run *x, const struct plan_item *it);
/* What a chunk must hold for a row of every item that is dealt out by columns. */
uint64_t exec_widest_columns(struct plan *p);
/* Before the workers begin: one lane, or one for each of them. The caller frees x->lane. */
void exec_share_lanes(struct run *x, int workers);
/* The next chunk of a lane, or of the next that has one: false when none has, or the run was stopped. */
bool exec_take_chunk(struct run *x, int lane, int *item, uint64_t *at, uint64_t *len);

/* ---- executor_chunk.c ---- */

/* One more chunk, to be read. NULL: the plan has none, or the buffers do not allow it. */
struct chunk *exec_start_chunk(struct worker *w);
/* It is checked, or written, or its bytes are in a tile. */
void exec_end_chunk(struct worker *w, struct chunk *c);
/* Give up what it holds; nothing of it is under way any more. */
void exec_drop_chunk(struct worker *w, struct chunk *c);
/* Put a buffer back among the free ones, if there is one, and forget it. */
void exec_give_buf(struct worker *w, uint8_t **buf);
/* Keep the chunk's destinations open until it is dropped. */
void exec_pin(struct run *x, struct chunk *c);

/* ---- executor_read.c ---- */

/* Take pieces until the buffer is full, then start their reads. */
enum exec_step exec_read_round(struct worker *w, struct chunk *c);
/* A read came back: whole, or its rest is started. */
bool exec_read_came(struct worker *w, struct request *r);

/* ---- executor_gather.c ---- */

/* Settle where the chunk's output comes to lie. False: that takes a buffer and there is none now. */
bool exec_find_place(struct worker *w, struct chunk *c);
/* The pieces of a round are in memory and there is a place for them. */
enum exec_step exec_gather_round(struct worker *w, struct chunk *c);

/* ---- executor_write.c ---- */

/* The result is complete. */
enum exec_step exec_write_chunk(struct worker *w, struct chunk *c);
/* Write a tile of a transposed matrix, at once. */
bool exec_write_tile(struct run *x, const struct plan_item *it, const struct tile *t);
/* A write came back: whole, or its rest is started. */
bool exec_write_came(struct worker *w, struct request *r);

#endif
