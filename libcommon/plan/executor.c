/*
 * The life of a chunk, all in the hands of one worker:
 *
 *   take_chunk   the next piece of the plan, cut so that it ends on a chunk-sized place of
 *                the destination; a buffer for its input
 *   read_round   as many pieces as fit that buffer, each read as the 4 KiB blocks it lies in
 *   gather       (gather.c) hash, and copy into an output buffer; next round if pieces are left;
 *                convert and transpose there
 *   write_chunk  whole 4 KiB blocks with O_DIRECT, what sticks out at the ends through the
 *                page cache, so that neighbours in one block never overwrite each other. An
 *                item that is dealt out by columns goes through the chunk's other buffer,
 *                where each destination's bytes come to lie together
 *   end_chunk    and, for the last of an item, end_item
 *
 * A worker keeps many chunks under way, at most half of its buffers reading. A chunk holds
 * an output buffer only from gather to the end of its write, and a chunk that needs no
 * copy (its bytes already lie right for the disk) writes from its input buffer.
 *
 * Nobody waits for buffers that cannot come: a chunk starts only while two are free, so
 * there is one for some gathered chunk, and that one's write needs nothing more.
 */
#include "libcommon/plan/executor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/gather.h"
#include "libcommon/plan/io_engine.h"
#include "libcommon/plan/outputs.h"
#include "libcommon/plan/tiles.h"

enum {
    BLOCK = 4096,               /* O_DIRECT's unit, and the unit of ownership in a file */
    MAX_PIECES = 64,            /* of a round */
    MAX_REQS = 32,              /* of a chunk, under way */
    MIN_MEM = 8 << 20,
    MIN_CHUNK = 1 << 20,
    MAX_CHUNK = 4 << 20,
    SLACK = 64 << 10,           /* of a buffer: room for blocks that stick out of the pieces */
    SMALL_WRITE = 64 << 10,     /* through the page cache: two descriptors cost more */
    MAX_BUFS = 8,               /* of a worker; more is no faster, and a VM gives new memory at 0.3 GB/s */
    CACHE_BYTES = 32 << 10,
    PLAIN_WORKERS = 4,          /* without io_uring a worker has one request under way */
};

/* ---- the run as a whole ---- */

struct run {
    struct plan *plan;
    const struct exec_opts *o;
    struct outputs *outputs;
    struct tiles *tiles;
    uint64_t chunk;
    bool uring;
    _Atomic bool direct_reads, used_direct;
    _Atomic uint64_t read_bytes, write_bytes;

    pthread_mutex_t lock;       /* of what follows */
    int next_item;
    uint64_t next_at;           /* bytes of it that were handed out */
    struct err err;
    _Atomic bool stop;
};

static bool run_fail(struct run *x, const struct err *e)
{
    pthread_mutex_lock(&x->lock);
    if (x->err.kind == ERR_NONE)
        x->err = *e;
    x->stop = true;
    pthread_mutex_unlock(&x->lock);
    return false;
}

/*
 * Dealt out by columns: whole rows, whose parts for each destination fit a buffer side by
 * side, each with a block to spare at either end; blocks, where a few rows make whole ones.
 */
static uint64_t column_chunk(const struct run *x, const struct plan_item *it)
{
    uint64_t n = (uint64_t)it->n_outs, row = n * it->part, part = plan_out_bytes(it, it->part);
    uint64_t room = min_u64(x->chunk, x->chunk + SLACK - n * 2 * BLOCK), rows = room / max_u64(row, n * part);
    uint64_t whole = BLOCK;

    assert(rows > 0 && it->map->op != TMAP_REPLICAS && !it->transpose_row);
    while (whole > 1 && part * (whole / 2) % BLOCK == 0)
        whole /= 2;
    return (rows < whole ? rows : align_down(rows, whole)) * row;
}

/* Where an item's chunks end: multiples of this in the destination. */
static uint64_t chunk_bytes(const struct run *x, const struct plan_item *it)
{
    uint64_t n = (uint64_t)it->map->n_slices, share;

    if (it->map->op != TMAP_REPLICAS || n < 2)
        return x->chunk;
    /* All copies lie side by side in one buffer. */
    share = (x->chunk + SLACK - BLOCK) / n;
    share = share >= BLOCK ? align_down(share, BLOCK) : align_down(share, 16);
    assert(share > 0);
    return min_u64(share, x->chunk);
}

