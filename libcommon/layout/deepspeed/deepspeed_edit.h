/*
 * deepspeed_edit.h - changes to values of the mp_rank files (--set, --set-type)
 *
 * KEY=VALUE: KEY is an argument as `ckpt-inspect args` prints it ("lr", or "args.lr"), or the path of a value in the
 * file ("lr_scheduler.max_lr"). VALUE is JSON and keeps the type of the present value: a number, text, a list of the
 * same, an enum's member; text needs no quotes if the present value is text. Values that follow from the topology or
 * the tensors are refused, with the option that changes them.
 *
 * Internal.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_EDIT_H
#define SHARDKIT_LAYOUT_DEEPSPEED_EDIT_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/*
 * Read all edits, checked against the source's first mp_rank file, into t->edit. Returns -1 with ERR_USAGE for an
 * invalid one.
 */
MUST_CHECK int ds_edits_read(struct ds_target *t, const struct ds_set *set, int n, struct err *e);
/* Apply the edits to the tree of an mp_rank file, for the keys that it has. */
void ds_edits_apply(const struct ds_target *t, struct arena *a, struct pk *root);

#endif
