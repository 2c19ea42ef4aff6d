/*
 * optim_groups.h - the optimizer's groups by the names of their parameters, for any layout
 *
 * A writer of another layout needs more of an optimizer than masters and moments: which parameters share settings,
 * the order in which the run listed them, and the settings. The opener of a layout whose files hold settings next to
 * names fills source.groups. Other openers set source.read_groups, which reads the groups from the layout's own tables
 * when they are needed.
 */
#ifndef SHARDKIT_CKPT_OPTIM_GROUPS_H
#define SHARDKIT_CKPT_OPTIM_GROUPS_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct arena;
struct names;
struct report;
struct source;
struct optim_group {
    /*
     * Settings of the group, a dict by name: lr, betas, ...; NULL if unknown. The key "params", which only the layout
     * uses, is ignored.
     */
    const struct pk *settings;
    int n;
    const char **param;                 /* names in s->param */
};
/*
 * How the groups were determined. Within a group, parameters have the order of the run if it is listed, else that of
 * the model.
 */
enum optim_groups_how {
    OPTIM_GROUPS_LISTED,                /* groups list their parameters */
    /* settings are stored per parameter; those with the same settings are a group */
    OPTIM_GROUPS_BY_SETTINGS,
    /* Megatron-core does not list the parameters of a group; its standard rule is used */
    OPTIM_GROUPS_BY_RULE,
    /* settings exist, but nothing determines which parameters belong to a group: n is 0 in each */
    OPTIM_GROUPS_UNLISTED,
};
struct optim_groups {
    int n;
    enum optim_groups_how how;
    struct optim_group *group;
};

/*
 * Check that the optimizer has only masters and Adam's moments, because no other form has a place for other states.
 * Returns -1 with ERR_DATA if there are other states; the error names them, and what can be made without them.
 */
MUST_CHECK int optim_groups_adam_alone(const struct source *s, struct err *e);
/*
 * Read the groups and their parameters into the arena. out->n is 0 if the source does not define groups, or does not
 * define their parameters. Returns -1 with ERR_DATA if the source's tables contradict each other or the source.
 */
MUST_CHECK int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/* Returns the settings of the run's group g, even if its parameters are unknown. NULL if there is no such group. */
const struct pk *optim_groups_settings(const struct source *s, int g);
/* Read a setting that is a number. Returns false, and leaves *v unchanged, if it is missing or of another type. */
bool optim_settings_number(const struct pk *settings, const char *name, double *v);
/* Read both betas of Adam. Returns false, and leaves them unchanged, if `betas` is missing or not two numbers. */
bool optim_settings_betas(const struct pk *settings, double *beta1, double *beta2);
/* Report a WARNING if OPTIM_GROUPS_BY_RULE made more than one group, because the run may have used another rule. */
void optim_groups_report_rule(const struct source *s, const struct optim_groups *g, struct report *notes);

/* ---- for layouts ---- */

/*
 * Returns n groups, 2 or 3, as Megatron makes them for a new run: all parameters in their order, first those that decay
 * (matrices; with 3 groups in two halves by count), then the others. The groups have no settings.
 */
struct optim_groups *optim_groups_by_decay(const struct source *s, int n);

/*
 * Returns an array of copies of the settings in the run's list of groups, without "params", for
 * optim_groups_of_settings(). *n receives their number.
 */
struct pk **optim_groups_copy_settings(const struct pk *list, struct arena *a, int *n);
/*
 * Returns the group with these settings in `out`, which must have room for a new one. `known` holds the settings of the
 * groups as texts.
 */
struct optim_group *optim_groups_of_settings(const struct source *s, struct arena *a, struct names *known,
                                             const struct pk *settings, struct optim_groups *out);

#endif
