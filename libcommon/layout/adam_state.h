/*
 * adam_state.h - Adam's state in the tree of an optimizer's file, however DeepSpeed keeps it
 *
 *   base_optimizer_state    {state {id: {...}}, param_groups}, one flat tensor a group; the elastic form is a list of
 *                           the groups' states alone
 *   optimizer_state_dict    ZeRO-3: {state {sub-group: {...}}, param_groups}
 *
 * Where optimizers keep their counter (docs/formats.md, section 4.3): torch's in the state, as a tensor;
 * DeepSpeed's FusedAdam there as an int beside a constant 0 in the group; apex's in the
 * group only; the elastic form in a key of its own.
 */
#ifndef SHARDKIT_LAYOUT_ADAM_STATE_H
#define SHARDKIT_LAYOUT_ADAM_STATE_H

#include <stdbool.h>

#include "libcommon/base/report.h"
#include "libcommon/format/pt.h"

/* An optimizer's file being read. */
struct adam_file {
    struct files *files;                /* in which pt's records are numbered */
    const struct pt *pt;
    const char *path;                   /* for findings */
    const struct pk *opt;               /* its optimizer_state_dict */
};

/* {state, param_groups} or the list, whichever key it stands under; NULL: none. */
const struct pk *adam_base(const struct pk *opt);
/* Item i of a list or tuple, or NULL. */
const struct pk *adam_list_at(const struct pk *list, int i);
/* The state dict of group (ZeRO-3: sub-group) g, or NULL. */
const struct pk *adam_group_state(const struct pk *opt, int g);

struct adam_step {
    bool found, in_state, is_tensor;
    double value;
};
/* The counter of group g; an ERROR in the report where what stands there is none. */
struct adam_step adam_find_step(const struct adam_file *a, int g, struct report *r);
/* Adam keeps two moments and a counter; anything more, an ERROR, would be lost without a word. */
void adam_check(const struct adam_file *a, int g, struct report *r);
/* Do these settings of a group ask for both moments? Those of Adam and its kin have two betas and an epsilon. */
bool adam_is_due(const struct pk *settings);

/*
 * What the file says of the optimizer that all ranks of a save share: a line per setting of its groups, of the loss
 * scale and of clipping ("param_groups.0.lr 0.001"). Caller frees.
 */
char *adam_settings(const struct adam_file *a);
/*
 * The first line on which two such texts differ, or the end of a list of lines: false where there is none. The two
 * lines, "" for none, into a and b.
 */
bool adam_settings_differ(const char *x, const char *y, char a[160], char b[160]);

#endif
