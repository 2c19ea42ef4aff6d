/* executor_write.c - write whole blocks with O_DIRECT, and the remaining bytes through the page cache */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor_impl.h"

enum { CACHE_BYTES = 32 << 10 };       /* number of bytes of columns that are hashed while they are in the cache */

/* Bytes of a chunk that are written to range [at, end) of one file. */
struct span {
    int dst;
    const uint8_t *buf;
    uint64_t at, end, origin;
};

static bool write_failed(struct run *x, int dst, uint64_t at, size_t len)
{
    struct err e = {0};

    err_sys(&e, plan_dst(x->plan, dst)->path, "cannot write %zu bytes at byte %llu", len, (unsigned long long)at);
    return exec_fail(x, &e);
}

/*
 * Write [at, end) of a span through the page cache, and return when it is written. Used for partial blocks and for
 * short runs.
 */
static bool write_now(struct run *x, const struct span *s, uint64_t at, uint64_t end)
{
    struct err e = {0};
    int fd;

    if (at == end)
        return true;
    fd = outputs_fd(x->outputs, s->dst, false, &e);
    if (fd < 0)
        return exec_fail(x, &e);
    return write_all_at(fd, s->buf + (at - s->at), end - at, at) == 0 || write_failed(x, s->dst, at, end - at);
}

/* ---- transposed matrices ---- */

/*
 * Write a chunk of a transposed matrix. The chunk is one run in each row of the destination. The runs are short, so
 * they are written through the page cache, which merges them with adjacent runs.
 */
static bool write_runs(struct run *x, const struct chunk *c)
{
    struct gather_matrix m = gather_matrix(&c->g);
    struct err e = {0};
    int fd = outputs_fd(x->outputs, c->g.item->dst, false, &e);

    if (fd < 0)
        return exec_fail(x, &e);
    for (uint64_t i = 0; i < m.n; i++)
        if (write_all_at(fd, c->result + i * m.run, m.run, c->dst_at + i * m.stride) < 0)
            return write_failed(x, c->g.item->dst, c->dst_at + i * m.stride, m.run);
    return true;
}

/*
 * A tile that is the whole matrix is written like any other bytes. The runs of any other tile are written through the
 * page cache, which merges them with adjacent runs.
 */
