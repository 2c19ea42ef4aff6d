/*
 * edit_pipeline.h - change layers, vocabulary or type of a checkpoint of the pipeline engine
 *
 * Applies to 3D shards and universal forms made from them. Parameters are numbered and grouped by the engine's own
 * rules, so the result is what the engine would have saved: layers are distributed over stages, groups and ZeRO's
 * partitions are laid out, arguments and param_shapes are updated. All states of a parameter change with it. 3D shards
 * are written again as a whole. In a universal form (edit_universal.c), the files of tensors that stay, or only change
 * their name, are not written again.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_PIPELINE_H
#define SHARDKIT_LAYOUT_EDIT_PIPELINE_H

#include "libcommon/layout/edit/edit_rows.h"

struct report;

/* Returns true if the source is a checkpoint of 3D shards, or a universal form made from one. */
bool edit_is_pipeline(const struct source *s);

struct edit_model {                     /* the changes; members that are 0 change nothing */
    const int *picked;                  /* layer i of the result is the source's layer picked[i]; NULL to keep all */
    int n_picked;
    struct edit_rows *rows;             /* new number of rows of the vocabulary; NULL to keep it */
    bool cast;                          /* convert the weights to type `weights`, which is bf16 or fp16 */
    enum dtype weights;
};
/* Returns the number of transformer layers, or -1 with ERR_DATA if the tables that list them cannot be read. */
MUST_CHECK int edit_pipeline_layers(struct edit *x, struct err *e);
/*
 * Compute q->rows, the number of rows for q->tokens tokens. It includes padding by Megatron's rule
 * (edit_rows_padded()), except if the source is a universal form without padding rows. Returns the number of bytes that
 * the new rows need in a spool file, for which the caller sets q->fd and q->file. Returns -1 with ERR_USAGE if there is
 * no vocabulary.
 */
MUST_CHECK int64_t edit_pipeline_rows(struct edit *x, struct edit_rows *q, struct err *e);
/*
 * Apply the changes. `notes` lists what is derived or left out. Returns -1 with ERR_USAGE if the engine cannot hold
 * such a model, or with ERR_DATA or ERR_SYS.
 */
MUST_CHECK int edit_pipeline(struct edit *x, const struct edit_model *m, struct report *notes, struct err *e);

#endif
