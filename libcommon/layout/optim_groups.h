/*
 * optim_groups.h - the optimizer's groups by the names of their parameters, whatever a layout makes of them
 *
 * What a writer of another layout needs of an optimizer beside masters and moments: which parameters share settings, in
 * which order the run gave them, and the settings.
 */
#ifndef SHARDKIT_LAYOUT_OPTIM_GROUPS_H
#define SHARDKIT_LAYOUT_OPTIM_GROUPS_H

#include "libcommon/layout/layout.h"

struct optim_group {
    const struct pk *options;           /* a dict: lr, betas, ...; what it has under "params" means nothing here */
    int n;
    const char **param;                 /* names in s->param */
};
/* Which parameters share settings is known; the order in a group is the run's where it is listed, else the model's. */
enum optim_groups_how {
    OPTIM_GROUPS_LISTED,                /* groups list their parameters */
    OPTIM_GROUPS_BY_SETTINGS,           /* parameters have settings: those of the same ones are a group */
    OPTIM_GROUPS_BY_RULE,               /* Megatron-core does not say who is in a group: by its standard rule */
};
struct optim_groups {
    int n;                              /* 0: the source does not say */
    enum optim_groups_how how;
    struct optim_group *group;
};

/*
 * Does the optimizer keep nothing but masters and Adam's moments, which is all that the other forms hold of it?
 * ERR_DATA names what else there is, and what can be had without it.
 */
MUST_CHECK int optim_groups_adam_alone(const struct source *s, struct err *e);
/* Tables are the arena's. ERR_DATA: the source's own contradict each other, or it. */
MUST_CHECK int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);
/* A WARNING where OPTIM_GROUPS_BY_RULE made more than one group: it may not have been the run's rule. */
void optim_groups_tell_rule(const struct source *s, const struct optim_groups *g, struct report *notes);

#endif
