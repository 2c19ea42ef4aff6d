/*
 * pack_direct.h - read and write pieces of files without the page cache
 *
 * A frame is read once and written once, so the page cache has no benefit, and it is expensive: 0.3 CPU seconds per
 * GB read and 0.6 per GB written; with O_DIRECT 0.05 remain. If a file system refuses O_DIRECT, the page
 * cache is used. A buffer may be used by only one thread at a time.
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
 * Returns an aligned buffer for `n` bytes that may begin and end at any offset within such a block. The caller
 * frees it.
 */
uint8_t *pack_direct_new(size_t n);
/* Returns where byte `at` of a file must be placed in such a buffer, so that whole blocks are aligned. */
uint8_t *pack_direct_place(uint8_t *room, uint64_t at);
/*
 * Read bytes [at, at + n) of a file to pack_direct_place(room, at), and return that address. Adjacent bytes in
 * `room` are overwritten. Returns NULL with ERR_SYS, or with ERR_DATA if the file is shorter.
 */
uint8_t *pack_direct_read(struct files *f, int file, uint64_t at, size_t n, uint8_t *room, struct err *e);

/* An existing file that is open for writing. */
struct pack_direct_file {
    int fd, fd_direct;          /* -1: not open, or O_DIRECT was refused */
};
MUST_CHECK int pack_direct_open(struct pack_direct_file *f, const char *path);      /* -1 with errno */
/*
 * Write n bytes, which must be stored at pack_direct_place() of `at`. Whole blocks bypass the page cache. From any
 * thread. Returns -1 with errno.
 */
MUST_CHECK int pack_direct_write(const struct pack_direct_file *f, const uint8_t *p, size_t n, uint64_t at);
MUST_CHECK int pack_direct_close(struct pack_direct_file *f);       /* syncs the file; -1 with errno */

#endif
