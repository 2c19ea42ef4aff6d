/*
 * run_network.h - the part of the model that a rank trains: its memory, its passes and its optimizer
 */
#ifndef SHARDKIT_TRAIN_RUN_RUN_NETWORK_H
#define SHARDKIT_TRAIN_RUN_RUN_NETWORK_H

#include "tools/train/network/model.h"
#include "tools/train/network/optimizer.h"
#include "tools/train/network/pipeline_stage.h"

struct batches;
struct pipeline;
struct train_opts;

struct run_network {
    struct stage *stage;        /* NULL in a preflight test without a model */
    struct stage_state state;
    char *memory;               /* the allocation that contains the buffers of `state` */
    struct model_opts model_opts;
    struct model *model;
    struct pipeline *pipeline;
    struct optimizer_opts optimizer_opts;
    struct optimizer *optimizer;
    struct batches *batches;    /* the samples of a step, in device memory */
    double *loss;               /* a number in host memory, to which the loss is copied from the device */
};
/*
 * Allocate the buffers of net->state. Their sizes follow from net->stage and net->model_opts. The gradients are set to
 * zero.
 */
MUST_CHECK int run_network_allocate(struct run_network *net, const struct dev_ops *dev, struct err *e);
/*
 * Set the weights and master weights of this rank to random values from the seed, and the moments and gradients to
 * zero. The values do not depend on the topology.
 */
void run_network_init_weights(const struct run_network *net, const struct train_opts *o, const struct kernels *k);
/* Returns the dtype of the gradients. */
static inline enum dtype run_network_grads(const struct run_network *n)
{
    return n->model_opts.grad_t ? n->model_opts.t : DTYPE_F32;
}

#endif
