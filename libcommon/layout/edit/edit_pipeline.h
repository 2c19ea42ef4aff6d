/*
 * edit_pipeline.h - change layers, vocabulary or type of a checkpoint of the pipeline engine
 *
 * Applies to 3D shards and universal forms made from them. The engine's own rules number and group their parameters,
 * so the result is what the engine would have saved: layers are distributed over stages, groups and ZeRO's
 * partitions are laid out, arguments and param_shapes are updated. Every state follows its parameter. 3D shards are
 * written again as a whole. In a universal form (edit_universal.c) files of tensors that stay, or only change their
 * name, are shared.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_PIPELINE_H
#define SHARDKIT_LAYOUT_EDIT_PIPELINE_H

#include "libcommon/layout/edit/edit_rows.h"

struct report;

/* Returns true if the source is of that kind. */
bool edit_is_pipeline(const struct source *s);

struct edit_model {                     /* the changes */
    const int *picked;                  /* block i is the source's block picked[i]; NULL to keep all */
    int n_picked;
    struct edit_rows *rows;             /* rows of the vocabulary; NULL to keep them */
    bool cast;                          /* 3D shards: convert weights to type `weights`, bf16 or fp16 */
    enum dtype weights;
};
/* Returns the number of blocks, or -1 with ERR_DATA if the tables that list them cannot be read. */
MUST_CHECK int edit_pipeline_layers(struct edit *x, struct err *e);
/*
 * Compute the number of rows for q->tokens: a multiple of what Megatron pads to, or its pad_vocab_size_to. Returns
 * the number of bytes that new rows need in a spool, for which q->fd and q->file are used. Returns -1 with ERR_USAGE
 * if there is no vocabulary.
 */
MUST_CHECK int64_t edit_pipeline_rows(struct edit *x, struct edit_rows *q, struct err *e);
/*
 * Apply the changes. `notes` lists what is derived or left out. Returns -1 with ERR_USAGE if no such model is
 * possible, or with ERR_DATA or ERR_SYS.
 */
MUST_CHECK int edit_pipeline(struct edit *x, const struct edit_model *m, struct report *notes, struct err *e);

#endif
