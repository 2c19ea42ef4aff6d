/*
 * deepspeed_fresh.h - what a trainer writes beside weights that nobody has trained yet
 *
 * An imported model, and one that training begins with from nothing, have parameters and no run behind them. The trees
 * are made up, of one rank (TP 1, PP 1, DP 1), as DeepSpeed 0.12.6 writes them, key for key; whatever saves or reshapes
 * such a source carries them on like any other's.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_FRESH_H
#define SHARDKIT_LAYOUT_DEEPSPEED_FRESH_H

#include "libcommon/layout/layout.h"

extern const char ds_fresh_version[];           /* whose files these are: "0.12.6" */
/* mp_rank_00_model_states.pt of this tree, in memory: one more of the source's files. -1: ERR_DATA. */
MUST_CHECK int ds_fresh_file(struct source *s, const struct pk *root, struct err *e);

/* `zero_stage` of an optimizer's tree: DeepSpeed's ZeroStageEnum(1). */
struct pk *ds_fresh_zero_stage_1(struct arena *a);

struct ds_fresh {
    struct pk *args;            /* a Namespace; into the file's tree as it is */
    int64_t vocab, tokens;      /* V, V0 */
    int n_groups;               /* of the optimizer, 2 or 3 (ds_fresh_source: 3) */
};

/*
 * mp_rank_00 of iteration 0 for a source that has its parameters, in the order of the model: in memory, one more of its
 * files, and s->run from it. `a` has the args. -1: ERR_DATA.
 */
MUST_CHECK int ds_fresh_mp(struct source *s, struct arena *a, const struct ds_fresh *f, struct err *e);

/*
 * A source of these parameters with such a file, three groups of torch's AdamW, and no tensors: for a target whose
 * tensors are the caller's (ds_request.no_tensors). The optimizer's tree is BF16_Optimizer's, or that of fp16 runs,
 * ZeRO stage 1. Names are copied. NULL: ERR_DATA.
 */
MUST_CHECK struct source *ds_fresh_source(const struct param *param, int n_params, const struct ds_fresh *f,
                                          struct arena *a, bool zero_stage_1, struct err *e);

#endif
