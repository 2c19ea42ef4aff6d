/*
 * adam_state.h - find Adam's state in the tree of an optimizer file, in any form that DeepSpeed writes
 *
 *   base_optimizer_state    {state {id: {...}}, param_groups}, one flat tensor per group; the elastic form is only a
 *                           list of the groups' states
 *   optimizer_state_dict    ZeRO-3: {state {sub-group: {...}}, param_groups}
 *
 * Optimizers store their counter in different places (docs/formats.md, section 4.3). torch's optimizer stores it in the
 * state, as a tensor. DeepSpeed's FusedAdam stores it in the state as an int, and a constant 0 in the group. apex's
 * optimizer stores it only in the group. The elastic form stores it under a key of its own.
 */
#ifndef SHARDKIT_CKPT_ADAM_STATE_H
#define SHARDKIT_CKPT_ADAM_STATE_H

#include <stdbool.h>

#include "libcommon/base/report.h"
#include "libcommon/format/pt.h"

/* An optimizer file that is being read. */
struct adam_file {
    struct files *files;                /* the set of files that pt's records belong to */
    const struct pt *pt;
    const char *path;                   /* name of the file in findings */
    const struct pk *opt;               /* the optimizer_state_dict in the file */
};

/*
 * Find the inner optimizer's state in `opt`, a dict {state, param_groups} or a list, which is stored under one of two
 * keys. Returns NULL if there is none.
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
/* Returns true if `step` is a whole number of at least 0, as the step counter of every optimizer is. */
bool adam_step_is_valid(double step);
/*
 * Read v, which is a plain number or a tensor of one element in `pt`. The record of a tensor is checked. *is_tensor is
 * set to true for a tensor. Returns false if v is not a number. Also returns false, after a finding "crc", if the
 * tensor cannot be read.
 */
bool adam_read_number(struct files *files, const struct pt *pt, const struct pk *v, struct report *r, double *value,
                      bool *is_tensor);
/*
 * Returns Adam's step counter of group g (ZeRO-3: sub-group). `found` is false, and an ERROR is reported, in two cases:
 * the stored value is not a whole number of at least 0, or the group has both moments but no step. If g is 0, an ERROR
 * is also reported for a step in the settings of any group that is larger than the step of the states.
 */
struct adam_step adam_find_step(const struct adam_file *a, int g, struct report *r);
/*
 * Report an ERROR for each state of group g that is neither a moment of Adam nor Adam's step counter, because a
 * conversion would silently lose this state.
 */
void adam_check(const struct adam_file *a, int g, struct report *r);
/*
 * The groups of the optimizer in a file, and the number of flat vectors (groups of param_shapes) that belong to them.
 */
struct adam_groups {
    const char *path;                   /* name of the file in findings */
    const struct pk *groups;            /* param_groups */
    const struct pk *state;             /* the states by their numbers; NULL if the file has none */
    int n_vectors;
    bool sub_groups;                    /* ZeRO-3: a group has several vectors; otherwise it has one */
};
/*
 * Check that every vector belongs to one group, and every state to one group. If two groups named the same state, they
 * would share the moments of this state. A vector without a group would lose its settings. Reports ERRORs "groups".
 * Reports nothing if there is no list of groups, as in the elastic form.
 */
void adam_check_groups(const struct adam_groups *a, struct report *r);
/*
 * Returns true if a group with these settings must have both moments. This is the case if the settings contain two
 * betas and an epsilon, like those of Adam and similar optimizers.
 */
bool adam_is_due(const struct pk *settings);

/*
 * Returns the optimizer's settings in the file as text. The text serves to compare files, because all ranks of a save
 * have the same settings. There is one line for each setting of the groups ("param_groups.0.lr 0.001"), of the loss
 * scale and of clipping, and one line each for the ZeRO stage, the paddings, the step counter and DeepSpeed's version.
 * A file with param_slice_mappings has another line for these. The caller frees the text.
 */
char *adam_settings(const struct adam_file *a);
/*
 * Report a WARNING "missing_key" if a file with these settings has no param_slice_mappings. Report a NOTE instead if
 * DeepSpeed did not write them in the version `version`. `path` is the name of the file.
 */
void adam_check_mappings(const char *settings, const char *version, const char *path, struct report *r);
/*
 * Find the first line that differs between two texts of adam_settings(), and copy both versions of this line to `a` and
 * `b`. If one text ends at this point, its line is "". Returns false if the texts are equal.
 */
bool adam_settings_differ(const char *x, const char *y, char a[160], char b[160]);
/*
 * Compare the texts of two pipeline stages like adam_settings_differ(). Only settings that all stages share are
 * compared, and only as long as both texts list the same settings, because stages may have different groups.
 */
bool adam_stage_settings_differ(const char *x, const char *y, char a[160], char b[160]);

/* The code of the findings of adam_report_no_state(). verify prints a NOTE with this code even without -v. */
#define ADAM_NO_STATE "no_state"
/*
 * Report that `lacking` of n parameters of an optimizer have no state. `first` is one of these parameters. Nothing is
 * reported if `lacking` is 0. The finding is a NOTE, because torch lists frozen parameters in groups and writes no
 * states for them. It is a WARNING if no parameter has a state, or if some bytes of the files belong to no entry
 * (`spare`), because these bytes may be the lost states.
 */
void adam_report_no_state(struct report *r, const char *path, const char *first, int lacking, int n, bool spare);
/*
 * Returns the number of missing or empty dicts among the n dicts of states. *first receives the index of the first such
 * dict, and is unchanged if there is none.
 */
int adam_count_stateless(const struct pk *const *state, int n, int *first);
/*
 * Report an ERROR "step" once for each file in which a state has both moments of Adam but no step, if the optimizer's
 * groups have no step either. `groups` is the list of the groups' settings. `path` is the name of the file.
 */
void adam_check_step_there(const struct pk *state, const struct pk *groups, const char *path, struct report *r);

#endif
