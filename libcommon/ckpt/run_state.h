/*
 * run_state.h - read run state and configuration from one mp_rank file
 */
#ifndef SHARDKIT_CKPT_RUN_STATE_H
#define SHARDKIT_CKPT_RUN_STATE_H

#include "libcommon/format/pt.h"

struct source;

/*
 * Fill in what `mp` (an mp_rank_*_model_states.pt that the source keeps open) contains: iteration, counters,
 * versions, arguments, model configuration, and the topology in its arguments where s->topo is still 0. Values that
 * it does not contain stay -1 or 0. Optimizer members of s->run are not changed.
 */
void run_state_read(struct source *s, const struct pt *mp);
/*
 * Fill in the state of a run of iteration 0 that begins with these arguments, a Namespace in the source's arena:
 * counters, versions, arguments, model configuration, and the topology where s->topo is still 0. The optimizer's
 * counter is unknown.
 */
void run_state_begin(struct source *s, const struct pk *args);
/*
 * Returns the stage in an optimizer_state_dict of ZeRO-1/2/3: a number, an enum value or the enum's member.
 * BF16_Optimizer writes none; the result is then 0.
 */
int64_t run_state_zero_stage(const struct pk *opt);
/* Values that all mp_rank files of a save share: number k of RUN_SHARED, 0 .. RUN_SHARED - 1. */
enum { RUN_SHARED = 32 };
/* The value in one file's tree, or NULL. */
const struct pk *run_shared_get(const struct pk *root, int k);
/* Its name, "iteration" or "args.seed", in buf. */
const char *run_shared_name(int k, char buf[64]);
/*
 * Compare what the run state claims with the rest of an open checkpoint in the pipeline engine's form or a universal
 * form: "config" where tensors are not of the layers, hidden size, heads or MLP that the arguments list,
 * "mixed_saves" where the mp_rank files of a universal form differ in what they share. ERROR, or WARNING with
 * accept_mismatch.
 */
void run_state_check(const struct source *s, struct report *r);

#endif
