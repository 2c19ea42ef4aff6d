/*
 * deepspeed_pickles.h - the trees of the pipeline engine's files, for a run that has not saved any
 *
 * An imported model, or one whose training begins from random weights, has parameters, arguments and groups, but no
 * files of a trainer. A target of the pipeline engine (deepspeed_target.h) starts from these trees, just as it starts
 * from the files of any other source. They are those of a single rank (TP 1, PP 1, DP 1), and have the keys that
 * DeepSpeed 0.12.6 writes.
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
    struct pk *args;            /* the arguments, a Namespace */
    int64_t vocab, tokens;      /* rows of the vocabulary with padding (V) and without (V0) */
};
/* Returns the tree of an mp_rank file of iteration 0. args and param_shapes become parts of the tree. */
struct pk *ds_pickles_mp_root(struct arena *a, const struct ds_new_run *f, struct pk *param_shapes);
/* Returns the tree of an mp_rank file for the source of a new run (ds_shape_is_of_groups()). */
struct pk *ds_pickles_mp(const struct source *s, struct arena *a);
/*
 * Returns the optimizer_state_dict for the source of a new run. The source's groups must have settings. With
 * s->zero_stage_1 it has the form of fp16 runs, otherwise that of BF16_Optimizer.
 */
struct pk *ds_pickles_optimizer(const struct source *s, struct arena *a);
/* Returns the value of `zero_stage` in an optimizer's tree: DeepSpeed's ZeroStageEnum(1). */
struct pk *ds_pickles_zero_stage_1(struct arena *a);

/*
 * Returns the source of a new run with these parameters. The source has three groups of torch's AdamW, step 0, and no
 * tensors. It is used for targets whose tensors the caller provides (ds_request.no_tensors). Names and arguments are
 * copied. With zero_stage_1 it is an fp16 run.
 */
struct source *ds_new_run_source(const struct param *param, int n_params, const struct ds_new_run *f,
                                 bool zero_stage_1);

#endif
