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
 * Report findings of s, whose parameters and s->run.optimizer have been read. E*: a warning with accept_mismatch.
 *   groups E*           states of an optimizer without settings, settings of one of several optimizers without states,
 *                       settings of experts (is_expert_parallel) for other parameters, or the reverse; a form of
 *                       states that content_metadata contradicts
 *   groups W            states without the settings of any group
 *   no_optimizer W      settings without any state
 *   no_state N, W       parameters without state where others have states (adam_report_no_state())
 */
void torchdist_settings_check(const struct source *s, struct report *r);

#endif
