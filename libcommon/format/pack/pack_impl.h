/*
 * pack_impl.h - declarations shared by the writer and the reader of packed files
 */
#ifndef SHARDKIT_FORMAT_PACK_PACK_IMPL_H
#define SHARDKIT_FORMAT_PACK_PACK_IMPL_H

#include "libcommon/base/mem.h"
#include "libcommon/format/pack/pack.h"

enum { PACK_HEAD_BYTES = 32, PACK_TAIL_BYTES = 32 };

/* The parts of a packed file are, in order: head, frames, index, tail. */
struct pack_tail {
    uint64_t index_at, index_len;
    uint32_t index_crc;
};

/* The bytes of one frame before packing: a range of a run. */
struct pack_piece {
    const struct pack_run *run;
    uint64_t at;                /* offset in the run's file */
    uint32_t len;               /* unpacked size in bytes */
};

void pack_head_put(uint8_t head[PACK_HEAD_BYTES]);
void pack_tail_put(uint8_t tail[PACK_TAIL_BYTES], const struct pack_tail *t);
void pack_index_put(struct strbuf *sb, const struct pack_index *x);
/*
 * Parse and validate the index. `path` is for messages. The caller must call pack_index_free() even if the result is
 * -1.
 */
MUST_CHECK int pack_index_get(struct pack_index *x, const uint8_t *p, const struct pack_tail *t, const char *path,
                              struct err *e);
/* Compute first_run, first_frame and n_frames from the runs. */
void pack_index_count(struct pack_index *x);
/* Returns NULL if the run's guess is valid, and otherwise the reason why it is not valid. */
const char *pack_guess_wrong(const struct pack_index *x, const struct pack_run *run);
struct pack_piece pack_piece(const struct pack_index *x, uint64_t frame);
/* Returns the run that contains byte `at` of a file. */
const struct pack_run *pack_run_at(const struct pack_index *x, int file, uint64_t at);

#endif
