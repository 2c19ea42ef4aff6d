/*
 * io_engine.h - many concurrent reads and writes for one thread
 *
 * There are two back ends with the same interface: io_uring, and plain pread/pwrite calls executed one after the
 * other during io_wait(). The latter is used where containers or seccomp refuse io_uring, or if a test requests it.
 * A request belongs to the caller, who must keep it and its buffer valid until io_wait() returns it. An engine must
 * therefore be drained before it is closed. An engine may only be used by the thread that opened it.
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
    ssize_t res;                /* result: bytes transferred (may be fewer than len), or -errno */
    struct io_req *next;        /* used by the engine */
};

struct io_engine;
/* Create an engine for up to `depth` concurrent requests. Falls back to pread/pwrite automatically; never fails. */
struct io_engine *io_open(unsigned depth, bool want_uring);
void io_close(struct io_engine *io);            /* NULL is allowed */
bool io_is_uring(const struct io_engine *io);
void io_start(struct io_engine *io, struct io_req *r);
/* Submit the started requests to the kernel. io_wait() does this as well. */
void io_flush(struct io_engine *io);
/* Returns a finished request. Returns NULL if none is in flight or, without `block`, if none has finished. */
struct io_req *io_wait(struct io_engine *io, bool block);

#endif
