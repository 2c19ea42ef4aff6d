/*
 * optim_groups.h - the optimizer's groups by the names of their parameters, for any layout
 *
 * A writer of another layout needs more of an optimizer than masters and moments: which parameters share settings,
 * the order in which the run listed them, and the settings.
 */
#ifndef SHARDKIT_LAYOUT_OPTIM_GROUPS_H
#define SHARDKIT_LAYOUT_OPTIM_GROUPS_H

#include "libcommon/ckpt/checkpoint.h"

struct optim_group {
    const struct pk *options;           /* a dict: lr, betas, ...; its "params" must be ignored */
    int n;
    const char **param;                 /* names in s->param */
};
/* How the groups were determined. The order within a group is the run's if it is listed, else the model's. */
enum optim_groups_how {
    OPTIM_GROUPS_LISTED,                /* groups list their parameters */
    /* settings are stored per parameter; those with the same settings are a group */
    OPTIM_GROUPS_BY_SETTINGS,
    /* Megatron-core does not list the parameters of a group; its standard rule is used */
    OPTIM_GROUPS_BY_RULE,
};
struct optim_groups {
    int n;                              /* 0 if the source does not define groups */
    enum optim_groups_how how;
    struct optim_group *group;
};

/*
 * Check that the optimizer has only masters and Adam's moments, which is all that the other forms hold. Returns -1
 * with ERR_DATA if there are other states; the error names them, and what can be made without them.
 */
MUST_CHECK int optim_groups_adam_alone(const struct source *s, struct err *e);
/*
 * Read the groups into the arena. Returns -1 with ERR_DATA if the source's tables contradict each other or the
 * source.
 */
MUST_CHECK int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/* Report a WARNING if OPTIM_GROUPS_BY_RULE made more than one group, because the run may have used another rule. */
void optim_groups_report_rule(const struct source *s, const struct optim_groups *g, struct report *notes);

#endif
