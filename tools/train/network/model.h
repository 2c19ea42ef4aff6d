/*
 * model.h - one rank's forward and backward pass over one micro-batch
 *
 * The model is that of docs/training.md section 1: pre-LayerNorm blocks, either BLOOM's (ALiBi, embedding LayerNorm)
 * or GPT-2's (learned positions), and a head tied to the word embedding. Activations are [rows, hidden] with one row
 * per token, sample by sample. Tensor parallelism costs two all-reduces per block in each direction. Their results have
 * the same bits on every rank, so all replicated data (LayerNorms, row-parallel biases, the residual stream) stays
 * equal on all ranks. With sequence parallelism each rank stores only its share of the rows between two products
 * (model_tensor.c).
 *
 * The head works on chunks of rows: logits, loss and the gradient of the logits of a chunk exist only while that
 * chunk is processed, so a vocabulary of 250,880 needs no [m, V] buffer. For this reason the forward pass of the last
 * stage already computes the head's gradients.
 *
 * Memory is laid out once. It consists of one set of work buffers, and one slot for every micro-batch in flight. A slot
 * has the activations that the backward pass needs; with recomputation it has fewer.
 */
#ifndef SHARDKIT_TRAIN_NETWORK_MODEL_H
#define SHARDKIT_TRAIN_NETWORK_MODEL_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"
#include "tools/train/network/pipeline_stage.h"
#include "tools/train/options/train_options.h"

struct model_opts {
    enum dtype t;               /* DTYPE_BF16, DTYPE_F16 or DTYPE_F32 */
    /* gradients of parameters are stored and accumulated in T, which must be F16; false: in fp32 */
    bool grad_t;
    int b, s;                   /* samples per micro-batch, tokens per sample */
    int n_slots;                /* number of micro-batches in flight, whose activations are stored */
    /*
     * SELECTIVE: the outputs of LayerNorm and GELU are recomputed. FULL: a block stores only its input, and all else is
     * recomputed.
     */
    enum opts_recompute recompute;
    float hidden_dropout, attention_dropout;
    /* epsilon of all LayerNorms except the embedding's, whose epsilon is 1e-5 */
    float eps;
    uint64_t seed;              /* seed for dropout */
    bool sequence_parallel;     /* the rows of the residual stream are split over tensor ranks; tp must divide s */
    int head_rows;              /* rows of a chunk of logits; 0: chosen from the device and V */
};

/* A micro-batch, in device memory. Buffers that a stage does not need may be NULL. */
struct micro_batch {
    const int32_t *tokens;      /* [rows], token ids; used by the first stage */
    const int32_t *positions;   /* [rows]; NULL: every sample has the positions 0 .. s - 1 */
    const int32_t *labels;      /* [rows], token ids to predict; used by the last stage */
    const float *weight;        /* [rows], mask / sum of the mask over the micro-batch; used by the last stage */
    /* [rows], `weight` divided by the number of micro-batches; used by the last stage in training. */
    const float *grad_weight;
    int64_t sample0;            /* index of its first sample in the global batch */
    int64_t step;               /* the iteration, which determines the dropout masks */
    bool training;              /* dropout is applied and gradients are computed */
    bool add;                   /* gradients are added to the old ones; false: they overwrite them */
    bool last;                  /* the gradients are complete after this micro-batch */
};

struct model;
/*
 * Create a model. The buffers of `st` and the kernels `k` must outlive it. tp is the group of tensor-parallel ranks.
 * Fails with ERR_SYS if the device does not have enough memory; the message states how much is missing, and for what.
 */
MUST_CHECK struct model *model_new(const struct stage *g, const struct stage_state *st, const struct kernels *k,
                                   struct comm *tp, const struct model_opts *o, struct err *e);
void model_free(struct model *m);       /* NULL is allowed */
/* Returns the number of bytes of device memory that model_new() would allocate. */
uint64_t model_bytes(const struct stage *g, const struct kernels *k, const struct model_opts *o);

/*
 * Callbacks for work that runs at the same time as the passes. A `place` is a part of the model: -1 is the embedding, 0
 * .. L - 1 are the L blocks, and L is the final LayerNorm and the head.
 */
struct model_hooks {
    /* Called before any work is queued that reads the weights of `place`. In a forward pass, places never decrease. */
    int (*ready)(void *ctx, int place, struct dev_stream *s, struct err *e);
    /*
     * Called in the backward pass of the last micro-batch of a step, after all work that computes the gradients of
     * `block` has been queued.
     */
    int (*done)(void *ctx, int block, struct dev_stream *s, struct err *e);
    void *ctx;
};
void model_hook(struct model *m, const struct model_hooks *h);

/*
 * Returns the number of elements of the tensor that one stage sends to the next: all rows of T [rows, hidden] or, with
 * sequence parallelism, this rank's rows of it.
 */
int64_t model_boundary(const struct stage *g, const struct model_opts *o);
/* Returns the buffer that receives the input of a slot from the previous stage. */
void *model_input(struct model *m, int slot);
void *model_output(struct model *m, int slot);          /* output of model_forward(), on all stages but the last */
/*
 * Run the forward pass of a micro-batch. The last stage adds the loss of the micro-batch to *model_loss(). In training
 * it also adds the gradients of the head to the gradient buffer.
 */
MUST_CHECK int model_forward(struct model *m, int slot, const struct micro_batch *mb, struct dev_stream *s,
                             struct err *e);
/*
 * Run the backward pass of a micro-batch, from the activations that model_forward() has stored in `slot`. d has
 * model_boundary() elements. On input it is the gradient of the stage's output (not used on the last stage); on return
 * it is the gradient of the stage's input.
 */
MUST_CHECK int model_backward(struct model *m, int slot, const struct micro_batch *mb, void *d,
                              struct dev_stream *s, struct err *e);

/*
 * Returns the address of the sum of losses that the last stage has computed since model_loss_begin(). The sum is fp64
 * in device memory.
 */
double *model_loss(struct model *m);
void model_loss_begin(struct model *m, struct dev_stream *s);
/*
 * If this rank uses the word embedding both at the input and in the head (PP = 1), returns the gradient that the head
 * computes for it. Otherwise returns NULL.
 */
void *model_head_grad(struct model *m);
typedef void model_logits_fn(void *ctx, int64_t row0, int64_t rows, const void *logits);
/*
 * Set a callback that receives the logits in an evaluation. It is called with each chunk of rows, T [rows, V / tp] in
 * device memory. NULL removes the callback.
 */
void model_set_logits_callback(struct model *m, model_logits_fn *on_logits, void *ctx);

#endif
