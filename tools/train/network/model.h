/*
 * model.h - one rank's forward and backward pass over one micro-batch
 *
 * The model is that of docs/training.md section 1: pre-LayerNorm blocks, either BLOOM's (ALiBi, embedding LayerNorm)
 * or GPT-2's (learned positions), and a tied head. Activations are [rows, hidden] with one row per token, sample by
 * sample. Tensor parallelism costs two all-reduces per block in each direction. Their results have the same bits on
 * every rank, so everything that is replicated (LayerNorms, row-parallel biases, the residual stream) stays equal by
 * construction. With sequence parallelism each rank stores, between the products, only its share of the rows
 * (model_tensor.c).
 *
 * The head works on chunks of rows: logits, loss and the gradient of the logits of a chunk exist only while that
 * chunk is processed, so a vocabulary of 250,880 needs no [m, V] buffer. For this reason the forward pass of the last
 * stage already computes the head's gradients.
 *
 * Memory is laid out once: one slot of saved activations for every micro-batch in flight, and one set of work
 * buffers. With recomputation a slot stores less.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_MODEL_H
#define SHARDKIT_TRAIN_NETWORK_MODEL_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/pipeline_stage.h"
#include "tools/train/options/train_options.h"

struct model_opts {
    enum dtype t;               /* DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    bool grad_t;                /* true (F16): gradients of parameters are stored and accumulated in type T; false:
                                 * in fp32 */
    int b, s;                   /* samples per micro-batch, tokens per sample */
    int n_slots;                /* number of micro-batches in flight */
    /*
     * SELECTIVE: outputs of LayerNorm and GELU are recomputed; FULL: a block stores only its input and recomputes the
     * rest
     */
    enum opts_recompute recompute;
    float hidden_dropout, attention_dropout;
    /* epsilon of the LayerNorms of the blocks and of the final one; the embedding's is 1e-5 */
    float eps;
    uint64_t seed;              /* seed for dropout */
    bool sequence_parallel;     /* the residual stream is split over tensor ranks by rows; tp must divide s */
    int head_rows;              /* number of rows of a head chunk; 0: chosen from the device and V */
};

/* A micro-batch, in device memory. Buffers that a stage does not need may be NULL. */
struct micro_batch {
    const int32_t *tokens;      /* [rows], used by the first stage */
    const int32_t *positions;   /* [rows]; NULL: 0 .. s - 1 in every sample */
    const int32_t *labels;      /* [rows], used by the last stage */
    const float *weight;        /* [rows]: mask / sum of mask over the micro-batch; used by the last stage */
    /* [rows]: `weight` divided by the number of micro-batches; used by the last stage in training */
    const float *grad_weight;
    int64_t sample0;            /* index of its first sample in the global batch */
    int64_t step;               /* iteration; dropout differs from step to step */
    bool training;              /* apply dropout and compute gradients */
    bool add;                   /* add to the gradients instead of overwriting them */
    bool last;                  /* the gradients are complete after this micro-batch */
};

struct model;
/*
 * Create a model. `st`'s buffers and `k` must outlive it. tp: the tensor-parallel group. Fails with ERR_SYS if the
 * device does not have enough memory; the message names how much is missing and for what.
 */
MUST_CHECK struct model *model_new(const struct stage *g, const struct stage_state *st, const struct kernels *k,
                                   struct comm *tp, const struct model_opts *o, struct err *e);
void model_free(struct model *m);       /* NULL is allowed */
/* Returns the number of bytes of device memory that model_new() would allocate. */
uint64_t model_bytes(const struct stage *g, const struct kernels *k, const struct model_opts *o);

/*
 * Callbacks for work that runs concurrently with the passes. A place is a block's number in the model, -1 for the
 * embedding, which comes first, or L (the number of blocks) for the final LayerNorm and the head.
 */
struct model_hooks {
    /* Called before anything is queued that reads weights of `place`. In a forward pass, places never decrease. */
    int (*ready)(void *ctx, int place, struct dev_stream *s, struct err *e);
    /*
     * Called in the backward pass of a micro-batch whose `last` is set, after the work that completes the gradients of
     * `block` has been queued.
     */
    int (*done)(void *ctx, int block, struct dev_stream *s, struct err *e);
    void *ctx;
};
void model_hook(struct model *m, const struct model_hooks *h);

/*
 * Returns the number of elements of a tensor that crosses a stage boundary: T [rows, hidden], or with sequence
 * parallelism this rank's rows of it.
 */
int64_t model_boundary(const struct stage *g, const struct model_opts *o);
/* Returns the buffer into which the input of a slot is received from the previous stage. */
void *model_input(struct model *m, int slot);
void *model_output(struct model *m, int slot);          /* output of model_forward(), unless it is the last stage */
/*
 * Run the forward pass. The last stage adds the micro-batch's loss to *model_loss() and, in training, the head's
 * gradients to the flat buffer.
 */
MUST_CHECK int model_forward(struct model *m, int slot, const struct micro_batch *mb, struct dev_stream *s,
                             struct err *e);
/*
 * Run the backward pass for the activations that model_forward() has stored in `slot`. d has model_boundary()
 * elements: on input it is the gradient of the stage's output (ignored on the last stage), on return that of the
 * stage's input.
 */
MUST_CHECK int model_backward(struct model *m, int slot, const struct micro_batch *mb, void *d,
                              struct dev_stream *s, struct err *e);

/* Returns the address of the last stage's sum of losses since model_loss_begin(): fp64 in device memory. */
double *model_loss(struct model *m);
void model_loss_begin(struct model *m, struct dev_stream *s);
/*
 * Returns the gradient that the head computes for the word embedding, if one rank uses the embedding both at the input
 * and in the head (PP = 1); else NULL.
 */
void *model_head_grad(struct model *m);
typedef void model_logits_fn(void *ctx, int64_t row0, int64_t rows, const void *logits);
/*
 * Set a callback for an evaluation that needs the logits. It receives each chunk of rows as T [rows, V / tp] in device
 * memory. NULL disables the callback.
 */
void model_set_logits_callback(struct model *m, model_logits_fn *on_logits, void *ctx);

#endif
