/*
 * io_engine.h - many concurrent reads and writes for one thread
 *
 * There are two back ends with the same interface: io_uring, and plain pread/pwrite calls executed one after the other
 * during io_wait(). The latter is used where containers or seccomp refuse io_uring, or if a test requests it. A request
 * belongs to the caller, who must keep it and its buffer valid until io_wait() returns it. An engine may therefore be
 * closed only after io_wait() has returned all requests. An engine may only be used by the thread that opened it.
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
    ssize_t res;                /* result: number of bytes transferred, which may be fewer than len, or -errno */
    struct io_req *next;        /* used by the engine */
};

struct io_engine;
/*
 * Create an engine for up to `depth` concurrent requests. If io_uring is not available or not wanted, pread and pwrite
 * are used. Never fails.
 */
struct io_engine *io_open(unsigned depth, bool want_uring);
void io_close(struct io_engine *io);            /* NULL is allowed */
bool io_is_uring(const struct io_engine *io);
void io_start(struct io_engine *io, struct io_req *r);
/* Submit all started requests to the kernel. io_wait() does this, too. */
void io_flush(struct io_engine *io);
/*
 * Returns a request that has ended. If `block` is true, the call waits for one. Returns NULL if no request is in
 * flight, or if `block` is false and no request has ended.
 */
struct io_req *io_wait(struct io_engine *io, bool block);

#endif
