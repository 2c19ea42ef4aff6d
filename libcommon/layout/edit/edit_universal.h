/*
 * edit_universal.h - a universal form in .pt files with other parameters
 *
 * For the room only. A parameter has a folder of its own, and no file says its name: what gets another name, or stands
 * for two, is shared; files are made anew where rows of the vocabulary change.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_UNIVERSAL_H
#define SHARDKIT_LAYOUT_EDIT_UNIVERSAL_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/edit/edit_states.h"

/* Does the parameter's file keep padding rows, and a row to pad with? ERR_DATA: it cannot be opened. */
MUST_CHECK int edit_universal_padded(struct edit *x, const struct param *p, bool *padded, struct err *e);
/*
 * `to` is the source as it is to be, `t` what the engine makes of it, for the model_states files. ERR_USAGE, ERR_DATA
 * as edit_states_apply().
 */
MUST_CHECK int edit_universal(struct edit *x, struct source *to, struct ds_target *t, struct err *e);
/* Other names alone, which model_states files get, too; the list becomes the edit's in any case. */
MUST_CHECK int edit_universal_rename(struct edit *x, struct edit_states *list, struct err *e);

#endif
