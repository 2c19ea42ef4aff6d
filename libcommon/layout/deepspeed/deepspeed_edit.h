/*
 * deepspeed_edit.h - changes to values of the mp_rank files (--set, --set-type)
 *
 * An edit has the form KEY=VALUE. KEY is an argument as `ckpt-inspect args` prints it ("lr", or "args.lr"), or the path
 * of a value in the file ("lr_scheduler.max_lr"). VALUE is JSON and must have the type of the present value: a number,
 * text, the name of an enum member, or a list of these. Text needs no quotes if the present value is text. A value that
 * follows from the topology or the tensors cannot be edited; the error then names the option that changes it.
 *
 * Internal.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_EDIT_H
#define SHARDKIT_LAYOUT_DEEPSPEED_EDIT_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/*
 * Read the n edits in `set` into t->edit, and check them against the source's first mp_rank file. Returns -1 with
 * ERR_USAGE if one is not valid.
 */
MUST_CHECK int ds_edits_read(struct ds_target *t, const struct ds_set *set, int n, struct err *e);
/* Apply the edits to `root`, the tree of an mp_rank file. An edit of a key that the tree does not have is skipped. */
void ds_edits_apply(const struct ds_target *t, struct arena *a, struct pk *root);

#endif