/* Bytes from the item's byte `at` to the end of that chunk. */
static uint64_t cut_chunk(const struct run *x, const struct plan_item *it, uint64_t at)
{
    /* Counted in map bytes, of which a conversion may make half or twice as many: its output must fit a buffer too. */
    bool wider = plan_out_bytes(it, 2) > 2, narrower = plan_out_bytes(it, 2) < 2;
    uint64_t unit = chunk_bytes(x, it) / (wider ? 2 : 1);
    uint64_t place = (it->dst < 0 ? 0 : wider ? it->dst_at / 2 : narrower ? 2 * it->dst_at : it->dst_at) + at;
    uint64_t len = min_u64(unit - place % unit, it->len - at);

    if (it->transpose_row) {            /* whole rows: each becomes an element of every run */
        assert(it->transpose_row <= unit && it->len % it->transpose_row == 0 && it->dst >= 0);
        return min_u64(align_down(unit, it->transpose_row), it->len - at);
    }
    if (it->n_outs)
        return min_u64(column_chunk(x, it), it->len - at);
    /* Replicas are compared, and numbers converted, by elements: an odd destination must not cut one. */
    if ((it->map->op == TMAP_REPLICAS || it->op != PLAN_COPY) && at + len < it->len) {
        uint64_t elem = plan_elem_bytes(it);

        len = len >= elem ? align_down(at + len, elem) - at : min_u64(elem, it->len - at);
    }
    return len;
}

/* The next chunk in the order of items: false when there is none. */
static bool take_chunk(struct run *x, int *item, uint64_t *at, uint64_t *len)
{
    bool found = false;

    if (x->o->stopped && x->o->stopped()) {
        struct err e = {0};

        err_stop(&e);
        return run_fail(x, &e);
    }
    pthread_mutex_lock(&x->lock);
    while (!x->stop && x->next_item < plan_n(x->plan)) {
        const struct plan_item *it = plan_item(x->plan, x->next_item);

        if (it->done || (x->next_at == it->len && it->len)) {
            x->next_item++;
            x->next_at = 0;
            continue;
        }
        *item = x->next_item;
        *at = x->next_at;
        *len = cut_chunk(x, it, *at);
        x->next_at += *len;
        /* An empty item is one empty chunk. */
        x->next_item += it->len == 0;
        found = true;
        break;
    }
    pthread_mutex_unlock(&x->lock);
    return found;
}

/* ---- a worker ---- */

enum chunk_state { CHUNK_UNUSED, CHUNK_READING, CHUNK_READY, CHUNK_WRITING };

