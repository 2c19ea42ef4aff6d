/*
 * run_state.h - read run state and configuration from one mp_rank file
 */
#ifndef SHARDKIT_CKPT_RUN_STATE_H
#define SHARDKIT_CKPT_RUN_STATE_H

#include "libcommon/format/pt.h"

struct source;

/*
 * Fill in the run state from `mp`, an mp_rank_*_model_states.pt that the source keeps open: iteration, counters,
 * versions, arguments, model configuration, and the topology in its arguments where s->topo is still 0. Values that the
 * file does not contain stay -1 or 0. Optimizer members of s->run are not changed.
 */
void run_state_read(struct source *s, const struct pt *mp);
/*
 * Fill in the state of a new run at iteration 0. `args` are its arguments, a Namespace in the source's arena; consumed
 * samples, model configuration, and the topology where s->topo is still 0, follow from them. Consumed tokens are 0, the
 * versions are those that this project writes, and the optimizer's counter is unknown.
 */
void run_state_begin(struct source *s, const struct pk *args);
/*
 * Returns the ZeRO stage in an optimizer_state_dict: a number, an enum value or the enum's member. Returns 0 if there
 * is none, as in files of BF16_Optimizer.
 */
int64_t run_state_zero_stage(const struct pk *opt);
/* Number of values that all mp_rank files of a save share. A value is selected by its number, 0 .. RUN_SHARED - 1. */
enum { RUN_SHARED = 32 };
/* Returns value number k of one file's tree, or NULL if the file does not have it. */
const struct pk *run_shared_get(const struct pk *root, int k);
/* Returns the name of value number k, such as "iteration" or "args.seed", in buf. */
const char *run_shared_name(int k, char buf[64]);
/*
 * Check the run state of an open checkpoint in the pipeline engine's form or a universal form. Reports "config" if
 * tensors do not fit the layers, hidden size, heads or MLP that the arguments list, and "mixed_saves" if the mp_rank
 * files of a universal form differ in values that they must share. Severity is ERROR, or WARNING with accept_mismatch.
 */
void run_state_check(const struct source *s, struct report *r);

#endif
