/*
 * deepspeed_edit.h - values of the mp_rank files that the user changes (--set, --set-type)
 *
 * KEY=VALUE: KEY is an argument as `ckpt-inspect args` prints it ("lr", or "args.lr"), or the path
 * of a value in the file ("lr_scheduler.max_lr"). VALUE is JSON and stays what the present one is:
 * a number, text, a list of the same, an enum's member; text needs no quotes where text stands now.
 * What follows from the topology or the tensors is refused, with the option that changes it.
 *
 * For the room only.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_EDIT_H
#define SHARDKIT_LAYOUT_DEEPSPEED_EDIT_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"

/* Read them all against the source's first mp_rank file, into t->edit. ERR_USAGE: one that cannot be. */
MUST_CHECK int ds_edits_read(struct ds_target *t, const struct ds_set *set, int n, struct err *e);
/* Put them into the tree of an mp_rank file, where it has the keys. */
void ds_edits_apply(const struct ds_target *t, struct arena *a, struct pk *root);

#endif
