/*
 * edit_pipeline.h - another model out of a checkpoint of the pipeline engine: layers, vocabulary, type
 *
 * 3D shards and universal forms made of them. Their parameters are numbered and grouped by the engine's own rules, so
 * the result is what the engine would have saved: stages dealt out, groups and ZeRO's cuts laid, arguments and
 * param_shapes said anew. Every state follows its parameter. 3D shards are written anew as a whole; of a universal form
 * (edit_universal.c) files of tensors that stay, or get another name, are shared.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_PIPELINE_H
#define SHARDKIT_LAYOUT_EDIT_PIPELINE_H

#include "libcommon/layout/edit/edit_rows.h"

/* Is the source of that kind? */
bool edit_is_pipeline(const struct source *s);

struct edit_model {                     /* what it becomes */
    const int *picked;                  /* block i is the source's block picked[i]; NULL: as they are */
    int n_picked;
    struct edit_rows *rows;             /* of the vocabulary; NULL: as they are */
    bool cast;                          /* 3D shards: weights of type `weights`, bf16 or fp16 */
    enum dtype weights;
};
/* How many blocks there are. -1: ERR_DATA, what lists them cannot be read. */
MUST_CHECK int edit_pipeline_layers(struct edit *x, struct err *e);
/*
 * Settle the rows for q->tokens: a multiple of what Megatron pads to, or its pad_vocab_size_to. The bytes that new rows
 * take in a spool, for which q->fd and q->file are. -1: ERR_USAGE, there is no vocabulary.
 */
MUST_CHECK int64_t edit_pipeline_rows(struct edit *x, struct edit_rows *q, struct err *e);
/* Notes: what is made up or left behind. -1: ERR_USAGE, there is no such model; ERR_DATA, ERR_SYS. */
MUST_CHECK int edit_pipeline(struct edit *x, const struct edit_model *m, struct report *notes, struct err *e);

#endif
