/*
 * dcp_groups.h - the settings of the model's optimizers, and how many steps they have done
 */
#ifndef SHARDKIT_LAYOUT_DCP_GROUPS_H
#define SHARDKIT_LAYOUT_DCP_GROUPS_H

#include "libcommon/layout/dcp/dcp_names.h"

/*
 * Once tensors are opened: gather run.param_groups, each a dict of options with `params`, names of the source's
 * parameters, and give each parameter its group's number. Settings are entries of their own,
 * param_groups.<i>.<option>, with the names under `params`; or, with flatten_optimizer_state_dict,
 * param_groups.<name>.<option> for each parameter, where those of the same settings are a group
 * (groups_by_settings). run.opt_step is the step that all parameters have; findings:
 *   step W    parameters have done different numbers of steps
 */
void dcp_groups_read(const struct dcp_naming *n, struct report *r);

#endif