struct chunk {
    enum chunk_state state;
    struct gather g;
    struct tmap_cursor cursor;
    bool last_round;
    uint8_t *in, *out;          /* buffers; NULL: none held */
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

/* Bytes of a chunk that go to one file: [at, end) of it. */
struct span {
    int dst;
    const uint8_t *buf;
    uint64_t at, end, origin;
};

struct worker {
    struct run *x;
    struct io_engine *io;
    uint8_t **free_buf;         /* a stack: the one used last is the warmest */
    int n_free, n_bufs;
    int n_active, n_reading;    /* chunks begun; of these, not yet gathered */
    struct chunk *chunk;        /* n_bufs of them */
    struct chunk **ready;       /* first come, first served */
    int n_ready;
    bool exhausted;             /* the plan has no more chunks */
};

static void give_buf(struct worker *w, uint8_t **buf)
{
    if (*buf)
        w->free_buf[w->n_free++] = *buf;
    *buf = NULL;
}

/* Call `pin` for each of an item's destinations. */
static void pin_outputs(struct run *x, const struct plan_item *it, void (*pin)(struct outputs *o, int dst))
{
    if (it->dst >= 0)
        pin(x->outputs, it->dst);
    for (int i = 0; i < it->n_outs; i++)
        pin(x->outputs, it->out[i].dst);
}

/* Nothing of it is under way any more. */
static void drop_chunk(struct worker *w, struct chunk *c)
{
    w->n_reading -= c->state != CHUNK_WRITING;
    give_buf(w, &c->in);
    give_buf(w, &c->out);
    if (c->pinned)
        pin_outputs(w->x, c->g.item, outputs_unpin);
    c->pinned = c->failed = false;
    c->state = CHUNK_UNUSED;
    w->n_active--;
}

static bool replicas_disagree(struct run *x, const struct plan_item *it, struct err *e)
{
    uint64_t elem = (uint64_t)dtype_size(it->map->dtype);
    struct tmap_cursor c;
    struct tmap_piece pc;
    const struct record *r;

    if (it->map->op != TMAP_REPLICAS || it->policy != REPLICAS_FAIL || it->n_differ == 0)
        return false;
    tmap_begin(&c, it->map, it->from + it->first_differ * elem, elem, 0);
    if (!tmap_next(&c, UINT64_MAX, &pc))
        return false;
    r = files_record(plan_files(x->plan), pc.src.record);
    err_data(e, files_name(plan_files(x->plan), r->file), r->at + pc.src.at,
             "%s: %llu of %llu elements differ between the %d tensor-parallel copies, the first is element %llu",
             it->name, (unsigned long long)it->n_differ, (unsigned long long)(it->len / elem), it->map->n_slices,
             (unsigned long long)(it->from / elem + it->first_differ));
    return true;
}

static void end_item(struct run *x, struct plan_item *it)
{
    struct err e = {0};

    pin_outputs(x, it, outputs_item_done);
    if (replicas_disagree(x, it, &e) || (x->o->item_done && x->o->item_done(x->o->ctx, it, &e) < 0))
        run_fail(x, &e);
}

static void end_chunk(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    struct plan_item *it = c->g.item;
    uint64_t len = c->g.len, read = len * (it->map->op == TMAP_REPLICAS ? (uint64_t)it->map->n_slices : 1);

    atomic_fetch_add(&x->read_bytes, read);
    if (plan_writes(it))
        atomic_fetch_add(&x->write_bytes, plan_out_bytes(it, len));
    progress_add(x->o->progress, read);
    drop_chunk(w, c);
    if (atomic_fetch_sub(&it->left, len) == len)
        end_item(x, it);
}

/* ---- reading ---- */

static void start_read(struct worker *w, struct chunk *c, struct request *r)
{
    c->n_under_way++;
    io_start(w->io, &r->io);
}

/* A descriptor for a source file; O_DIRECT as long as nothing refuses it. */
static int source_fd(struct run *x, int file, bool *direct, struct err *e)
{
    int fd = -1;

    *direct = false;
    if (x->direct_reads) {
        fd = files_fd(plan_files(x->plan), file, true, e);
        *direct = fd >= 0;
    }
    return fd >= 0 || e->kind != ERR_NONE ? fd : files_fd(plan_files(x->plan), file, false, e);
}

/*
 * Have the bytes of `pc` read into the input buffer, of which `used` bytes are taken.
 * A piece that follows its forerunner on disk joins that one's read. 1: there is no room.
 */
static int plan_read(struct run *x, struct chunk *c, const struct tmap_piece *pc, uint64_t *used,
                     const uint8_t **src, struct err *e)
{
    const struct record *rec = files_record(plan_files(x->plan), pc->src.record);
    struct request *r = c->n_reqs ? &c->req[c->n_reqs - 1] : NULL;
    uint64_t base, at, end, room = x->chunk + SLACK - *used;
    const uint8_t *mem = files_mem(plan_files(x->plan), rec->file);
    uint64_t size = files_size(plan_files(x->plan), rec->file);

    /* Found out here for all kinds of files: memory has no short read, a window has neighbours. */
    if (rec->at > size || pc->src.at > size - rec->at || pc->src.len > size - rec->at - pc->src.at) {
        err_data(e, files_name(plan_files(x->plan), rec->file), rec->at,
                 "cut short: record %s ends at byte %llu, the file at %llu", rec->name,
                 (unsigned long long)(rec->at + rec->len), (unsigned long long)size);
        return -1;
    }
    if (mem) {
        *src = mem + rec->at + pc->src.at;
        return 0;
    }
    files_path(plan_files(x->plan), rec->file, &base);
    at = base + rec->at + pc->src.at;
    end = at + pc->src.len;
    if (r && r->file == rec->file && at >= r->io.at && at <= r->io.at + r->io.len) {
        uint64_t whole = max_u64(align_up(end, BLOCK) - r->io.at, r->io.len);

        if (whole - r->io.len > room)
            return 1;
        *used += whole - r->io.len;
        r->io.len = whole;
        r->wanted = max_u64(r->wanted, end - r->io.at);
    } else {
        uint64_t from = align_down(at, BLOCK);

        if (c->n_reqs == MAX_REQS || align_up(end, BLOCK) - from > room)
            return 1;
        r = &c->req[c->n_reqs];
        *r = (struct request){ .chunk = c, .file = rec->file, .wanted = end - from,
                               .io = { .buf = c->in + *used, .len = align_up(end, BLOCK) - from, .at = from } };
        r->io.fd = source_fd(x, rec->file, &r->direct, e);
        if (r->io.fd < 0)
            return -1;
        *used += r->io.len;
        c->n_reqs++;
    }
    *src = (const uint8_t *)r->io.buf + (at - r->io.at);
    return 0;
}

static void set_ready(struct worker *w, struct chunk *c)
{
    c->state = CHUNK_READY;
    w->ready[w->n_ready++] = c;
}

/* Take pieces until the buffer is full, then start their reads. */
static bool read_round(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    uint64_t used = 0;
    struct err e = {0};
    int rc = 0;

    c->n_pieces = c->n_reqs = c->n_under_way = 0;
    for (;;) {
        struct tmap_cursor before = c->cursor;
        struct tmap_piece *pc = &c->piece[c->n_pieces];

        c->last_round = !tmap_next(&c->cursor, x->chunk, pc);
        if (c->last_round)
            break;
        rc = plan_read(x, c, pc, &used, &c->src[c->n_pieces], &e);
        if (rc < 0)
            return run_fail(x, &e);
        if (rc > 0) {
            c->cursor = before;         /* the first of the next round */
            break;
        }
        if (++c->n_pieces == MAX_PIECES)
            break;
    }
    c->state = CHUNK_READING;
    for (int i = 0; i < c->n_reqs; i++)
        start_read(w, c, &c->req[i]);
    if (c->n_reqs == 0)
        set_ready(w, c);
    io_flush(w->io);
    return true;
}

static struct chunk *unused_chunk(struct worker *w)
{
    struct chunk *c = w->chunk;

