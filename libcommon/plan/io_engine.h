/*
 * io_engine.h - many reads and writes under way at once, for one thread
 *
 * Two back ends behind the same four calls: io_uring, and plain pread/pwrite done one
 * after the other while waiting (where containers or seccomp refuse io_uring, or a test
 * asks). A request belongs to the caller, who keeps it and its buffer alive until
 * io_wait() hands it back; so an engine must be drained before it is closed.
 * Threads: an engine is for the thread that opened it.
 */
#ifndef SHARDKIT_PLAN_IO_ENGINE_H
#define SHARDKIT_PLAN_IO_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct io_req {
    int fd;
    bool write;
    void *buf;
    size_t len;
    uint64_t at;
    ssize_t res;                /* when handed back: bytes moved (maybe fewer than len), or -errno */
    struct io_req *next;        /* the engine's */
};

struct io_engine;
/* Room for `depth` requests at a time. Falls back to pread/pwrite by itself; never fails. */
struct io_engine *io_open(unsigned depth, bool want_uring);
void io_close(struct io_engine *io);            /* NULL is fine */
bool io_is_uring(const struct io_engine *io);
void io_start(struct io_engine *io, struct io_req *r);
/* Let the kernel see what was started; io_wait() does it too. */
void io_flush(struct io_engine *io);
/* A finished request; NULL when none is under way or, without `block`, none is ready. */
struct io_req *io_wait(struct io_engine *io, bool block);

#endif
