/*
 * optimizer.h - update the weights from accumulated gradients, sharded as by ZeRO-1
 *
 * The order of operations (docs/training.md section 3): the tied embedding's two gradients are added; each bucket is
 * reduced over data-parallel ranks, and each rank keeps its own part; the norm over all parameters is computed,
 * counting each parameter once. The caller checks the norm. Then follow clipping, AdamW on this rank's masters, and
 * rounding to weights; the weights are gathered from all data-parallel ranks. Alternatively the step is skipped: that
 * needs no call, because the next step overwrites the gradients.
 *
 * Buckets are communicated concurrently with the caller's stream (comm.h, comm_*_start). If the options request it
 * and the model calls optimizer_grads_done() and optimizer_weights_ready(), this happens during the passes:
 *
 *  last backward | head | block 2 | block 1 | block 0 | embedding |
 *  reduced                        | 2       | 1       | 0         | all others | norm
 *  AdamW                                                                       | embedding | 0 | 1 | 2 | final norm |
 *  gathered                                                                                | embedding | 0 | 1 | 2 | ..
 *  next forward                                                                                        | embedding | ..
 *
 * Otherwise it happens after the passes. The results are the same, bit by bit.
 *
 * Parameters that are replicated over tensor ranks have the same gradients, norm and arithmetic on each of them, so
 * the copies stay equal bit by bit. The norm is summed per parameter in the model's order, so it does not depend on
 * the partition into pipeline stages.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_OPTIMIZER_H
#define SHARDKIT_TRAIN_NETWORK_OPTIMIZER_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/pipeline_stage.h"

struct optimizer_opts {
    enum dtype t;               /* of the weights */
    bool grad_t;                /* gradients have type T (which is then F16), as in model_opts; else fp32 */
    /*
     * The type in which gradients are sent, summed and averaged over data parallelism: F32, the 16-bit type to which
     * the reference rounds fp32 gradients, or with grad_t T.
     */
    enum dtype reduce;
    float beta1, beta2, eps, weight_decay;
    double clip;                /* 0: no clipping */
    bool overlap_reduce;        /* reduce the gradients of blocks while the rest of the backward pass runs */
    bool overlap_gather;        /* gather the weights while the next forward pass begins */
};

struct optimizer_groups {       /* each group may consist of one rank */
    struct comm *world, *dp;
    /*
     * the first and the last stage's ranks that hold the embedding. NULL on a rank without the embedding, and for PP =
     * 1
     */
    struct comm *tied;
};

struct optimizer;
MUST_CHECK struct optimizer *optimizer_new(const struct stage *g, const struct stage_state *st,
                                           const struct kernels *k, const struct optimizer_groups *c,
                                           const struct optimizer_opts *o, struct err *e);
void optimizer_free(struct optimizer *p);       /* NULL is allowed */
uint64_t optimizer_bytes(const struct stage *g, const struct optimizer_opts *o);
/*
 * Complete and average a step's gradients. head_grad: the head's part of the word embedding's gradient if one rank
 * uses the embedding twice, else NULL. *norm receives the gradient norm before clipping, on every rank; it is not
 * finite if and only if a gradient is not finite. *also is a number that work queued in `s` may still be writing; it
 * is replaced with its sum over all ranks.
 */
MUST_CHECK int optimizer_reduce(struct optimizer *p, const void *head_grad, double *norm, double *also,
                                struct dev_stream *s, struct err *e);
/* The parameters of an update that uses the gradients from optimizer_reduce(). */
struct optimizer_update {
    double lr;
    int64_t t;                  /* Adam's step count for this update (1, or 2 for the reference's first) */
    double norm;                /* from optimizer_reduce(); must be finite */
    double scale;               /* divisor of gradients and norm: the loss scale, or 1 */
};
MUST_CHECK int optimizer_update(struct optimizer *p, const struct optimizer_update *u, struct dev_stream *s,
                                struct err *e);
/*
 * Set a callback that is called before a bucket's masters, moments and this rank's part of its weights are
 * overwritten, from the last bucket to the first. A save may still be copying them at that time. Initially there is
 * no callback.
 */
void optimizer_gate(struct optimizer *p, void (*gate)(void *ctx, int bucket), void *ctx);
/*
 * Callbacks for the hooks of model_hook(), with the optimizer as ctx. Each does nothing unless the options enable the
 * overlap that it implements.
 */
MUST_CHECK int optimizer_grads_done(void *optimizer, int block, struct dev_stream *s, struct err *e);
MUST_CHECK int optimizer_weights_ready(void *optimizer, int place, struct dev_stream *s, struct err *e);
/*
 * Wait until all weights have been gathered, for code other than the model. Work that is queued in `s` afterwards uses
 * the gathered weights.
 */
MUST_CHECK int optimizer_wait_for_weights(struct optimizer *p, struct dev_stream *s, struct err *e);
/* Compute the L2 norm of all masters, counting each element once, on every rank (--log-params-norm). */
MUST_CHECK int optimizer_params_norm(struct optimizer *p, double *norm, struct dev_stream *s, struct err *e);

#endif
