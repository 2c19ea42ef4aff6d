/*
 * optimizer.h - from accumulated gradients to new weights, sharded as by ZeRO-1
 *
 * In order (docs/training.md section 3): the tied embedding's two gradients are added; each
 * bucket is reduced over data-parallel ranks, of which each keeps its part; the norm over
 * all parameters, each counted once. The caller looks at the norm; then clipping, AdamW on this rank's
 * masters, and rounding to weights; weights are gathered from all data-parallel ranks. Or the step is
 * skipped: nothing is to be done for that, the next step's gradients begin anew.
 *
 * Buckets travel beside the caller's stream (comm.h, comm_*_start): beside the passes when the
 * options say so and the model calls optimizer_grads_done() and optimizer_weights_ready(),
 *
 *  last backward | head | block 2 | block 1 | block 0 | embedding |
 *  reduced                        | 2       | 1       | 0         | all others | norm
 *  AdamW                                                                       | embedding | 0 | 1 | 2 | final norm |
 *  gathered                                                                                | embedding | 0 | 1 | 2 | ..
 *  next forward                                                                                        | embedding | ..
 *
 * and else behind the passes. When it happens changes no bit.
 *
 * Parameters that tensor ranks hold copies of see the same gradients, norm and arithmetic on
 * each of them, so copies stay equal to the bit. The norm is added up parameter by
 * parameter in the model's order, so it does not depend on the pipeline's cut.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_OPTIMIZER_H
#define SHARDKIT_TRAIN_NETWORK_OPTIMIZER_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/stage.h"

struct optimizer_opts {
    enum dtype t;               /* of the weights */
    bool grad_t;                /* gradients are of T (F16), as model_opts has it; else fp32 */
    /*
     * What gradients travel, are added and averaged in over data parallelism: F32, the 16-bit type to which the
     * reference rounds fp32 ones, or with grad_t T.
     */
    enum dtype reduce;
    float beta1, beta2, eps, weight_decay;
    double clip;                /* 0: none */
    bool overlap_reduce;        /* blocks' gradients are reduced while the rest of the backward pass goes on */
    bool overlap_gather;        /* weights are gathered while the next forward pass begins */
};

struct optimizer_groups {       /* all may be of one rank */
    struct comm *world, *dp;
    struct comm *tied;          /* first and last stage, where a rank holds the embedding; else, and for PP = 1, NULL */
};

struct optimizer;
MUST_CHECK struct optimizer *optimizer_new(const struct stage *g, const struct stage_state *st,
                                           const struct kernels *k, const struct optimizer_groups *c,
                                           const struct optimizer_opts *o, struct err *e);
void optimizer_free(struct optimizer *p);       /* NULL is fine */
uint64_t optimizer_bytes(const struct stage *g, const struct optimizer_opts *o);
/*
 * A step's gradients, complete and averaged. head_grad: the head's share of the word embedding's gradient where one
 * rank holds both uses, else NULL. *norm: theirs, before clipping, on every rank; not finite iff one of them is not.
 * *also: a number that what is queued in `s` may still be writing; it becomes its sum over all ranks.
 */
MUST_CHECK int optimizer_reduce(struct optimizer *p, const void *head_grad, double *norm, double *also,
                                struct dev_stream *s, struct err *e);
/* One update with what optimizer_reduce() left. */
struct optimizer_update {
    double lr;
    int64_t t;                  /* Adam's counter of this update (1, or 2 for the reference's first) */
    double norm;                /* of optimizer_reduce(), finite */
    double scale;               /* that gradients and norm are to be divided by: the loss scale, or 1 */
};
MUST_CHECK int optimizer_update(struct optimizer *p, const struct optimizer_update *u, struct dev_stream *s,
                                struct err *e);
/*
 * Called before a bucket's masters, moments and this rank's part of its weights are overwritten, from the last bucket
 * to the first: a save may still be copying them. At first there is none.
 */
void optimizer_gate(struct optimizer *p, void (*gate)(void *ctx, int bucket), void *ctx);
/* For model_hook(), `optimizer` the ctx. Without effect unless the options want the overlap they serve. */
MUST_CHECK int optimizer_grads_done(void *optimizer, int block, struct dev_stream *s, struct err *e);
MUST_CHECK int optimizer_weights_ready(void *optimizer, int place, struct dev_stream *s, struct err *e);
/* For all others who read weights: what is queued in `s` behind this finds all of them. */
MUST_CHECK int optimizer_settle_weights(struct optimizer *p, struct dev_stream *s, struct err *e);
/* The L2 norm of all masters, each element once, on every rank (--log-params-norm). */
MUST_CHECK int optimizer_params_norm(struct optimizer *p, double *norm, struct dev_stream *s, struct err *e);

#endif
