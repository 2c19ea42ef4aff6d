/*
 * edit_universal.h - change the parameters of a universal form in .pt files
 *
 * Internal to this folder. Each parameter has a folder of its own, and the files in it do not contain the parameter's
 * name. If a parameter is renamed or duplicated, its files therefore need not be written again. They are written again
 * only if their contents change.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_UNIVERSAL_H
#define SHARDKIT_LAYOUT_EDIT_UNIVERSAL_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/edit/edit_states.h"
#include "libcommon/layout/zero/zero_target.h"

/*
 * A list of tensors, and the source from which they are written. If `listed` is true, the source's parameters are the
 * entries of the list, in the same order. Otherwise they are the parameters of the original source.
 */
struct edit_placing {
    const struct edit_states *list;
    const struct source *src;
    bool listed;
};
/*
 * Keep the folders of the parameters in the list, and drop all others. Files get the names in the list, and new
 * contents where states changed. Returns -1 with ERR_DATA as edit_states_apply() does.
 */
MUST_CHECK int edit_universal_place(struct edit *x, const struct edit_placing *to, struct err *e);
/* Returns -1 with ERR_USAGE if a name in the list cannot be the name of a folder, or occurs twice. */
MUST_CHECK int edit_universal_check(const struct edit *x, const struct edit_states *list, struct err *e);
/*
 * Set *padded to true if the parameter's fp32.pt stores padding rows and a padding tensor. Returns -1 with ERR_DATA if
 * the file cannot be opened.
 */
MUST_CHECK int edit_universal_padded(struct edit *x, const struct param *p, bool *padded, struct err *e);
/*
 * Edit a universal form made from a checkpoint of the pipeline engine. `to` is the changed source. `t` is the engine's
 * target made from `to`; the trees of `t` become those of the model_states files. Returns -1 with ERR_USAGE or ERR_DATA
 * as edit_states_apply() does.
 */
MUST_CHECK int edit_universal(struct edit *x, struct source *to, struct ds_target *t, struct err *e);
/*
 * Rename or drop parameters of a universal form made from a checkpoint of the pipeline engine, and update its
 * model_states files. The edit owns the list after the call, even on error.
 */
MUST_CHECK int edit_universal_list(struct edit *x, struct edit_states *list, struct err *e);
/*
 * Edit a universal form made from a ZeRO run without pipeline (edit_universal_zero.c). `to` has the same parameters as
 * x->states, in the same order. `t` is made from `to` and may be freed after the call. Returns -1 with ERR_DATA also if
 * a model_states file does not belong to any rank, or cannot be written again.
 */
MUST_CHECK int edit_universal_zero(struct edit *x, const struct source *to, const struct zero_target *t,
                                   struct err *e);

/*
 * Write each state with hit[param * STATE_N + state] == true as a new file. A file that was missing is added. `list`
 * must be the unchanged list of the source's parameters. The edit owns the list after the call, even on error. Returns
 * -1 with ERR_DATA if a parameter has no readable state file.
 */
MUST_CHECK int edit_universal_fill(struct edit *x, struct edit_states *list, const bool *hit, struct err *e);
/*
 * Write those .pt files again whose zip container is damaged but whose records are intact. Files that the edit writes
 * in any case are skipped. *n is set to the number of files. Returns -1 if a file cannot be read.
 */
MUST_CHECK int edit_universal_mend_containers(struct edit *x, int *n, struct err *e);

#endif
