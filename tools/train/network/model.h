/*
 * model.h - one rank's forward and backward pass over one micro-batch
 *
 * The model is that of docs/training.md section 1: pre-LayerNorm blocks, BLOOM's (ALiBi,
 * embedding LayerNorm) or GPT-2's (learned positions), a tied head. Activations are
 * [rows, hidden] with one row per token, sample by sample. Tensor parallelism costs two all-reduces
 * a block each way; their results are the same bits on every rank, so everything that is
 * replicated (LayerNorms, row-parallel biases, the residual stream) stays equal by construction. With
 * sequence parallelism each rank keeps, between the products, only its share of the rows (model_tensor.c).
 *
 * The head works on chunks of rows: logits, loss and the gradient of the logits of a chunk
 * live only while that chunk is worked on, so a vocabulary of 250,880 needs no [m, V].
 * That is why the forward pass of the last stage already computes the head's gradients.
 *
 * Memory is laid out once: one slot of saved activations for every micro-batch in flight,
 * and one set of work buffers. With recomputation a slot keeps less.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_MODEL_H
#define SHARDKIT_TRAIN_NETWORK_MODEL_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/stage.h"
#include "tools/train/options/options.h"

struct model_opts {
    enum dtype t;               /* DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    bool grad_t;                /* gradients of parameters are of T and accumulate in it (F16), else fp32 */
    int b, s;                   /* samples of a micro-batch, tokens of a sample */
    int n_slots;                /* micro-batches in flight */
    enum opts_recompute recompute;      /* SELECTIVE: LayerNorm and GELU outputs; FULL: a block keeps its input only */
    float hidden_dropout, attention_dropout;
    float eps;                  /* of block and final LayerNorms; the embedding's is 1e-5 */
    uint64_t seed;              /* of dropout */
    bool sequence_parallel;     /* the residual stream is split over tensor ranks by rows; tp must divide s */
    int head_rows;              /* rows of a head chunk; 0: chosen by the device and V */
};

/* A micro-batch, in device memory. What a stage does not need may be NULL. */
struct micro_batch {
    const int32_t *tokens;      /* [rows], first stage */
    const int32_t *positions;   /* [rows]; NULL: 0 .. s - 1 in every sample */
    const int32_t *labels;      /* [rows], last stage */
    const float *weight;        /* [rows]: mask / sum of mask over the micro-batch, last stage */
    const float *grad_weight;   /* [rows]: the same over the number of micro-batches; last stage, training */
    int64_t sample0;            /* number of its first sample in the global batch */
    int64_t step;               /* iteration: dropout differs from step to step */
    bool training;              /* dropout, and gradients */
    bool add;                   /* gradients are added to, not begun */
    bool last;                  /* gradients are complete after this one */
};

struct model;
/*
 * `st`'s buffers and `k` must outlive the model. tp: the tensor-parallel group.
 * ERR_SYS when the device has not that much memory: the message says how much is missing for what.
 */
MUST_CHECK struct model *model_new(const struct stage *g, const struct stage_state *st, const struct kernels *k,
                                   struct comm *tp, const struct model_opts *o, struct err *e);
void model_free(struct model *m);       /* NULL is fine */
/* Bytes that model_new() would ask for. */
uint64_t model_bytes(const struct stage *g, const struct kernels *k, const struct model_opts *o);

/*
 * What goes on beside the passes. A place is a block's number in the model, -1 for the embedding in
 * front of all, L (the number of blocks) for the final LayerNorm and the head.
 */
struct model_hooks {
    /* Before anything is queued that reads weights of `place`; in a forward pass places never descend. */
    int (*ready)(void *ctx, int place, struct dev_stream *s, struct err *e);
    /* Behind what completes the gradients of `block`, in the backward pass of a micro-batch that is `last`. */
    int (*done)(void *ctx, int block, struct dev_stream *s, struct err *e);
    void *ctx;
};
void model_hook(struct model *m, const struct model_hooks *h);

/* Elements of what crosses a stage boundary: T [rows, hidden], with sequence parallelism this rank's rows of it. */
int64_t model_boundary(const struct stage *g, const struct model_opts *o);
/* Where stage boundaries are received: the input of a slot, the gradient that comes back. */
void *model_input(struct model *m, int slot);
void *model_output(struct model *m, int slot);          /* of model_forward, unless it is the last stage */
/*
 * Forward. The last stage adds the micro-batch's loss to *model_loss(), and, when training,
 * the head's gradients to the flat buffer.
 */
MUST_CHECK int model_forward(struct model *m, int slot, const struct micro_batch *mb, struct dev_stream *s,
                             struct err *e);
/*
 * Backward of what model_forward() left in `slot`. d, of model_boundary() elements: the gradient of the
 * stage's output, replaced by that of its input (the last stage ignores what it holds).
 */
MUST_CHECK int model_backward(struct model *m, int slot, const struct micro_batch *mb, void *d,
                              struct dev_stream *s, struct err *e);

/* The last stage's sum of losses since model_loss_begin(), fp64 in device memory. */
double *model_loss(struct model *m);
void model_loss_begin(struct model *m, struct dev_stream *s);
/* The head's share of the word embedding's gradient where one rank holds both uses (PP = 1); else NULL. */
void *model_head_grad(struct model *m);
/*
 * Evaluation with a look at the logits: called for each chunk of rows with T [rows, V / tp]
 * in device memory. NULL: nobody looks.
 */
void model_look(struct model *m, void (*look)(void *ctx, int64_t row0, int64_t rows, const void *logits), void *ctx);

#endif
