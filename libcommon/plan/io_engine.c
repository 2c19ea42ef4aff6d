/* io_engine.c - perform requests by io_uring, or by plain system calls if the kernel does not offer it */
#include "libcommon/plan/io_engine.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"

struct io_engine {
    bool uring;
    unsigned depth, n_under_way;
    struct io_uring ring;
    struct io_req *first, **last;       /* queue of requests that are performed by pread and pwrite */
};

/*
 * Returns true if the ring supports plain reads and writes. Kernels before 5.6 have io_uring without these operations.
 */
static bool ring_can_read_and_write(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool can = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
               io_uring_opcode_supported(probe, IORING_OP_WRITE);

    io_uring_free_probe(probe);
    return can;
}

struct io_engine *io_open(unsigned depth, bool want_uring)
{
    struct io_engine *io = xcalloc(1, sizeof *io);

    io->depth = depth;
    io->last = &io->first;
    if (want_uring && io_uring_queue_init(depth, &io->ring, 0) == 0) {
        io->uring = ring_can_read_and_write(&io->ring);
        if (!io->uring)
            io_uring_queue_exit(&io->ring);
    }
    return io;
}

void io_close(struct io_engine *io)
{
    if (!io)
        return;
    assert(io->n_under_way == 0);
    if (io->uring)
        io_uring_queue_exit(&io->ring);
    free(io);
}

bool io_is_uring(const struct io_engine *io)
{
    return io->uring;
}

void io_start(struct io_engine *io, struct io_req *r)
{
    struct io_uring_sqe *sqe;

    assert(io->n_under_way < io->depth);
    io->n_under_way++;
    if (!io->uring) {
        r->next = NULL;
        *io->last = r;
        io->last = &r->next;
        return;
    }
    /* If the submission queue is full, io_flush() empties it. */
    while (!(sqe = io_uring_get_sqe(&io->ring)))
        io_flush(io);
    if (r->write)
        io_uring_prep_write(sqe, r->fd, r->buf, (unsigned)r->len, r->at);
    else
        io_uring_prep_read(sqe, r->fd, r->buf, (unsigned)r->len, r->at);
    io_uring_sqe_set_data(sqe, r);
}

void io_flush(struct io_engine *io)
{
    /*
     * If the kernel refuses requests temporarily (EAGAIN, EBUSY), the requests stay in the queue, and the next call
     * submits them.
     */
    if (io->uring && io_uring_sq_ready(&io->ring))
        io_uring_submit(&io->ring);
}

static struct io_req *wait_plain(struct io_engine *io)
{
    struct io_req *r = io->first;

    io->first = r->next;
    if (!io->first)
        io->last = &io->first;
    r->res = r->write ? pwrite(r->fd, r->buf, r->len, (off_t)r->at) : pread(r->fd, r->buf, r->len, (off_t)r->at);
    if (r->res < 0)
        r->res = -errno;
    return r;
}

static struct io_req *wait_uring(struct io_engine *io, bool block)
{
    struct io_uring_cqe *cqe;
    struct io_req *r;

    while (io_uring_peek_cqe(&io->ring, &cqe) != 0) {
        int rc;

        if (!block) {
            io_flush(io);
            return NULL;
        }
        rc = io_uring_submit_and_wait(&io->ring, 1);
        /* The ring itself has failed, so it is unknown which requests have ended. */
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY)
            abort();
    }
    r = io_uring_cqe_get_data(cqe);
    r->res = cqe->res;
    io_uring_cqe_seen(&io->ring, cqe);
    return r;
}

struct io_req *io_wait(struct io_engine *io, bool block)
{
    struct io_req *r;

    if (io->n_under_way == 0)
        return NULL;
    r = io->uring ? wait_uring(io, block) : block ? wait_plain(io) : NULL;
    io->n_under_way -= r != NULL;
    return r;
}
