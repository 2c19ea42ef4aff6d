/*
 * pipeline_schedule.h - run micro-batches through the stages, one forward and one backward pass alternately (1F1B)
 *
 * Stage p of S runs S - p - 1 forward passes first, then alternates, and then runs the remaining backward passes.
 * Every stage sums gradients in the order of micro-batches (Narayanan et al. 2021; docs/training.md 2.4). Boundary
 * tensors (model_boundary) are sent while the next micro-batch is processed.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_PIPELINE_SCHEDULE_H
#define SHARDKIT_TRAIN_NETWORK_PIPELINE_SCHEDULE_H

#include "tools/train/network/model.h"

struct pipeline;
/* Returns the number of micro-batches in flight on stage pp. The model needs as many slots. */
static inline int pipeline_slots(struct topology topo, int pp) { return topo.pp - pp; }

/*
 * Fill *mb with micro-batch i of the step. Its data is in device memory and must stay valid until micro-batch i + slots
 * is requested, where slots is the number of slots. `slot` is i modulo slots.
 */
typedef int (*pipeline_batch)(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e);

struct pipeline_parts {
    const struct stage *stage;
    struct model *model;
    const struct kernels *kernels;
    const struct model_opts *opts;      /* copied by pipeline_new() */
    struct comm *group;         /* the ranks of this pipeline in the order of stages; may be a single rank */
    struct watch *watch;
    pipeline_batch get;
    void *ctx;                  /* passed to get() */
};
/* Create a pipeline. *of is copied. The objects that it points to must outlive the pipeline, except for opts. */
MUST_CHECK struct pipeline *pipeline_new(const struct pipeline_parts *of, struct err *e);
void pipeline_free(struct pipeline *p);         /* NULL is allowed */
uint64_t pipeline_bytes(const struct stage *g, const struct model_opts *o);
/*
 * Returns the number of bytes of device memory that comm.h uses for the messages on a GPU: two messages for each
 * neighbour that sends.
 */
uint64_t pipeline_boxes(const struct stage *g, const struct model_opts *o);
/*
 * Run the forward and backward passes of n micro-batches. Afterwards the gradients are in the flat buffers and the loss
 * is in *model_loss().
 */
MUST_CHECK int pipeline_train(struct pipeline *p, int n, int64_t step, struct dev_stream *s, struct err *e);
/* Run the forward passes of n micro-batches. */
MUST_CHECK int pipeline_eval(struct pipeline *p, int n, struct dev_stream *s, struct err *e);

#endif
