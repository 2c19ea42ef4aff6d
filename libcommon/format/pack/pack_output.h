/*
 * pack_output.h - a file that many threads write sequentially, without the page cache
 *
 * Added bytes are collected in a block. The thread that fills the block receives it in exchange for one of its own,
 * and writes it while other threads continue. Blocks are written with O_DIRECT if the file system supports it.
 * Writing through the page cache cost more than packing (0.65 CPU seconds per GB; 0.05 remain), and
 * evicted the data of others. The file is read from the disk again anyway.
 */
#ifndef SHARDKIT_FORMAT_PACK_PACK_OUTPUT_H
#define SHARDKIT_FORMAT_PACK_PACK_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

#define PACK_BLOCK ((size_t)4 << 20)

struct pack_output {
    const char *path;
    int fd;
    uint8_t *block;             /* bytes [at, at + n) of the file */
    uint64_t at;
    size_t n;
};

uint8_t *pack_block_new(void);          /* the caller frees it */
/* Create or replace a file. pack_output_close() must be called even after -1. */
MUST_CHECK int pack_output_open(struct pack_output *o, const char *path, struct err *e);
/*
 * Add at most PACK_BLOCK bytes; only one thread at a time. If it returns true, *spare is now a full block with
 * bytes [*at, *at + PACK_BLOCK) of the file, which the caller must write. Any thread may add more in the meantime.
 */
bool pack_output_add(struct pack_output *o, const void *p, size_t n, uint8_t **spare, uint64_t *at);
MUST_CHECK int pack_output_write(struct pack_output *o, const uint8_t *block, uint64_t at, struct err *e);
/*
 * Add any number of bytes, which are the last, and sync the file. Must be called by one thread, after all full
 * blocks have been written.
 */
MUST_CHECK int pack_output_finish(struct pack_output *o, const void *p, size_t n, struct err *e);
void pack_output_close(struct pack_output *o);

#endif
