/*
 * model_impl.h - internal declarations shared by the model_*.c files
 *
 *   model.c             memory: the data stored for a micro-batch, and its layout
 *   model_tensor.c      tensor parallelism: distribution of rows, sums and gathers
 *   model_forward.c     embedding, blocks
 *   model_head.c        logits, loss and their gradients, one chunk of rows at a time
 *   model_backward.c    recomputation, blocks, embedding
 */
#ifndef SHARDKIT_TRAIN_NETWORK_MODEL_IMPL_H
#define SHARDKIT_TRAIN_NETWORK_MODEL_IMPL_H

#include "tools/train/network/model.h"

/*
 * The data of one block that the backward pass needs. It has type T unless noted otherwise. own_rows is the number of
 * rows of the residual stream that this rank holds.
 */
struct model_block {
    void *input;                /* [own_rows, hidden] */
    void *norm1;                /* [own_rows, hidden] LN1(input) */
    void *qkv;                  /* [rows, 3 * heads_width] query, key and value of all local heads */
    void *attended;             /* [rows, heads_width] output of attention, before its projection */
    void *middle;               /* [own_rows, hidden] input + the output of attention after its projection */
    void *norm2;                /* [own_rows, hidden] LN2(middle) */
    void *gelu_in, *gelu_out;   /* [rows, ffn] */
    float *norm1_mean, *norm1_rstd, *norm2_mean, *norm2_rstd;   /* fp32 [own_rows] */
    float *lse;                 /* fp32 [b, heads, s]: logarithms of the sums of exponentials of the attention scores */
};

/* The data that is stored for one micro-batch in flight. */
struct model_slot {
    struct model_block *block;  /* [n_blocks] */
    void *embedded;             /* [own_rows, hidden] input of the embedding's LayerNorm */
    float *embed_mean, *embed_rstd;
    /*
     * [own_rows, hidden] output of the last block; in a stage without blocks, the input that was received or embedded
     */
    void *output;
    /* [own_rows, hidden] output of the final LayerNorm, if the head is in a stage of its own; else NULL */
    void *normed;
    float *final_mean, *final_rstd;     /* mean and rstd of the final LayerNorm */
};

/*
 * A part of a micro-batch: rows that are processed together. A micro-batch is one part, or it is divided into two
 * halves, so that the sums of one half are communicated while the other half is computed. With sequence parallelism, a
 * tensor rank holds its share of the rows of every part.
 */
struct model_part {
    int sample, samples;
    int64_t row, rows;          /* first row, and number of rows, in the micro-batch */
    /*
     * The rows of the residual stream that this rank holds of the part: their position in this rank's buffers, and
     * their number.
     */
    int64_t own_at, own_rows;
    int64_t own_row;            /* the first of these rows, as a row of the micro-batch */
};
enum { MAX_PARTS = 2 };
struct model_cut {
    int n;
    struct model_part part[MAX_PARTS];
};

struct model {
    const struct stage *stage;
    struct stage_state state;
    const struct kernels *kernels;
    struct comm *tp_group;
    struct model_opts opts;
    int64_t rows;               /* rows of a micro-batch, b * s */
    /*
     * The number of rows of the residual stream that this rank holds: all rows or, with sequence parallelism, rows /
     * tp.
     */
    int64_t own_rows;
    int64_t hidden;
    int heads, head_dim;        /* number of this rank's heads, and their size */
    int64_t heads_width;        /* heads * head_dim = hidden / tp */
    int64_t ffn, vocab;         /* this rank's share of the MLP's width and of the vocabulary */
    struct model_cut forward, backward; /* the parts into which the two passes divide the micro-batch */
    char *pool;
    uint64_t used;
    uint64_t scratch_bytes, alibi_bytes;
    struct model_slot *slot;
    float *alibi;               /* [heads, s], or NULL */
    /* work buffers */
    void *work;                 /* [rows, hidden] a product before its sum over tensor ranks, or a gradient */
    /* [rows, hidden] rows gathered from all tensor ranks; NULL without sequence parallelism */
    void *gathered;
    int32_t *positions;         /* [rows] row % s, with sequence parallelism; else NULL */
    /* for each part, the operations that have been started and not completed */
    struct comm_req *sum_req[MAX_PARTS], *gather_req[MAX_PARTS];
    void *d_gelu_in, *d_qkv, *d_attended;       /* gradients */
    void *scratch;
    /* the head */
    int64_t head_rows;          /* rows per chunk */
    void *logits;               /* [head_rows, vocab] */
    /* [head_rows, 3] of this rank, and [tp, head_rows, 3] of all tensor ranks (NULL if TP is 1) */
    float *stat, *all_stat;
    float *lse;                 /* [head_rows] */
    float *loss_rows;           /* [rows], the loss of each row */
    void *final_norm, *d_final_norm;    /* [rows, hidden] output of the final LayerNorm, and its gradient */
    double *loss;               /* [2]: the sum of losses, and the loss of the last micro-batch */
    void *head_grad;            /* [vocab, hidden]: see model_head_grad() */
    model_logits_fn *on_logits;
    void *on_logits_ctx;
    struct model_hooks hooks;
};

