/*
 * dcp_groups.h - the settings of the model's optimizers, and their number of steps
 */
#ifndef SHARDKIT_LAYOUT_DCP_GROUPS_H
#define SHARDKIT_LAYOUT_DCP_GROUPS_H

#include "libcommon/layout/dcp/dcp_names.h"

/*
 * Fill source.groups and give each parameter its group's number. The tensors must be open. In the folder, settings
 * are entries named param_groups.<i>.<option>, with the parameters listed under `params`. With
 * flatten_optimizer_state_dict they are entries named param_groups.<name>.<option> for each parameter, and parameters
 * with the same settings form a group (OPTIM_GROUPS_BY_SETTINGS). run.opt_step is the step that all parameters share.
 * Findings:
 *   step W    parameters have different numbers of steps
 *   groups E  a parameter is listed twice
 *   groups W  a parameter has moments, and no group lists it
 */
void dcp_groups_read(const struct dcp_naming *n, struct report *r);

#endif
