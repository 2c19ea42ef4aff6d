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
#include "libcommon/layout/zero/zero_target.h"

/* A list, and the source as it is to be: its parameters are the list's, one by one, or numbered as the source's. */
struct edit_placing {
    const struct edit_states *list;
    const struct source *src;
    bool listed;
};
/* Folders of parameters that the list leaves out go, others get its names and states. ERR_DATA: edit_states_apply(). */
MUST_CHECK int edit_universal_place(struct edit *x, const struct edit_placing *to, struct err *e);
/* Names are those of folders, and each is one parameter's. ERR_USAGE */
MUST_CHECK int edit_universal_check(const struct edit *x, const struct edit_states *list, struct err *e);
/* Does the parameter's file keep padding rows, and a row to pad with? ERR_DATA: it cannot be opened. */
MUST_CHECK int edit_universal_padded(struct edit *x, const struct param *p, bool *padded, struct err *e);
/*
 * `to` is the source as it is to be, `t` what the engine makes of it, for the model_states files. ERR_USAGE, ERR_DATA
 * as edit_states_apply().
 */
MUST_CHECK int edit_universal(struct edit *x, struct source *to, struct ds_target *t, struct err *e);
/*
 * Of one of the pipeline engine: other names, and fewer parameters; model_states files say so, too. The list becomes
 * the edit's in any case.
 */
MUST_CHECK int edit_universal_list(struct edit *x, struct edit_states *list, struct err *e);
/*
 * Of one of ZeRO without pipeline (edit_universal_zero.c): `to` has the parameters of x->states, one by one, `t` is
 * made of it and may be freed then. ERR_DATA, too: a model_states file is of no rank, or cannot be made anew.
 */
MUST_CHECK int edit_universal_zero(struct edit *x, const struct source *to, const struct zero_target *t,
                                   struct err *e);

#endif