enum model_site { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT, SITE_N };

/*
 * Returns the weights of a parameter. `block` counts from the stage's first block; -1 means that the parameter is
 * outside of blocks.
 */
static inline const void *model_param_weights(const struct model *m, int block, enum role r)
{
    return (const char *)m->state.weights + stage_get(m->stage, block, r)->at * dtype_size(m->opts.t);
}
static inline enum dtype model_grad_dtype(const struct model *m) { return m->opts.grad_t ? m->opts.t : DTYPE_F32; }
/* Returns the address of element `at` of the flat gradient buffer. */
static inline void *grad_at(const struct model *m, int64_t at)
{
    return (char *)m->state.grads + at * dtype_size(model_grad_dtype(m));
}
static inline void *grad_of(const struct model *m, int block, enum role r)
{
    return grad_at(m, stage_get(m->stage, block, r)->at);
}

static inline int weights_ready(const struct model *m, int place, struct dev_stream *s, struct err *e)
{
    return m->hooks.ready ? m->hooks.ready(m->hooks.ctx, place, s, e) : 0;
}
static inline int grads_done(const struct model *m, int block, struct dev_stream *s, struct err *e)
{
    return m->hooks.done ? m->hooks.done(m->hooks.ctx, block, s, e) : 0;
}

/* Returns the address of row `row` of x, T [.., width]. */
static inline void *model_row_address(const struct model *m, const void *x, int64_t row, int64_t width)
{
    return (char *)x + row * width * dtype_size(m->opts.t);
}

/* ---- model_tensor.c ---- */

/* Set m->own_rows, m->forward and m->backward: the rows of this rank, and the parts of the passes. */
void model_cut_rows(struct model *m);
/*
 * Start to sum x [rows, hidden] over the tensor ranks, in the rows of part i of `c`. Without sequence parallelism, all
 * these rows are summed in place. With sequence parallelism, each rank sums only the rows that it holds, which stay at
 * their position in x (part.own_row). Work that is queued after model_sum_wait() uses the sums.
 */
MUST_CHECK int model_sum_start(struct model *m, const struct model_cut *c, int i, void *x, struct dev_stream *s,
                               struct err *e);
MUST_CHECK int model_sum_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
/* Start the sums of all parts of `c`, and wait for them: like model_sum_start() and model_sum_wait() for each part. */
MUST_CHECK int model_sums_start(struct model *m, const struct model_cut *c, void *x, struct dev_stream *s,
                                struct err *e);
MUST_CHECK int model_sums_wait(struct model *m, const struct model_cut *c, struct dev_stream *s, struct err *e);
/*
 * Start to gather the rows x [own_rows, hidden] of all tensor ranks. Work that is queued after model_gather_wait()
 * finds all rows of part i at gathered_rows(). Without sequence parallelism no data is moved. With sequence
 * parallelism, the rows are in m->gathered until the part is gathered again.
 */
MUST_CHECK int model_gather_start(struct model *m, const struct model_cut *c, int i, const void *x,
                                  struct dev_stream *s, struct err *e);
MUST_CHECK int model_gather_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
static inline const void *gathered_rows(const struct model *m, const struct model_part *p, const void *x)
{
    return m->opts.sequence_parallel ? model_row_address(m, m->gathered, p->row, m->hidden)
                                     : model_row_address(m, x, p->own_at, m->hidden);
}
/*
 * Sum the gradients of one block's replicated parameters over the tensor ranks; block -1 means the parameters outside
 * of blocks. This is needed with sequence parallelism, because each rank computes these gradients from its own rows
 * only. Must be called once per step, when the gradients are complete.
 */
MUST_CHECK int model_sum_copies(struct model *m, int block, struct dev_stream *s, struct err *e);

/* ---- model_forward.c ---- */

/*
 * Returns the parameters of the dropout at site `where` of a block, for rows that begin at `row`. The key of the
 * dropout depends only on (seed, step, block, site), so it is the same in every topology.
 */
struct kernel_dropout model_dropout(const struct model *m, const struct micro_batch *mb, int block,
                                    enum model_site where, int64_t row);
struct kernel_attention model_attention(const struct model *m, const struct micro_batch *mb, int block,
                                        const struct model_block *a, const struct model_part *p);
/*
 * Recompute all data of one block that the backward pass needs, from LN1 to GELU. The input is a->input, and the
 * results are stored in the buffers of `a`.
 */
MUST_CHECK int model_recompute_block(struct model *m, int block, const struct model_block *a,
                                     const struct micro_batch *mb, struct dev_stream *s, struct err *e);

/* ---- model_head.c ---- */

/*
 * Compute the loss from m->final_norm and add it to m->loss. In training, also compute the gradients of the word
 * embedding and of m->d_final_norm, in the rows that this rank holds (part.own_row).
 */
MUST_CHECK int model_head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e);

#endif
