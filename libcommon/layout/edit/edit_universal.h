/*
 * edit_universal.h - change the parameters of a universal form in .pt files
 *
 * Internal to this folder. Each parameter has a folder of its own, and no file contains its name. Files of a
 * parameter that is renamed or duplicated are therefore shared. Files are written again only if rows of the
 * vocabulary change.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_UNIVERSAL_H
#define SHARDKIT_LAYOUT_EDIT_UNIVERSAL_H

#include "libcommon/layout/deepspeed/deepspeed_target.h"
#include "libcommon/layout/edit/edit_states.h"
#include "libcommon/layout/zero/zero_target.h"

/*
 * A list and the changed source. With `listed` the source's parameters are those of the list, in the same order;
 * otherwise they are numbered as in the original source.
 */
struct edit_placing {
    const struct edit_states *list;
    const struct source *src;
    bool listed;
};
/*
 * Drop the folders of parameters that are not in the list, and give the others the list's names and states. Returns
 * -1 with ERR_DATA as edit_states_apply() does.
 */
MUST_CHECK int edit_universal_place(struct edit *x, const struct edit_placing *to, struct err *e);
/* Check that all names are valid for folders and distinct. Returns -1 with ERR_USAGE if not. */
MUST_CHECK int edit_universal_check(const struct edit *x, const struct edit_states *list, struct err *e);
/*
 * Set *padded if the parameter's file stores padding rows and a padding row. Returns -1 with ERR_DATA if it cannot
 * be opened.
 */
MUST_CHECK int edit_universal_padded(struct edit *x, const struct param *p, bool *padded, struct err *e);
/*
 * Edit a universal form of the pipeline engine. `to` is the changed source, `t` is the engine's target made from it,
 * for the model_states files. Returns -1 with ERR_USAGE or ERR_DATA as edit_states_apply() does.
 */
MUST_CHECK int edit_universal(struct edit *x, struct source *to, struct ds_target *t, struct err *e);
/*
 * Rename or drop parameters of a universal form of the pipeline engine. model_states files are updated. The edit
 * owns the list afterwards, even on error.
 */
MUST_CHECK int edit_universal_list(struct edit *x, struct edit_states *list, struct err *e);
/*
 * Edit a universal form of ZeRO without pipeline (edit_universal_zero.c). `to` has the parameters of x->states in
 * the same order. `t` is made from `to` and may be freed afterwards. Also returns -1 with ERR_DATA if a model_states
 * file does not belong to a rank or cannot be written again.
 */
MUST_CHECK int edit_universal_zero(struct edit *x, const struct source *to, const struct zero_target *t,
                                   struct err *e);

/*
 * Write states as new files: hit[param * STATE_N + state], of the list, which is the source's own. A file that is not
 * there is added. The list becomes the edit's in any case. ERR_DATA: a parameter has no readable state file.
 */
MUST_CHECK int edit_universal_fill(struct edit *x, struct edit_states *list, const bool *hit, struct err *e);
/*
 * Write .pt files again whose container is damaged and whose records are sound, so far as the edit does not make them
 * anyway. *n is their number. Returns -1 if a file cannot be read.
 */
MUST_CHECK int edit_universal_mend_containers(struct edit *x, int *n, struct err *e);

#endif
