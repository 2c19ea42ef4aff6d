/*
 * adam_state.h - Adam's state in the tree of an optimizer's file, in any form that DeepSpeed writes
 *
 *   base_optimizer_state    {state {id: {...}}, param_groups}, one flat tensor per group; the elastic form is only a
 *                           list of the groups' states
 *   optimizer_state_dict    ZeRO-3: {state {sub-group: {...}}, param_groups}
 *
 * Optimizers store their counter in different places (docs/formats.md, section 4.3). torch's optimizer stores it in
 * the state, as a tensor. DeepSpeed's FusedAdam stores it in the state as an int, and a constant 0 in the group.
 * apex's stores it only in the group. The elastic form has a key of its own.
 */
#ifndef SHARDKIT_CKPT_ADAM_STATE_H
#define SHARDKIT_CKPT_ADAM_STATE_H

#include <stdbool.h>

#include "libcommon/base/report.h"
#include "libcommon/format/pt.h"

/* An optimizer's file that is being read. */
struct adam_file {
    struct files *files;                /* in which pt's records are numbered */
    const struct pt *pt;
    const char *path;                   /* for findings */
    const struct pk *opt;               /* its optimizer_state_dict */
};

/*
 * Returns the optimizer's dict {state, param_groups} or list, whichever key of `opt` it is stored under. Returns NULL
 * if there is none.
 */
const struct pk *adam_base(const struct pk *opt);
/* Returns item i of a list or tuple, or NULL. */
const struct pk *adam_list_at(const struct pk *list, int i);
/* Returns the state dict of group (ZeRO-3: sub-group) g, or NULL. */
const struct pk *adam_group_state(const struct pk *opt, int g);

struct adam_step {
    bool found, in_state, is_tensor;
    double value;
};
/* Returns Adam's step counter of group g. Reports an ERROR if the stored value is not a counter. */
struct adam_step adam_find_step(const struct adam_file *a, int g, struct report *r);
/*
 * Report an ERROR for any state other than Adam's two moments and counter, because a conversion would lose it silently.
 */
void adam_check(const struct adam_file *a, int g, struct report *r);
/*
 * Returns true if these settings of a group imply that both moments exist. Settings of Adam and similar optimizers have
 * two betas and an epsilon.
 */
bool adam_is_due(const struct pk *settings);

/*
 * Returns the optimizer's settings in the file, which all ranks of a save share, as text. It has one line per setting
 * of the groups ("param_groups.0.lr 0.001"), of the loss scale and of clipping, and for the ZeRO stage, the paddings,
 * the step counter and the release of DeepSpeed. The caller frees it.
 */
char *adam_settings(const struct adam_file *a);
/*
 * Find the first line in which two texts of adam_settings() differ; one text may end earlier. Returns false if there is
 * none. `a` and `b` receive the two lines, "" for a missing one.
 */
bool adam_settings_differ(const char *x, const char *y, char a[160], char b[160]);

#endif
