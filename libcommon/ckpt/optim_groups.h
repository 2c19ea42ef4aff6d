/*
 * optim_groups.h - the optimizer's groups, with the names of their parameters, for any layout
 *
 * To convert an optimizer to another layout, master weights and moments are not sufficient. The writer must also know
 * which parameters share settings, in which order the run listed them, and the settings. If the files of a layout store
 * settings together with names, its opener fills in source.groups. Other openers set source.read_groups, which reads
 * the groups from the layout's own tables when they are needed.
 */
#ifndef SHARDKIT_CKPT_OPTIM_GROUPS_H
#define SHARDKIT_CKPT_OPTIM_GROUPS_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct arena;
struct names;
struct report;
struct source;
/*
 * The name of the value that has the settings of the optimizer's groups in Megatron-LM's own folders. These folders
 * have no dict of an optimizer.
 */
#define MEGATRON_GROUPS "optimizer.groups"

struct optim_group {
    /*
     * The settings of the group, a dict with keys such as lr and betas. NULL if the settings are unknown. The key
     * "params" is ignored here; only the layout itself uses it.
     */
    const struct pk *settings;
    int n;
    const char **param;                 /* [n]: names of parameters in s->param */
};
/*
 * How the parameters of a group were determined. The parameters of a group have the order in which the run listed them
 * or, if this is not known, the order of the model.
 */
enum optim_groups_how {
    OPTIM_GROUPS_LISTED,                /* the files list the parameters of each group */
    /* The files store settings for each parameter; parameters with equal settings form a group. */
    OPTIM_GROUPS_BY_SETTINGS,
    /* The files do not list the parameters of a group; Megatron-core's standard rule is used. */
    OPTIM_GROUPS_BY_RULE,
    /* The files have settings, but the parameters of a group are unknown: `n` is 0 in each group. */
    OPTIM_GROUPS_UNLISTED,
};
struct optim_groups {
    int n;
    enum optim_groups_how how;
    struct optim_group *group;
};

/*
 * Check that the optimizer has only master weights and Adam's moments, because no other layout can store further
 * states. Returns -1 with ERR_DATA if there are further states. The error names them, and lists the results that can be
 * made without them.
 */
MUST_CHECK int optim_groups_adam_alone(const struct source *s, struct err *e);
/*
 * Read the groups and their parameters into *out. The memory is allocated in the arena. out->n is 0 if the source does
 * not define groups or does not define their parameters. Returns -1 with ERR_DATA if the source's tables contradict
 * each other, or list a parameter that the source does not have.
 */
MUST_CHECK int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/*
 * Returns the settings of group g of the run, even if the group's parameters are unknown. Returns NULL if there is no
 * such group.
 */
const struct pk *optim_groups_settings(const struct source *s, int g);
/*
 * Set *v to the setting `name`, a number. Returns false and leaves *v unchanged if the setting is missing or is not a
 * number.
 */
bool optim_settings_number(const struct pk *settings, const char *name, double *v);
/*
 * Set *beta1 and *beta2 to Adam's betas. Returns false and leaves them unchanged if `betas` is missing or is not two
 * numbers.
 */
bool optim_settings_betas(const struct pk *settings, double *beta1, double *beta2);
/*
 * Report a finding "groups" (ERROR, or WARNING with accept_mismatch) for each group with an invalid setting, because no
 * optimizer of torch accepts it. Learning rate, weight decay, eps and momentum must not be negative, not finite or a
 * string. Betas must be in [0, 1). A group whose parameters have both moments of Adam must have a learning rate, a
 * weight decay, an eps and two betas, all numbers. Also report, with the code "optimizer", a loss scale that is not
 * finite or not larger than 0.
 */
void optim_groups_check_settings(const struct source *s, struct report *r);
/*
 * Report a finding "groups" (as above) if the settings of a group have amsgrad and there are second moments, but no
 * state max_exp_avg_sq.
 */
void optim_groups_check_amsgrad(const struct source *s, struct report *r);
/*
 * Report an ERROR "step" if the parameters have both moments of Adam and no other states, and neither the parameters
 * nor the groups have a step.
 */
void optim_groups_check_step_there(const struct source *s, struct report *r);
/* Report a WARNING if several groups were made by OPTIM_GROUPS_BY_RULE, because the run may have used another rule. */
void optim_groups_report_rule(const struct source *s, const struct optim_groups *g, struct report *notes);

/* ---- for layouts ---- */

/*
 * Returns n groups (2 or 3) with all parameters of the source, as Megatron makes them for a new run. The last group has
 * the vectors, which are the parameters without weight decay. The other groups have the matrices; if n is 3, the first
 * group has the first half of the matrices. The groups have no settings.
 */
struct optim_groups *optim_groups_by_decay(const struct source *s, int n);

/*
 * Returns an array with a copy of the settings of each group in `list`, which is the run's list of groups. The copies
 * do not have the key "params". *n receives the number of groups.
 */
struct pk **optim_groups_copy_settings(const struct pk *list, struct arena *a, int *n);
/*
 * Returns the group in `out` that has these settings. If there is none, adds a group; `out` must have room for it.
 * `known` maps the settings of existing groups, as text, to the indices of the groups.
 */
struct optim_group *optim_groups_of_settings(const struct source *s, struct arena *a, struct names *known,
                                             const struct pk *settings, struct optim_groups *out);

#endif
