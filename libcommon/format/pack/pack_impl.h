/*
 * pack_impl.h - what the writer and the reader of packed files share
 */
#ifndef SHARDKIT_FORMAT_PACK_PACK_IMPL_H
#define SHARDKIT_FORMAT_PACK_PACK_IMPL_H

#include "libcommon/base/mem.h"
#include "libcommon/format/pack/pack.h"

enum { PACK_HEAD_BYTES = 32, PACK_TAIL_BYTES = 32 };

/* What lies where: the head, frames one behind the other, the index, the tail. */
struct pack_tail {
    uint64_t index_at, index_len;
    uint32_t index_crc;
};

/* Frame i of all: of which run, and which of its bytes. */
struct pack_piece {
    const struct pack_run *run;
    uint64_t at;                /* in the run's file */
    uint32_t len;               /* bytes, unpacked */
};

void pack_head_put(uint8_t head[PACK_HEAD_BYTES]);
void pack_tail_put(uint8_t tail[PACK_TAIL_BYTES], const struct pack_tail *t);
void pack_index_put(struct strbuf *sb, const struct pack_index *x);
/* All checked; `path` for messages, where the index begins at byte `at`. On -1, too, pack_index_free() it. */
MUST_CHECK int pack_index_get(struct pack_index *x, const uint8_t *p, const struct pack_tail *t, const char *path,
                              struct err *e);
/* first_run, first_frame and n_frames, from the runs. */
void pack_index_count(struct pack_index *x);
/* NULL, or why the run may not have its guess. */
const char *pack_guess_wrong(const struct pack_index *x, const struct pack_run *run);
struct pack_piece pack_piece(const struct pack_index *x, uint64_t frame);
/* The run that byte `at` of a file is in. */
const struct pack_run *pack_run_at(const struct pack_index *x, int file, uint64_t at);

#endif
