/*
 * torchdist_settings.h - compare the optimizer's settings in common.pt with the states in the folder
 *
 * If a run has several optimizers, for example one for the experts, common.pt has a dict of settings for each number,
 * and the states of number 1 begin with "chained_1.".
 */
#ifndef SHARDKIT_LAYOUT_TORCHDIST_SETTINGS_H
#define SHARDKIT_LAYOUT_TORCHDIST_SETTINGS_H

#include "libcommon/base/report.h"
#include "libcommon/ckpt/source_parts.h"

/*
 * Compare the settings of the optimizer with its states. The parameters and s->run.optimizer must have been read. The
 * findings are as follows, where E* is an error, or a warning with accept_mismatch:
 *   groups E*           an optimizer has states but no settings; one of several optimizers has settings but no states;
 *                       settings of experts (is_expert_parallel) belong to other parameters, or the reverse; or
 *                       content_metadata states another form of states
 *   groups W            there are states, but no group has settings
 *   no_optimizer W      there are settings, but no states
 *   no_state N, W       a parameter has no state, but others have states (adam_report_no_state())
 */
void torchdist_settings_check(const struct source *s, struct report *r);

#endif
