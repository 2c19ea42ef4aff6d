/*
 * pack_output.h - a file that many threads write from its begin to its end, around the page cache
 *
 * What is added gathers in a block. Whoever fills one gets it for a block of its own, and writes it while others go on:
 * with O_DIRECT, where the file system takes that. The way through the page cache cost more than packing (0.65 CPU
 * seconds a GB, of which 0.05 are left), and threw out what others have there; the file is read again from the disk
 * anyway.
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

uint8_t *pack_block_new(void);          /* free() it */
/* A file made anew. On -1, too, pack_output_close() it. */
MUST_CHECK int pack_output_open(struct pack_output *o, const char *path, struct err *e);
/*
 * Add at most PACK_BLOCK bytes; one thread at a time. True: *spare is now a full block, bytes [*at, *at + PACK_BLOCK)
 * of the file, which the caller has to write; any thread may meanwhile add more.
 */
bool pack_output_add(struct pack_output *o, const void *p, size_t n, uint8_t **spare, uint64_t *at);
MUST_CHECK int pack_output_write(struct pack_output *o, const uint8_t *block, uint64_t at, struct err *e);
/* Add any number of bytes, the last, and sync the file. One thread, when all full blocks are written. */
MUST_CHECK int pack_output_finish(struct pack_output *o, const void *p, size_t n, struct err *e);
void pack_output_close(struct pack_output *o);

#endif
