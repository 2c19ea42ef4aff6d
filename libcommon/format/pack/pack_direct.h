/*
 * pack_direct.h - read and write pieces of files without the page cache
 *
 * A frame is read once and written once, so the page cache has no benefit. It costs 0.3 CPU seconds per GB read and 0.6
 * per GB written; O_DIRECT costs 0.05. If a file system refuses O_DIRECT, the page cache is used. A buffer may be used
 * by only one thread at a time.
 */
#ifndef SHARDKIT_FORMAT_PACK_PACK_DIRECT_H
#define SHARDKIT_FORMAT_PACK_PACK_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/files.h"

enum { PACK_ALIGN = 4096 };             /* alignment of file offsets and memory for O_DIRECT */

/*
 * Returns an aligned buffer for `n` bytes of a file, which may begin and end at any offset within a block of PACK_ALIGN
 * bytes. The caller frees the buffer.
 */
uint8_t *pack_direct_new(size_t n);
/*
 * Returns the address in the buffer `room` for byte `at` of a file. With this address, whole blocks of the file are
 * aligned in memory.
 */
uint8_t *pack_direct_place(uint8_t *room, uint64_t at);
/*
 * Read bytes [at, at + n) of a file to pack_direct_place(room, at), and return that address. Bytes in `room` before and
 * after these bytes are overwritten. Returns NULL with ERR_SYS, or with ERR_DATA if the file is shorter.
 */
uint8_t *pack_direct_read(struct files *f, int file, uint64_t at, size_t n, uint8_t *room, struct err *e);

/* An existing file that is open for writing. */
struct pack_direct_file {
    int fd, fd_direct;          /* -1: fd is not open; O_DIRECT was refused for fd_direct */
};
MUST_CHECK int pack_direct_open(struct pack_direct_file *f, const char *path);      /* returns -1 with errno set */
/*
 * Write n bytes at offset `at`. In memory, the bytes must be at pack_direct_place(room, at). Whole blocks bypass the
 * page cache. May be called from any thread. Returns -1 with errno set.
 */
MUST_CHECK int pack_direct_write(const struct pack_direct_file *f, const uint8_t *p, size_t n, uint64_t at);
MUST_CHECK int pack_direct_close(struct pack_direct_file *f);       /* syncs and closes the file; returns -1 with
                                                                     * errno set */

#endif
