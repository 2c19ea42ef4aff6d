/*
 * dcp_groups.h - the settings of the model's optimizers, and their step counters
 */
#ifndef SHARDKIT_LAYOUT_DCP_GROUPS_H
#define SHARDKIT_LAYOUT_DCP_GROUPS_H

#include "libcommon/layout/dcp/dcp_names.h"

/*
 * Fill source.groups, store in each parameter the number of its group, and set run.opt_step to the number of steps that
 * all parameters share. The tensors must be open.
 *
 * A setting of group i is an entry named param_groups.<i>.<option>, and the group's parameters are listed in
 * param_groups.<i>.params. If the program saved with flatten_optimizer_state_dict, each parameter has settings of its
 * own, named param_groups.<name>.<option>. Then the parameters with the same settings are made a group
 * (OPTIM_GROUPS_BY_SETTINGS).
 * Findings:
 *   step E    a number of steps is not a whole number from 0 on
 *   step W    parameters have different numbers of steps
 *   crc E     the record of a setting or of a number of steps is corrupt (W "unreadable" if holes are allowed)
 *   groups E  a parameter is listed twice
 *   groups W  a parameter has moments, and no group lists it
 */
void dcp_groups_read(const struct dcp_naming *n, struct report *r);

/*
 * Returns the number of steps in a value. Returns -1 if the value is not a number. If r is a report, also returns -1 if
 * the record of the value is corrupt, or if the number is not an integer >= 0.
 */
struct source_value;
int64_t dcp_read_step(const struct source *s, const struct source_value *v, bool holes, struct report *r);

#endif
