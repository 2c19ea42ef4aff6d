/*
 * run_state.h - run state and configuration out of one mp_rank file
 */
#ifndef SHARDKIT_LAYOUT_RUN_STATE_H
#define SHARDKIT_LAYOUT_RUN_STATE_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/layout.h"

/*
 * Fill what `mp` (an mp_rank_*_model_states.pt kept open by the source) says: iteration,
 * counters, versions, arguments, model configuration, and the topology of its arguments
 * where s->topo is still 0. Values it does not hold stay -1 or 0. Optimizer fields of
 * s->run are not touched.
 */
void run_state_read(struct source *s, const struct pt *mp);
/*
 * The stage that an optimizer_state_dict says, as ZeRO-1/2/3 write it: a number, an enum of it or the enum's member;
 * BF16_Optimizer writes none: 0.
 */
int64_t run_state_zero_stage(const struct pk *opt);

#endif