bool exec_write_tile(struct run *x, const struct plan_item *it, const struct tile *t)
{
    uint64_t at = it->dst_at + t->at, len = t->n * t->run;
    uint64_t first = align_up(at, BLOCK), last = align_down(at + len, BLOCK);
    struct err e = {0};
    int direct = t->run == t->stride && first < last ? outputs_fd(x->outputs, it->dst, true, &e) : -1;
    int fd = e.kind == ERR_NONE ? outputs_fd(x->outputs, it->dst, false, &e) : -1;

    if (fd < 0)
        return exec_fail(x, &e);
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

/* ---- spans and columns ---- */

static void start_write(struct worker *w, struct chunk *c, const struct span *s, int fd, bool direct)
{
    struct request *r = &c->req[c->n_reqs++];

    *r = (struct request){ .chunk = c, .file = s->dst, .direct = direct, .first = s->at, .origin = s->origin,
                           .io = { .fd = fd, .write = true, .at = s->at, .len = s->end - s->at,
                                   .buf = (void *)s->buf } };
    c->n_under_way++;
    io_start(w->io, &r->io);
    io_flush(w->io);
}

/*
 * Store the span through a mapping of the file. Unlike a write call, this does not hold the lock of the file while it
 * copies. Returns false if there is no mapping or no room. A write call then reports the exact error.
 */
static bool store_mapped(struct run *x, const struct span *s)
{
    uint64_t size, page = align_down(s->at, BLOCK);
    uint8_t *map = outputs_map(x->outputs, s->dst, &size);

    if (!map || s->end > size || madvise(map + page, s->end - page, MADV_POPULATE_WRITE) < 0)
        return false;
    memcpy(map + s->at, s->buf, s->end - s->at);
    return true;
}

/*
 * Write to a file on an in-memory file system, and return when the bytes are written. A write call is the fastest way,
 * but two calls on one file wait for each other. A call is therefore used only if no other worker is writing to the
 * file. Otherwise the bytes are stored through the mapping. (If all workers used mappings, they would wait for the page
 * tables of the process.)
 */
static bool write_memory(struct run *x, const struct span *s)
{
    bool alone = outputs_enter(x->outputs, s->dst);
    bool ok = (!alone && store_mapped(x, s)) || write_now(x, s, s->at, s->end);

    outputs_leave(x->outputs, s->dst);
    return ok;
}

/* Write a span, or start to write it. */
static bool write_span(struct worker *w, struct chunk *c, const struct span *s)
{
    struct run *x = w->x;
    uint64_t first = align_up(s->at, BLOCK), last = align_down(s->end, BLOCK);
    struct err e = {0};
    int fd;

    if (outputs_in_memory(x->outputs))
        return write_memory(x, s);
    if (s->end - s->at < SMALL_WRITE || c->n_reqs == MAX_REQS)
        return write_now(x, s, s->at, s->end);
    fd = outputs_fd(x->outputs, s->dst, true, &e);
    if (fd >= 0) {
        struct span whole = { s->dst, s->buf + (first - s->at), first, last, s->origin };

        if (!write_now(x, s, s->at, first) || !write_now(x, s, last, s->end))
            return false;
        start_write(w, c, &whole, fd, true);
        return true;
    }
    if (e.kind == ERR_NONE)
        fd = outputs_fd(x->outputs, s->dst, false, &e);
    if (fd < 0)
        return exec_fail(x, &e);
    start_write(w, c, s, fd, false);
    return true;
}

/*
 * Copy column part i of all rows of the chunk to one contiguous place, at the first address from *to on that is
 * suitable for its write. *to is then set to the address after the copied bytes.
 */
static struct span gather_output_column(struct chunk *c, int i, uint8_t **to)
{
    struct plan_item *it = c->g.item;
    struct plan_out *out = &it->out[i];
    uint64_t part = plan_out_bytes(it, it->part), row = part * (uint64_t)it->n_outs, rows = exec_out_len(c) / row;
    uint64_t at = plan_out_bytes(it, c->g.from - it->from) / (uint64_t)it->n_outs;
    uint64_t some = max_u64(CACHE_BYTES / part, 1), n;
    struct span s = { .dst = out->dst, .at = out->at + at, .origin = out->at, .end = out->at + at + rows * part };
    uint8_t *p = *to + s.at % BLOCK;
    const uint8_t *from = c->result + (uint64_t)i * part;
    uint32_t crc = 0;

    s.buf = p;
    for (uint64_t r = 0; r < rows; r += n) {            /* hash each block of rows while it is in the cache */
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

/*
 * Write each part of the columns to its destination. The result is first copied to the buffer that does not hold it, so
 * that the bytes for each destination are contiguous.
 */
static bool write_columns(struct worker *w, struct chunk *c)
{
    bool in_out = c->result == c->g.out;
    uint8_t *to = in_out ? c->in : c->out;

    for (int i = 0; i < c->g.item->n_outs; i++) {
        struct span s = gather_output_column(c, i, &to);

        if (!write_span(w, c, &s))
            return false;
    }
    exec_give_buf(w, in_out ? &c->out : &c->in);
    return true;
}

static bool write_chunk_result(struct worker *w, struct chunk *c)
{
    const struct plan_item *it = c->g.item;
    struct span s = { .dst = it->dst, .buf = c->result, .at = c->dst_at, .end = c->dst_at + exec_out_len(c),
                      .origin = it->dst_at };

    if (it->n_outs)
        return write_columns(w, c);
    if (c->out)
        exec_give_buf(w, &c->in);
    /* If a transposed matrix fits in one chunk, its bytes are already in the order of the file. */
    return it->transpose_row && c->g.len < it->len ? write_runs(w->x, c) : write_span(w, c, &s);
}

enum exec_step exec_write_chunk(struct worker *w, struct chunk *c)
{
    c->state = CHUNK_WRITING;
    w->n_reading--;
    c->n_reqs = 0;
    c->failed = !write_chunk_result(w, c);
    return c->n_under_way > 0 ? EXEC_WAIT : c->failed ? EXEC_FAILED : EXEC_END;
}

/* ---- completed writes ---- */

/*
 * Limit the amount of data in the page cache that has not been written to disk. This starts to write the present run to
 * disk. It also waits for the run that lies four chunks before, and removes that run from the page cache.
 */
static void limit_dirty_pages(const struct run *x, const struct request *r)
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

bool exec_write_came(struct worker *w, struct request *r)
{
    struct run *x = w->x;
    struct io_req *io = &r->io;
    struct err e = {0};

    if (io->res > 0 && (size_t)io->res == io->len) {
        if (r->direct)
            x->used_direct = true;
        else
            limit_dirty_pages(x, r);
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
        return exec_fail(x, &e);
    r->chunk->n_under_way++;
    io_start(w->io, io);
    return true;
}
