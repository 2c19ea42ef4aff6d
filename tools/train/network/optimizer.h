/*
 * optimizer.h - update the weights from accumulated gradients, sharded as by ZeRO-1
 *
 * The order of operations (docs/training.md section 3): the tied embedding's two gradients are added; each bucket is
 * reduced over data-parallel ranks, and each rank keeps its own part; the norm over all parameters is computed,
 * counting each parameter once. The caller then checks the norm. If it wants to skip the step, it makes no further
 * call, because the next step overwrites the gradients. Otherwise optimizer_update() clips the gradients, applies AdamW
 * to this rank's fp32 master weights, rounds them to weights, and gathers the weights from all data-parallel ranks.
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
    enum dtype t;               /* dtype of the weights */
    bool grad_t;                /* gradients have type T, which must be F16, as in model_opts; false: fp32 */
    /*
     * The type in which gradients are sent, summed and averaged over data-parallel ranks. With grad_t it is T.
     * Otherwise it is F32, or the 16-bit type to which the reference rounds fp32 gradients.
     */
    enum dtype reduce;
    float beta1, beta2, eps, weight_decay;
    double clip;                /* maximum norm of the gradient; 0: no clipping */
    bool overlap_reduce;        /* reduce the gradients of blocks while the rest of the backward pass runs */
    bool overlap_gather;        /* gather the weights while the next forward pass begins */
};

struct optimizer_groups {       /* each group may consist of a single rank */
    struct comm *world, *dp;
    /*
     * The group of the first and the last stage's ranks that hold the tied embedding. NULL on ranks without the
     * embedding, and if PP is 1.
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
 * Complete and average the gradients of a step. head_grad is the head's part of the gradient of the word embedding, if
 * this rank uses the embedding twice; else NULL. *norm receives the norm of the gradient before clipping, on every
 * rank. It is finite if and only if all gradients are finite. *also is a number that work queued in `s` may still be
 * writing; it is replaced with its sum over all ranks.
 */
MUST_CHECK int optimizer_reduce(struct optimizer *p, const void *head_grad, double *norm, double *also,
                                struct dev_stream *s, struct err *e);
/* The parameters of an update. It uses the gradients that optimizer_reduce() has averaged. */
struct optimizer_update {
    double lr;
    /* Adam's step count for this update. A run starts with 1, or with 2 as in the reference */
    int64_t t;
    double norm;                /* from optimizer_reduce(); must be finite */
    double scale;               /* the loss scale, by which gradients and norm are divided; or 1 */
};
MUST_CHECK int optimizer_update(struct optimizer *p, const struct optimizer_update *u, struct dev_stream *s,
                                struct err *e);
/*
 * Set a callback `gate`. It is called for each bucket, in descending order, before the optimizer overwrites the bucket:
 * its master weights, its moments and this rank's part of its weights. A save may still be copying this data. Initially
 * there is no callback.
 */
void optimizer_gate(struct optimizer *p, void (*gate)(void *ctx, int bucket), void *ctx);
/*
 * Callbacks for struct model_hooks; `optimizer` is the optimizer. optimizer_grads_done() reduces gradients during the
 * backward pass, and optimizer_weights_ready() waits for gathered weights during the forward pass. Each does nothing
 * unless the options enable this overlap.
 */
MUST_CHECK int optimizer_grads_done(void *optimizer, int block, struct dev_stream *s, struct err *e);
MUST_CHECK int optimizer_weights_ready(void *optimizer, int place, struct dev_stream *s, struct err *e);
/*
 * Wait until all weights have been gathered. Needed before code other than the model reads the weights. Work that is
 * queued in `s` afterwards uses the gathered weights.
 */
MUST_CHECK int optimizer_wait_for_weights(struct optimizer *p, struct dev_stream *s, struct err *e);
/* Compute the L2 norm of all master weights on every rank (--log-params-norm). Each element is counted once. */
MUST_CHECK int optimizer_params_norm(struct optimizer *p, double *norm, struct dev_stream *s, struct err *e);

#endif
