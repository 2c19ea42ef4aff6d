/*
 * pack_output.h - a file that many threads write sequentially, without the page cache
 *
 * Added bytes are collected in a block. The thread that fills the block exchanges it for an empty block of its own, and
 * writes the full one while other threads continue. Blocks are written with O_DIRECT if the file system supports it.
 * Writing through the page cache took more time than packing (0.65 CPU seconds per GB instead of 0.05), and evicted
 * data of other programs. The cache would have no benefit, because the file is read back from the disk.
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
    uint8_t *block;             /* holds bytes [at, at + n) of the file */
    uint64_t at;
    size_t n;
};

uint8_t *pack_block_new(void);          /* the caller frees it */
/* Create or replace a file. The caller must call pack_output_close() even if the result is -1. */
MUST_CHECK int pack_output_open(struct pack_output *o, const char *path, struct err *e);
/*
 * Add at most PACK_BLOCK bytes. Only one thread at a time may call this. If the result is true, *spare has been
 * exchanged for a full block. This block holds bytes [*at, *at + PACK_BLOCK) of the file, and the caller must write it.
 * Other threads may add more bytes meanwhile.
 */
bool pack_output_add(struct pack_output *o, const void *p, size_t n, uint8_t **spare, uint64_t *at);
MUST_CHECK int pack_output_write(struct pack_output *o, const uint8_t *block, uint64_t at, struct err *e);
/*
 * Add the remaining bytes, of any number, and sync the file. Must be called by one thread, after all full blocks have
 * been written.
 */
MUST_CHECK int pack_output_finish(struct pack_output *o, const void *p, size_t n, struct err *e);
void pack_output_close(struct pack_output *o);

#endif
