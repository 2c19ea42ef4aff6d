/*
 * pack_direct.h - pieces of files around the page cache
 *
 * A frame is read once and written once, so nothing is gained by having it in the page cache, and the way through it
 * is dear: 0.3 CPU seconds a GB read, 0.6 a GB written, where 0.05 are left. Where a file system refuses O_DIRECT
 * pieces go through the page cache after all.
 * Threads: a buffer belongs to one.
 */
#ifndef SHARDKIT_FORMAT_PACK_PACK_DIRECT_H
#define SHARDKIT_FORMAT_PACK_PACK_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/files.h"

enum { PACK_ALIGN = 4096 };             /* of places in files, and of memory, as O_DIRECT wants them */

/* Memory for `n` bytes that begin at any byte of such a block, and end at any: aligned; free() it. */
uint8_t *pack_direct_new(size_t n);
/* Where in such memory byte `at` of a file belongs, so that whole blocks lie where they must. */
uint8_t *pack_direct_place(uint8_t *room, uint64_t at);
/*
 * Bytes [at, at + n) of a file: to pack_direct_place(room, at), which is returned. What lies round them in `room` is
 * overwritten. NULL: ERR_SYS; ERR_DATA when the file is shorter.
 */
uint8_t *pack_direct_read(struct files *f, int file, uint64_t at, size_t n, uint8_t *room, struct err *e);

/* A file that is there, to be written to. */
struct pack_direct_file {
    int fd, fd_direct;          /* -1: not open, refused */
};
MUST_CHECK int pack_direct_open(struct pack_direct_file *f, const char *path);      /* errno on -1 */
/* n bytes, at pack_direct_place() of `at`: whole blocks of them around the page cache. Any thread. errno on -1. */
MUST_CHECK int pack_direct_write(const struct pack_direct_file *f, const uint8_t *p, size_t n, uint64_t at);
MUST_CHECK int pack_direct_close(struct pack_direct_file *f);       /* synced; errno on -1 */

#endif
