/*
 * delta_index.h - the parts of a delta file that its writer and its reader share
 *
 * A delta is, in order: head, packed blocks, index, tail. The index lists the two sides, the tensors and the blocks.
 */
#ifndef SHARDKIT_FORMAT_DELTA_DELTA_INDEX_H
#define SHARDKIT_FORMAT_DELTA_DELTA_INDEX_H

#include "libcommon/base/mem.h"
#include "libcommon/format/delta/delta.h"

enum { DELTA_HEAD_BYTES = 16, DELTA_TAIL_BYTES = 32 };

struct delta_tail {
    uint64_t index_at, index_len;
    uint32_t index_crc;
};

void delta_put_head(uint8_t head[DELTA_HEAD_BYTES]);
bool delta_is_head(const uint8_t head[DELTA_HEAD_BYTES]);
void delta_put_tail(uint8_t tail[DELTA_TAIL_BYTES], const struct delta_tail *t);
/* Returns false if these bytes are no tail. */
bool delta_get_tail(const uint8_t tail[DELTA_TAIL_BYTES], struct delta_tail *t);
/* Set first_block of each tensor. Returns the number of all blocks. */
uint64_t delta_count_blocks(struct delta_index *x);
void delta_put_index(struct strbuf *sb, const struct delta_index *x);
/*
 * Parse the t->index_len bytes at p, check all sizes, and locate the blocks. Tensors and names are allocated in `a`.
 * `path` is for messages. Returns -1 with ERR_DATA.
 */
MUST_CHECK int delta_get_index(struct delta_index *x, struct arena *a, const uint8_t *p, const struct delta_tail *t,
                               const char *path, struct err *e);

#endif
