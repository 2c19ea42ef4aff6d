/*
 * deepspeed_synthesize.h - the files that a trainer writes along with weights, for a model without a training run
 *
 * An imported model, and one whose training starts from nothing, have parameters but no run. Their trees are made up,
 * for one rank (TP 1, PP 1, DP 1), key for key as DeepSpeed 0.12.6 writes them. Code that saves or reshapes such a
 * source copies them like those of any other source.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SYNTHESIZE_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SYNTHESIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct arena;
struct param;
struct pk;
struct source;

/* Return the `zero_stage` entry of an optimizer's tree: DeepSpeed's ZeroStageEnum(1). */
struct pk *ds_synthesize_zero_stage_1(struct arena *a);

struct ds_synthesis {
    struct pk *args;            /* a Namespace; put into the file's tree without copying */
    int64_t vocab, tokens;      /* V, V0 */
    int n_groups;               /* optimizer groups, 2 or 3 (ds_fresh_source: 3) */
};

/* Return the tree of such a file. `param_shapes` becomes a part of it. */
struct pk *ds_synthesize_root(struct arena *a, const struct ds_synthesis *f, struct pk *param_shapes);
/*
 * Add an mp_rank_00 file of iteration 0, in memory, to a source that has its parameters in the order of the model,
 * and fill s->run from it. `a` owns the args. Returns -1 with ERR_DATA.
 */
MUST_CHECK int ds_synthesize_mp(struct source *s, struct arena *a, const struct ds_synthesis *f, struct err *e);

/*
 * Return a source of these parameters with such a file, three groups of torch's AdamW, and no tensors, for a target
 * whose tensors the caller provides (ds_request.no_tensors). The optimizer's tree is that of BF16_Optimizer, or that
 * of fp16 runs, ZeRO stage 1. Names are copied. Returns NULL with ERR_DATA.
 */
MUST_CHECK struct source *ds_synthesize_source(const struct param *param, int n_params, const struct ds_synthesis *f,
                                               struct arena *a, bool zero_stage_1, struct err *e);

#endif
