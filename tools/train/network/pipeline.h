/*
 * pipeline.h - micro-batches through the stages: one forward, one backward (1F1B)
 *
 * Stage p of S runs S - p - 1 forwards ahead, then alternates, then drains: every stage adds
 * up gradients in the order of micro-batches (Narayanan et al. 2021; docs/training.md 2.4).
 * Boundary tensors (model_boundary) are sent while the next micro-batch is worked on.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_PIPELINE_H
#define SHARDKIT_TRAIN_NETWORK_PIPELINE_H

#include "tools/train/network/model.h"

struct pipeline;
/* Micro-batches in flight on a stage: slots that the model needs. */
static inline int pipeline_slots(struct topology topo, int pp) { return topo.pp - pp; }

/*
 * Fills *mb for micro-batch i of the step, in device memory that stays until micro-batch
 * i + slots is asked for. `slot` is i modulo slots.
 */
typedef int (*pipeline_batch)(void *ctx, int i, int slot, struct micro_batch *mb, struct err *e);

struct pipeline_parts {
    const struct stage *stage;
    struct model *model;
    const struct kernels *kernels;
    const struct model_opts *opts;      /* copied */
    struct comm *group;         /* of this pipeline, its ranks in stage order; may be of one */
    struct watch *watch;
    pipeline_batch get;
    void *ctx;                  /* of get() */
};
/* *of is copied; what it points to must outlive the pipeline, except opts. */
MUST_CHECK struct pipeline *pipeline_new(const struct pipeline_parts *of, struct err *e);
void pipeline_free(struct pipeline *p);         /* NULL is fine */
uint64_t pipeline_bytes(const struct stage *g, const struct model_opts *o);
/* Device memory that comm.h takes besides on a GPU: two messages for each neighbour that sends. */
uint64_t pipeline_boxes(const struct stage *g, const struct model_opts *o);
/* n micro-batches there and back; gradients are in the flat buffers, the loss in model_loss(). */
MUST_CHECK int pipeline_train(struct pipeline *p, int n, int64_t step, struct dev_stream *s, struct err *e);
/* n micro-batches forward only. */
MUST_CHECK int pipeline_eval(struct pipeline *p, int n, struct dev_stream *s, struct err *e);

#endif