    while (c->state != CHUNK_UNUSED)
        c++;
    return c;
}

/* Start one more chunk if the plan has one and the buffers allow it. */
static bool start_chunk(struct worker *w)
{
    struct run *x = w->x;
    struct chunk *c;
    uint64_t at, len;
    int item;

    if (w->exhausted || x->stop || w->n_free < 2 || w->n_reading >= w->n_bufs / 2)
        return false;
    if (!take_chunk(x, &item, &at, &len)) {
        w->exhausted = true;
        return false;
    }
    c = unused_chunk(w);
    c->state = CHUNK_READING;
    w->n_active++;
    w->n_reading++;
    c->g = (struct gather){ .plan = x->plan, .item_no = item, .item = plan_item(x->plan, item),
                            .len = len, .report = x->o->report };
    c->g.from = c->g.item->from + at;
    c->dst_at = c->g.item->dst_at + (c->g.item->transpose_row ? gather_matrix(&c->g).at : plan_out_bytes(c->g.item, at));
    c->in = w->free_buf[--w->n_free];
    c->result = NULL;
    gather_begin(&c->g);
    tmap_begin(&c->cursor, c->g.item->map, c->g.from, len, -1);
    if (len == 0) {
        drop_chunk(w, c);
        end_item(x, c->g.item);
        return true;
    }
    if (!read_round(w, c))
        drop_chunk(w, c);
    return true;
}

static bool read_failed(struct run *x, const struct request *r)
{
    struct files *f = plan_files(x->plan);
    struct err e = {0};
    uint64_t base;

    files_path(f, r->file, &base);
    if (r->io.res == 0) {
        err_data(&e, files_name(f, r->file), r->io.at - base, "cut short: %zu more bytes expected", r->wanted);
        return run_fail(x, &e);
    }
    errno = (int)-r->io.res;
    err_sys(&e, files_name(f, r->file), "cannot read %zu bytes at byte %llu", r->io.len,
            (unsigned long long)(r->io.at - base));
    return run_fail(x, &e);
}

/* A read came back: whole, or its rest is started, or the run fails. */
static bool read_came(struct worker *w, struct request *r)
{
    struct run *x = w->x;
    struct io_req *io = &r->io;
    struct err e = {0};

    if (io->res > 0 && (size_t)io->res >= r->wanted) {
        if (r->direct)
            x->used_direct = true;
        else
            posix_fadvise(io->fd, (off_t)io->at, (off_t)io->len, POSIX_FADV_DONTNEED);
        return true;
    }
    if (io->res > 0) {
        io->buf = (char *)io->buf + io->res;
        io->at += (uint64_t)io->res;
        io->len -= (size_t)io->res;
        r->wanted -= (size_t)io->res;
        /* O_DIRECT stops at the end of the file; the page cache tells whether this was it. */
        r->direct = r->direct && io->at % BLOCK == 0;
    } else if (io->res == -EINVAL && r->direct) {
        x->direct_reads = r->direct = false;
    } else if (io->res != -EINTR && io->res != -EAGAIN) {
        return read_failed(x, r);
    }
    if (!r->direct && (io->fd = files_fd(plan_files(x->plan), r->file, false, &e)) < 0)
        return run_fail(x, &e);
    start_read(w, r->chunk, r);
    return true;
}

/* ---- writing ---- */

static bool write_failed(struct run *x, int dst, uint64_t at, size_t len)
{
    struct err e = {0};

    err_sys(&e, plan_dst(x->plan, dst)->path, "cannot write %zu bytes at byte %llu", len, (unsigned long long)at);
    return run_fail(x, &e);
}

/* [at, end) of a span through the page cache, at once: bytes that do not fill a block, and small runs. */
static bool write_now(struct run *x, const struct span *s, uint64_t at, uint64_t end)
{
    struct err e = {0};
    int fd;

    if (at == end)
        return true;
    fd = outputs_fd(x->outputs, s->dst, false, &e);
    if (fd < 0)
        return run_fail(x, &e);
    return write_all_at(fd, s->buf + (at - s->at), end - at, at) == 0 || write_failed(x, s->dst, at, end - at);
}

/* Bytes of the chunk as they will be written. */
static uint64_t out_len(const struct chunk *c)
{
    return plan_out_bytes(c->g.item, c->g.len);
}

/* Fill the page cache no further than needed: start this run's write-back, drop one long behind it. */
static void write_behind(const struct run *x, const struct request *r)
{
    uint64_t window = 4 * x->chunk, end = r->io.at + r->io.len;
    int fd = r->io.fd;

    sync_file_range(fd, (off_t)r->first, (off_t)(end - r->first), SYNC_FILE_RANGE_WRITE);
    if (r->first < r->origin + window)
        return;
    sync_file_range(fd, (off_t)(r->first - window), (off_t)x->chunk,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(fd, (off_t)(r->first - window), (off_t)x->chunk, POSIX_FADV_DONTNEED);
}

/*
 * A chunk of a transposed matrix: one run of each destination row. They are short, so they
 * gather in the page cache until their neighbours are there. False: the run fails.
 */
static bool write_runs(struct run *x, const struct chunk *c)
{
    struct gather_matrix m = gather_matrix(&c->g);
    struct err e = {0};
    int fd = outputs_fd(x->outputs, c->g.item->dst, false, &e);

    if (fd < 0)
        return run_fail(x, &e);
    for (uint64_t i = 0; i < m.n; i++)
        if (write_all_at(fd, c->result + i * m.run, m.run, c->dst_at + i * m.stride) < 0)
            return write_failed(x, c->g.item->dst, c->dst_at + i * m.stride, m.run);
    return true;
}

static void start_write(struct worker *w, struct chunk *c, const struct span *s, int fd, bool direct, uint64_t at,
                        uint64_t end)
{
    struct request *r = &c->req[c->n_reqs++];

    *r = (struct request){ .chunk = c, .file = s->dst, .direct = direct, .first = at, .origin = s->origin,
                           .io = { .fd = fd, .write = true, .at = at, .len = end - at,
                                   .buf = (void *)(s->buf + (at - s->at)) } };
    c->n_under_way++;
    io_start(w->io, &r->io);
    io_flush(w->io);
}

/* Write a span, or start to. False: the run fails. */
static bool write_span(struct worker *w, struct chunk *c, const struct span *s)
{
    struct run *x = w->x;
    uint64_t first = align_up(s->at, BLOCK), last = align_down(s->end, BLOCK);
    struct err e = {0};
    int fd;

    if (s->end - s->at < SMALL_WRITE || c->n_reqs == MAX_REQS)
        return write_now(x, s, s->at, s->end);
    fd = outputs_fd(x->outputs, s->dst, true, &e);
    if (fd >= 0) {
        if (!write_now(x, s, s->at, first) || !write_now(x, s, last, s->end))
            return false;
        start_write(w, c, s, fd, true, first, last);
        return true;
    }
    if (e.kind == ERR_NONE)
        fd = outputs_fd(x->outputs, s->dst, false, &e);
    if (fd < 0)
        return run_fail(x, &e);
    start_write(w, c, s, fd, false, s->at, s->end);
    return true;
}

/* Part i of the chunk's rows, gathered where its write needs it; *to moves on behind it. */
static struct span deal_column(struct chunk *c, int i, uint8_t **to)
{
    struct plan_item *it = c->g.item;
    struct plan_out *out = &it->out[i];
    uint64_t part = plan_out_bytes(it, it->part), row = part * (uint64_t)it->n_outs, rows = out_len(c) / row;
    uint64_t at = plan_out_bytes(it, c->g.from - it->from) / (uint64_t)it->n_outs;
    uint64_t some = max_u64(CACHE_BYTES / part, 1), n;
    struct span s = { .dst = out->dst, .at = out->at + at, .origin = out->at, .end = out->at + at + rows * part };
    uint8_t *p = *to + s.at % BLOCK;
    const uint8_t *from = c->result + (uint64_t)i * part;
    uint32_t crc = 0;

    s.buf = p;
    for (uint64_t r = 0; r < rows; r += n) {            /* hashed while it is in the cache */
        n = min_u64(some, rows - r);
        for (uint64_t k = 0; k < n; k++)
            memcpy(p + k * part, from + (r + k) * row, part);
        crc = crc_bytes(crc, p, n * part);
        p += n * part;
    }
    crc_sum_add(&out->crc, plan_share(it), at, rows * part, crc);
    *to += align_up((uint64_t)(p - *to), BLOCK);
    return s;
}

/* Deal the result out into the buffer that it does not lie in, and write each part. */
static bool write_columns(struct worker *w, struct chunk *c)
{
    bool in_out = c->result == c->g.out;
    uint8_t *to = in_out ? c->in : c->out;

    for (int i = 0; i < c->g.item->n_outs; i++) {
        struct span s = deal_column(c, i, &to);

        if (!write_span(w, c, &s))
            return false;
    }
    give_buf(w, in_out ? &c->out : &c->in);
    return true;
}

static bool write_result(struct worker *w, struct chunk *c)
{
    const struct plan_item *it = c->g.item;
    struct span s = { .dst = it->dst, .buf = c->result, .at = c->dst_at, .end = c->dst_at + out_len(c),
                      .origin = it->dst_at };

    if (it->n_outs)
        return write_columns(w, c);
    if (c->out)
        give_buf(w, &c->in);
    /* A transposed matrix that is one chunk lies there as it will on disk. */
    return it->transpose_row && c->g.len < it->len ? write_runs(w->x, c) : write_span(w, c, &s);
}

/* The result is complete. False: the run fails, nothing of the chunk is under way. */
static bool write_chunk(struct worker *w, struct chunk *c)
{
    c->n_reqs = 0;
    c->failed = !write_result(w, c);
    if (c->n_under_way == 0 && !c->failed)
        end_chunk(w, c);
    return c->n_under_way > 0 || !c->failed;
}

/* A write came back: whole, or its rest is started. False: the run fails. */
static bool write_came(struct worker *w, struct request *r)
{
    struct run *x = w->x;
    struct io_req *io = &r->io;
    struct err e = {0};

    if (io->res > 0 && (size_t)io->res == io->len) {
        if (r->direct)
            x->used_direct = true;
        else
            write_behind(x, r);
        return true;
    }
    if (io->res > 0) {
        io->buf = (char *)io->buf + io->res;
        io->at += (uint64_t)io->res;
        io->len -= (size_t)io->res;
        r->direct = r->direct && io->at % BLOCK == 0;
    } else if (io->res == -EINVAL && r->direct) {
        outputs_refuse_direct(x->outputs, r->file);
        r->direct = false;
    } else if (io->res != -EINTR && io->res != -EAGAIN) {
        errno = io->res ? (int)-io->res : ENOSPC;
        return write_failed(x, r->file, io->at, io->len);
    }
    if (!r->direct && (io->fd = outputs_fd(x->outputs, r->file, false, &e)) < 0)
        return run_fail(x, &e);
    r->chunk->n_under_way++;
    io_start(w->io, io);
    return true;
}

/* ---- between the two ---- */

/* Is the chunk one piece whose bytes go as they are? */
static bool lies_together(const struct chunk *c)
{
    return !c->out && c->last_round && c->n_pieces == 1 && !gather_needs_output(&c->g) &&
           c->piece[0].src.len == c->g.len;
}

/* Can the chunk be written from where its only piece lies? */
static bool lies_right(struct run *x, const struct chunk *c)
{
    struct err e = {0};
    int dst = c->g.item->dst;

    if (!lies_together(c) || c->g.item->n_outs)
        return false;
    if (dst < 0 || c->g.len < SMALL_WRITE || outputs_fd(x->outputs, dst, true, &e) < 0)
        return true;                    /* hashed only, or written through the page cache */
    return ((uintptr_t)c->src[0] - c->dst_at) % outputs_mem_align(x->outputs, dst) == 0;
}

/* Settle where the chunk's output comes to lie. False: that takes a buffer and there is none now. */
static bool find_place(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;

    bool together = lies_together(c);

    if (c->out || (!plan_writes(c->g.item) && !x->o->look && !gather_needs_output(&c->g)))
        return true;
    if (!c->pinned)
        pin_outputs(x, c->g.item, outputs_pin);
    c->pinned = true;
    if (lies_right(x, c)) {
        c->result = c->src[0];
        return true;
    }
    if (w->n_free == 0)
        return false;
    c->out = w->free_buf[--w->n_free];
    if (c->g.item->n_outs && together) {        /* the other buffer is for dealing */
        c->result = c->src[0];
        return true;
    }
    c->result = c->g.out = c->out + c->dst_at % BLOCK;
    c->g.copy_stride = chunk_bytes(x, c->g.item);
    return true;
}

/*
 * Write a tile of a transposed matrix. One that is the whole matrix is written like any
 * other bytes; runs of a larger one gather in the page cache until their neighbours are
 * there. False: the run fails.
 */
static bool write_tile(struct run *x, const struct plan_item *it, const struct tile *t)
{
    uint64_t at = it->dst_at + t->at, len = t->n * t->run, first = align_up(at, BLOCK), last = align_down(at + len, BLOCK);
    struct err e = {0};
    int direct = t->run == t->stride && first < last ? outputs_fd(x->outputs, it->dst, true, &e) : -1;
    int fd = e.kind == ERR_NONE ? outputs_fd(x->outputs, it->dst, false, &e) : -1;

    if (fd < 0)
        return run_fail(x, &e);
    if (t->run != t->stride) {
        for (uint64_t i = 0; i < t->n; i++)
            if (write_all_at(fd, t->bytes + i * t->run, t->run, at + i * t->stride) < 0)
                return write_failed(x, it->dst, at + i * t->stride, t->run);
        return true;
    }
    if (direct >= 0 && write_all_at(direct, t->bytes + (first - at), last - first, first) < 0) {
        if (errno != EINVAL)
            return write_failed(x, it->dst, first, last - first);
        outputs_refuse_direct(x->outputs, it->dst);
        direct = -1;
    }
    if (direct >= 0)
        x->used_direct = true;
    else
        first = last = at + len;
    if (write_all_at(fd, t->bytes, first - at, at) < 0 ||
        write_all_at(fd, t->bytes + (last - at), at + len - last, last) < 0)
        return write_failed(x, it->dst, at, len);
    return true;
}

/* The chunk of a transposed matrix is gathered: into a tile, or on its own way. False: the run fails. */
static bool transpose_chunk(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    const struct plan_item *it = c->g.item;
    uint8_t *in = c->in;                /* its bytes have been gathered: room for the result */
    struct tile tile;
    enum tiles_answer answer = TILES_NONE;
    bool written = true;

    if (c->g.len < it->len)
        answer = tiles_put(x->tiles, &c->g, it->dst_at % BLOCK, &tile);
    if (answer == TILES_COMPLETE) {
        written = write_tile(x, it, &tile);
        tiles_done(x->tiles, &tile);
    }
    if (answer != TILES_NONE) {
        if (written)
            end_chunk(w, c);
        return written;
    }
    c->result = in + c->dst_at % BLOCK;
    gather_transpose(&c->g, in + c->dst_at % BLOCK);
    c->in = c->out;
    c->out = in;
    c->state = CHUNK_WRITING;
    w->n_reading--;
    return write_chunk(w, c);
}

/* The pieces of a round are in memory and there is a place for them. False: the run fails. */
static bool gather_round(struct worker *w, struct chunk *c)
{
    struct err e = {0};
    bool agree;

    for (int i = 0; i < c->n_pieces; i++)
        if (gather_piece(&c->g, &c->piece[i], c->src[i], &e) < 0)
            return run_fail(w->x, &e);
    if (!c->last_round)
        return read_round(w, c);
    agree = gather_end(&c->g);
    if (agree && c->g.item->transpose_row)
        return transpose_chunk(w, c);
    if (w->x->o->look &&
        w->x->o->look(w->x->o->ctx, c->g.item, plan_out_bytes(c->g.item, c->g.from), c->result, out_len(c), &e) < 0)
        return run_fail(w->x, &e);
    if (!agree || !plan_writes(c->g.item)) {
        end_chunk(w, c);
        return true;
    }
    c->state = CHUNK_WRITING;
    w->n_reading--;
    return write_chunk(w, c);
}

/* ---- the loop ---- */

static void request_came(struct worker *w, struct io_req *io)
{
    struct request *r = (struct request *)io;           /* its first member */
    struct chunk *c = r->chunk;

    c->n_under_way--;
    /* After a failure the chunk still waits for its other requests. */
    if (c->state == CHUNK_WRITING) {
        if (!write_came(w, r))
            c->failed = true;
        if (c->n_under_way == 0 && c->failed)
            drop_chunk(w, c);
        else if (c->n_under_way == 0)
            end_chunk(w, c);
        return;
    }
    (void)read_came(w, r);              /* the loop drops it then */
    if (c->n_under_way == 0)
        set_ready(w, c);
}

/* Gather the chunk that is ready longest. False: none is, or there is no place for it. */
static bool work_on_ready(struct worker *w)
{
    struct chunk *c = w->ready[0];

    if (w->n_ready == 0 || (!w->x->stop && !find_place(w, c)))
        return false;
    memmove(w->ready, w->ready + 1, (size_t)--w->n_ready * sizeof *w->ready);
    if (w->x->stop || !gather_round(w, c))
        drop_chunk(w, c);
    return true;
}

/* Until the plan has no more chunks, or the run has failed, and nothing is under way. */
static void work(struct worker *w)
{
    struct io_req *io;

    for (;;) {
        while ((io = io_wait(w->io, false)))
            request_came(w, io);
        while (start_chunk(w))
            ;
        if (work_on_ready(w))
            continue;
        if (w->n_active == 0)
            return;
        if ((io = io_wait(w->io, true)))
            request_came(w, io);
    }
}

static void run_worker(struct run *x, uint8_t *mem, int n_bufs)
{
    struct worker w = { .x = x, .n_bufs = n_bufs, .n_free = n_bufs };

    w.io = io_open((unsigned)n_bufs * MAX_REQS, x->uring);
    w.free_buf = xcalloc((size_t)n_bufs, sizeof *w.free_buf);
    w.chunk = xcalloc((size_t)n_bufs, sizeof *w.chunk);
    w.ready = xcalloc((size_t)n_bufs, sizeof *w.ready);
    for (int i = 0; i < n_bufs; i++)
        w.free_buf[i] = mem + (size_t)(n_bufs - 1 - i) * (x->chunk + SLACK);
    work(&w);
    io_close(w.io);
    free(w.free_buf);
    free(w.chunk);
    free(w.ready);
}

/* ---- the run ---- */

static bool uring_works(const struct exec_opts *o)
{
    struct io_engine *io = io_open(8, !o->no_uring);
    bool works = io_is_uring(io);

    io_close(io);
    return works;
}

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* What a chunk must hold for a row of every item that is dealt out by columns. */
static uint64_t widest_columns(struct plan *p)
{
    uint64_t most = 0;

    for (int i = 0; i < plan_n(p); i++) {
        const struct plan_item *it = plan_item(p, i);
        uint64_t n = (uint64_t)it->n_outs;

        if (n)
            most = max_u64(most, n * (max_u64(it->part, plan_out_bytes(it, it->part)) + 2 * BLOCK));
    }
    return align_up(most, BLOCK);
}

/*
 * Divide the memory: chunks as large as leaves every worker eight buffers, and no more
 * workers than can have four of the smallest. Returns the bytes of it all.
 */
static uint64_t share_memory(struct run *x, int *workers, int *n_bufs)
{
    uint64_t least = max_u64(x->o->chunk_bytes ? x->o->chunk_bytes : MIN_CHUNK, widest_columns(x->plan));
    uint64_t mem = max_u64(max_u64(x->o->mem_bytes, MIN_MEM), 4 * (least + SLACK));

    *workers = x->uring ? x->o->threads : (int)max_u64((uint64_t)x->o->threads, PLAIN_WORKERS);
    *workers = (int)max_u64(1, min_u64((uint64_t)*workers, mem / (4 * (least + SLACK))));
    x->chunk = least;
    while (!x->o->chunk_bytes && x->chunk < MAX_CHUNK && mem / (uint64_t)*workers / (2 * x->chunk + SLACK) >= 8)
        x->chunk *= 2;
    *n_bufs = (int)min_u64(mem / (uint64_t)*workers / (x->chunk + SLACK), MAX_BUFS);
    return (uint64_t)*workers * (uint64_t)*n_bufs * (x->chunk + SLACK);
}

int exec_run(struct plan *p, const struct exec_opts *o, struct exec_stats *st, struct err *e)
{
    struct run x = { .plan = p, .o = o, .direct_reads = !o->buffered, .lock = PTHREAD_MUTEX_INITIALIZER };
    uint64_t mem_bytes;
    double begun = now_s();
    int workers, n_bufs;
    uint8_t *mem;

    x.uring = uring_works(o);
    mem_bytes = share_memory(&x, &workers, &n_bufs);
    /* Pages come as buffers are first used: a small plan touches few. */
    mem = mmap(NULL, mem_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mem == MAP_FAILED) {
        err_sys(e, "buffers", "cannot have %llu bytes of memory", (unsigned long long)mem_bytes);
        return -1;
    }
    madvise(mem, mem_bytes, MADV_HUGEPAGE);
    x.outputs = outputs_new(p, !o->buffered);
    x.tiles = tiles_new(x.chunk);
    for (int i = 0; i < plan_n(p); i++)
        plan_item(p, i)->left = plan_item(p, i)->done ? 0 : plan_item(p, i)->len;

    #pragma omp parallel num_threads(workers)
    run_worker(&x, mem + (size_t)omp_get_thread_num() * (size_t)n_bufs * (x.chunk + SLACK), n_bufs);

    outputs_free(x.outputs);
    tiles_free(x.tiles);
    munmap(mem, mem_bytes);
    if (st)
        *st = (struct exec_stats){ .read_bytes = x.read_bytes, .write_bytes = x.write_bytes,
                                   .wall_s = now_s() - begun, .used_uring = x.uring, .used_direct = x.used_direct };
    if (x.err.kind == ERR_NONE)
        return 0;
    if (e->kind == ERR_NONE)
        *e = x.err;
    return -1;
}
