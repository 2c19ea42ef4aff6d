/* executor_read.c - read as many pieces as fit in the input buffer of a chunk, in whole blocks */
#include <errno.h>
#include <fcntl.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/executor_impl.h"

static void start_read(struct worker *w, struct chunk *c, struct request *r)
{
    c->n_under_way++;
    io_start(w->io, &r->io);
}

/*
 * Returns a descriptor of a source file. The file is opened with O_DIRECT if no read of this run was refused because of
 * O_DIRECT. *direct is set accordingly.
 */
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
 * Check that the file contains the extent. In some files a read cannot detect this. Reads of a file in memory are never
 * short, and other bytes follow the end of a window.
 */
static int check_extent_in_file(struct files *f, const struct record *rec, const struct extent *x, struct err *e)
{
    uint64_t size = files_size(f, rec->file);

    if (rec->at <= size && x->at <= size - rec->at && x->len <= size - rec->at - x->at)
        return 0;
    err_data(e, files_name(f, rec->file), rec->at, "cut short: record %s ends at byte %llu, the file at %llu",
             rec->name, (unsigned long long)(rec->at + rec->len), (unsigned long long)size);
    return -1;
}

/* Extend read r to file offset `end`. If that needs more than `room` bytes, returns 1 and changes nothing. */
static int lengthen(struct request *r, uint64_t end, uint64_t room)
{
    uint64_t whole = max_u64(align_up(end, BLOCK) - r->io.at, r->io.len);

    if (whole - r->io.len > room)
        return 1;
    r->io.len = whole;
    r->wanted = max_u64(r->wanted, end - r->io.at);
    return 0;
}

/* Returns the free space in the input buffer. */
static uint64_t in_room(const struct run *x, const struct chunk *c)
{
    return x->chunk + SLACK - c->in_used;
}

/* Add a request that reads [at, end) of a file into the input buffer. Returns 1 if the buffer has no room for this. */
static int add_read_request(struct run *x, struct chunk *c, int file, uint64_t at, uint64_t end, struct err *e)
{
    uint64_t from = align_down(at, BLOCK), len = align_up(end, BLOCK) - from;
    struct request *r;

    if (c->n_reqs == x->max_reads || len > in_room(x, c))
        return 1;
    r = &c->req[c->n_reqs];
    *r = (struct request){ .chunk = c, .file = file, .wanted = end - from,
                           .io = { .buf = c->in + c->in_used, .len = len, .at = from } };
    r->io.fd = source_fd(x, file, &r->direct, e);
    if (r->io.fd < 0)
        return -1;
    c->n_reqs++;
    return 0;
}

/*
 * Add piece `pc` to the reads of the chunk, and set *src to the address at which its bytes will be stored. If the piece
 * directly follows the previous piece on disk, the previous read is extended. Returns 1 if the input buffer has no room
 * for the piece.
 */
static int plan_read(struct run *x, struct chunk *c, const struct tmap_piece *pc, const uint8_t **src, struct err *e)
{
    struct files *f = plan_files(x->plan);
    const struct record *rec = files_record(f, pc->src.record);
    const uint8_t *mem = files_mem(f, rec->file);
    struct request *r = c->n_reqs ? &c->req[c->n_reqs - 1] : NULL;
    uint64_t base, at, end;
    int rc;

    if (check_extent_in_file(f, rec, &pc->src, e) < 0)
        return -1;
    if (mem) {
        *src = mem + rec->at + pc->src.at;
        return 0;
    }
    files_path(f, rec->file, &base);
    at = base + rec->at + pc->src.at;
    end = at + pc->src.len;
    if (r && r->file == rec->file && at >= r->io.at && at <= r->io.at + r->io.len)
        rc = lengthen(r, end, in_room(x, c));
    else
        rc = add_read_request(x, c, rec->file, at, end, e);
    if (rc != 0)
        return rc;
    r = &c->req[c->n_reqs - 1];
    c->in_used = (uint64_t)((uint8_t *)r->io.buf + r->io.len - c->in);
    *src = (const uint8_t *)r->io.buf + (at - r->io.at);
    return 0;
}

enum exec_step exec_read_round(struct worker *w, struct chunk *c)
{
    struct run *x = w->x;
    struct err e = {0};
    int rc = 0;

    c->in_used = 0;
    c->n_pieces = c->n_reqs = c->n_under_way = 0;
    for (;;) {
        struct tmap_cursor before = c->cursor;
        struct tmap_piece *pc = &c->piece[c->n_pieces];

        c->last_round = !tmap_next(&c->cursor, x->chunk, pc);
        if (c->last_round)
            break;
        rc = plan_read(x, c, pc, &c->src[c->n_pieces], &e);
        if (rc < 0) {
            exec_fail(x, &e);
            return EXEC_FAILED;
        }
        if (rc > 0) {
            c->cursor = before;         /* the piece is returned again, as the first one of the next round */
            break;
        }
        if (++c->n_pieces == MAX_PIECES)
            break;
    }
    c->state = CHUNK_READING;
    for (int i = 0; i < c->n_reqs; i++)
        start_read(w, c, &c->req[i]);
    io_flush(w->io);
    return c->n_reqs == 0 ? EXEC_READY : EXEC_WAIT;
}

/* ---- completed reads ---- */

/* Report that the read failed, which ends the run, and release the source file. */
static bool read_failed(struct run *x, const struct request *r)
{
    struct files *f = plan_files(x->plan);
    struct err e = {0};
    uint64_t base;

    files_path(f, r->file, &base);
    if (r->io.res == 0) {
        err_data(&e, files_name(f, r->file), r->io.at - base, "cut short: %zu more bytes expected", r->wanted);
        files_fd_done(f, r->file);
        return exec_fail(x, &e);
    }
    errno = (int)-r->io.res;
    err_sys(&e, files_name(f, r->file), "cannot read %zu bytes at byte %llu", r->io.len,
            (unsigned long long)(r->io.at - base));
    files_fd_done(f, r->file);
    return exec_fail(x, &e);
}

bool exec_read_came(struct worker *w, struct request *r)
{
    struct run *x = w->x;
    struct io_req *io = &r->io;
    struct err e = {0};

    if (io->res > 0 && (size_t)io->res >= r->wanted) {
        if (r->direct)
            x->used_direct = true;
        else
            posix_fadvise(io->fd, (off_t)io->at, (off_t)io->len, POSIX_FADV_DONTNEED);
        files_fd_done(plan_files(x->plan), r->file);
        return true;
    }
    if (io->res > 0) {
        io->buf = (char *)io->buf + io->res;
        io->at += (uint64_t)io->res;
        io->len -= (size_t)io->res;
        r->wanted -= (size_t)io->res;
        /*
         * A read with O_DIRECT stops at the end of the file. Reading on through the page cache shows whether the end
         * was reached.
         */
        r->direct = r->direct && io->at % BLOCK == 0;
    } else if (io->res == -EINVAL && r->direct) {
        x->direct_reads = r->direct = false;
    } else if (io->res != -EINTR && io->res != -EAGAIN) {
        return read_failed(x, r);
    }
    if (!r->direct) {
        io->fd = files_fd(plan_files(x->plan), r->file, false, &e);
        files_fd_done(plan_files(x->plan), r->file);
        if (io->fd < 0)
            return exec_fail(x, &e);
    }
    start_read(w, r->chunk, r);
    return true;
}
