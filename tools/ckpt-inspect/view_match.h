/* view_match.h - open views as the command line of ckpt-inspect requests */
#ifndef SHARDKIT_CKPT_INSPECT_VIEW_MATCH_H
#define SHARDKIT_CKPT_INSPECT_VIEW_MATCH_H

#include "libcommon/api/view.h"
#include "tools/ckpt-inspect/inspect.h"

/* Open `path` with view_open(), and list the tensors that --param and --state select. */
MUST_CHECK struct view *inspect_view(const struct inspect *in, const char *path, struct report *r, struct err *e);
/*
 * Make the names and shapes of two views comparable. If one view is a Transformers model and the other a checkpoint,
 * the model is opened again with Megatron's names and shapes. If the model of the checkpoint is of another family, the
 * checkpoint gets the names of the Transformers model instead. Returns -1 if Megatron cannot represent the model.
 */
MUST_CHECK int view_match(const struct inspect *in, struct view *a, struct view *b, struct err *e);

#endif
