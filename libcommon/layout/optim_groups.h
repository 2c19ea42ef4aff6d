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
struct optim_groups {
    int n;                              /* 0: the source does not say */
    bool by_settings;                   /* it has settings by parameter: which share them is known, no order is */
    struct optim_group *group;
};

/* Tables are the arena's. ERR_DATA: the source's own contradict each other, or it. */
MUST_CHECK int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e);

#endif
