/*
 * deepspeed_pickles.h - the trees of the pipeline engine's files for a run that has saved none
 *
 * An imported model, and one whose training starts from nothing, have parameters, arguments and groups, but no files
 * of a trainer. A target of the pipeline engine (deepspeed_target.h) starts from these trees, for one rank (TP 1, PP 1,
 * DP 1), key for key as DeepSpeed 0.12.6 writes them, as from the files of any other source.
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_PICKLES_H
#define SHARDKIT_LAYOUT_DEEPSPEED_PICKLES_H

#include <stdbool.h>
#include <stdint.h>

struct arena;
struct param;
struct pk;
struct source;

struct ds_new_run {
    struct pk *args;            /* a Namespace */
    int64_t vocab, tokens;      /* V, V0 */
};
/* Returns the tree of an mp_rank file of iteration 0. args and param_shapes become parts of it. */
struct pk *ds_pickles_mp_root(struct arena *a, const struct ds_new_run *f, struct pk *param_shapes);
/* Returns such a tree for a source of a new run (ds_shape_is_of_groups()). */
struct pk *ds_pickles_mp(const struct source *s, struct arena *a);
/*
 * Returns the optimizer_state_dict of such a source, whose groups must have settings: BF16_Optimizer's, or with
 * s->zero_stage_1 that of fp16 runs.
 */
struct pk *ds_pickles_optimizer(const struct source *s, struct arena *a);
/* Returns the `zero_stage` entry of an optimizer's tree: DeepSpeed's ZeroStageEnum(1). */
struct pk *ds_pickles_zero_stage_1(struct arena *a);

/*
 * Returns a source of a new run with these parameters: three groups of torch's AdamW, step 0, and no tensors, for a
 * target whose tensors the caller provides (ds_request.no_tensors). Names and arguments are copied. With zero_stage_1
 * it is an fp16 run.
 */
struct source *ds_new_run_source(const struct param *param, int n_params, const struct ds_new_run *f,
                                 bool zero_stage_1);

#endif
