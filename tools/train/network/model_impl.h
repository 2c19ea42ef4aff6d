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
 * The data of one block that the backward pass needs, of type T unless noted. own_rows: this rank's rows of the
 * residual stream.
 */
struct model_block {
    void *input;                /* [own_rows, hidden] */
    void *norm1;                /* [own_rows, hidden] LN1(input) */
    void *qkv;                  /* [rows, heads_width] output of attention */
    void *attended;             /* [rows, heads_width] attention's output */
    void *middle;               /* [own_rows, hidden] input + the output of attention after its projection */
    void *norm2;                /* [own_rows, hidden] LN2(middle) */
    void *gelu_in, *gelu_out;   /* [rows, ffn] */
    float *norm1_mean, *norm1_rstd, *norm2_mean, *norm2_rstd;   /* fp32 [own_rows] */
    float *lse;                 /* fp32 [b, heads, s]: logarithms of the sums of exponentials of the attention scores */
};

/* The data of one micro-batch in flight. */
struct model_slot {
    struct model_block *block;  /* [n_blocks] */
    void *embedded;             /* [own_rows, hidden] input of the embedding's LayerNorm */
    float *embed_mean, *embed_rstd;
    /* [own_rows, hidden] output of the last block; without blocks: the received or embedded input */
    void *output;
    /* [own_rows, hidden] output of the final norm if the head is in a stage of its own; or NULL */
    void *normed;
    float *final_mean, *final_rstd;     /* of the final LayerNorm */
};

/*
 * Rows that are processed together: a micro-batch, or half of its samples while the sums of the other half are being
 * communicated. With sequence parallelism a tensor rank holds its share of the rows of every part.
 */
struct model_part {
    int sample, samples;
    int64_t row, rows;          /* rows of the micro-batch */
    /* rows of the residual stream: their position in this rank's buffers, and their number */
    int64_t own_at, own_rows;
    int64_t own_row;            /* the row of the micro-batch that is the first of these */
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
    /* rows of the residual stream that this rank holds: all, or with sequence parallelism rows / tp */
    int64_t own_rows;
    int64_t hidden;
    int heads, head_dim;        /* number of this rank's heads, and their size */
    int64_t heads_width;        /* heads * head_dim = hidden / tp */
    int64_t ffn, vocab;         /* this rank's share */
    struct model_cut forward, backward; /* the parts of the two passes */
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
    struct comm_req *sum_req[MAX_PARTS], *gather_req[MAX_PARTS];        /* operations in progress, per part */
    void *d_gelu_in, *d_qkv, *d_attended;       /* gradients */
    void *scratch;
    /* the head */
    int64_t head_rows;          /* rows per chunk */
    void *logits;               /* [head_rows, vocab] */
    float *stat, *all_stat;     /* [head_rows, 3] and [tp, head_rows, 3] of all ranks (NULL for TP 1) */
    float *lse;                 /* [head_rows] */
    float *loss_rows;           /* [rows] */
    void *final_norm, *d_final_norm;    /* [rows, hidden] output of the final LayerNorm, and its gradient */
    double *loss;               /* [2]: the sum, and the loss of the last micro-batch */
    void *head_grad;            /* [vocab, hidden]: see model_head_grad() */
    model_logits_fn *on_logits;
    void *on_logits_ctx;
    struct model_hooks hooks;
};

enum model_site { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT, SITE_N };

/*
 * Returns the weights of a parameter. `block` is relative to the stage's first block; -1 selects a parameter outside of
 * blocks.
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

/* Returns the address of row `row` of T [.., width]. */
static inline void *model_row_address(const struct model *m, const void *x, int64_t row, int64_t width)
{
    return (char *)x + row * width * dtype_size(m->opts.t);
}

/* ---- model_tensor.c ---- */

/* Set m->own_rows, m->forward and m->backward. */
void model_cut_rows(struct model *m);
/*
 * Start the sum of the rows of part i of `c` of x [rows, hidden] over tensor ranks. Without sequence parallelism all
 * rows are summed in place; with it only this rank's own rows are, and they remain at their position in x
 * (part.own_row). Work that is queued after model_sum_wait() uses the sums.
 */
MUST_CHECK int model_sum_start(struct model *m, const struct model_cut *c, int i, void *x, struct dev_stream *s,
                               struct err *e);
MUST_CHECK int model_sum_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
/* Start the sums of all parts of a cut, as model_sum_start() and model_sum_wait() do for one part. */
MUST_CHECK int model_sums_start(struct model *m, const struct model_cut *c, void *x, struct dev_stream *s,
                                struct err *e);
MUST_CHECK int model_sums_wait(struct model *m, const struct model_cut *c, struct dev_stream *s, struct err *e);
/*
 * Start to gather own rows x [own_rows, hidden] from all tensor ranks. Work that is queued after model_gather_wait()
 * finds all rows of part i at gathered_rows(). Without sequence parallelism nothing is moved. With it the rows are in
 * m->gathered until the next gather of that part.
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
 * Sum the gradients of the replicated parameters of one block over the tensor ranks (block -1: of the parameters
 * outside of blocks). With sequence parallelism, each rank has computed them from its own rows only. Call it once per
 * step, when these gradients are complete.
 */
MUST_CHECK int model_sum_copies(struct model *m, int block, struct dev_stream *s, struct err *e);

/* ---- model_forward.c ---- */

/*
 * Returns the dropout parameters of one site for the rows from `row` on. The key depends on (seed, step, block, site)
 * and is the same in every topology.
 */
struct kernel_dropout model_dropout(const struct model *m, const struct micro_batch *mb, int block,
                                    enum model_site where, int64_t row);
struct kernel_attention model_attention(const struct model *m, const struct micro_batch *mb, int block,
                                        const struct model_block *a, const struct model_part *p);
/* Recompute everything that the backward pass needs of one block, LN1 to GELU, from a->input into `a`. */
MUST_CHECK int model_recompute_block(struct model *m, int block, const struct model_block *a,
                                     const struct micro_batch *mb, struct dev_stream *s, struct err *e);

/* ---- model_head.c ---- */

/*
 * Compute the loss of m->final_norm and add it to m->loss. In training, also compute the gradients: this rank's rows
 * of m->d_final_norm (part.own_row), and the word embedding's.
 */
MUST_CHECK int model_head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e);

#endif
