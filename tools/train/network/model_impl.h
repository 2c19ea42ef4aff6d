/*
 * model_impl.h - what the model_*.c files share; for the room only
 *
 *   model.c             memory: what is kept of a micro-batch, and where
 *   model_tensor.c      tensor parallelism: who holds which rows, sums and gathers
 *   model_forward.c     embedding, blocks
 *   model_head.c        logits, loss and their gradients, a chunk of rows at a time
 *   model_backward.c    recomputation, blocks, embedding
 */
#ifndef SHARDKIT_TRAIN_NETWORK_MODEL_IMPL_H
#define SHARDKIT_TRAIN_NETWORK_MODEL_IMPL_H

#include "tools/train/network/model.h"

/* What the way back needs of one block; T unless said. own_rows: of the residual stream, this rank's. */
struct model_block {
    void *input;                /* [own_rows, hidden] */
    void *norm1;                /* [own_rows, hidden] LN1(input) */
    void *qkv;                  /* [rows, 3 * heads_width] */
    void *attended;             /* [rows, heads_width] attention's output */
    void *middle;               /* [own_rows, hidden] input + what attention adds */
    void *norm2;                /* [own_rows, hidden] LN2(middle) */
    void *gelu_in, *gelu_out;   /* [rows, ffn] */
    float *norm1_mean, *norm1_rstd, *norm2_mean, *norm2_rstd;   /* fp32 [own_rows] */
    float *lse;                 /* fp32 [b, heads, s]: logarithms of the sums of exponentials of attention's scores */
};

/* Of one micro-batch in flight. */
struct model_slot {
    struct model_block *block;  /* [n_blocks] */
    void *embedded;             /* [own_rows, hidden] before the embedding's LayerNorm */
    float *embed_mean, *embed_rstd;
    void *output;               /* [own_rows, hidden] behind the last block; without blocks what came in, or embedded */
    void *normed;               /* [own_rows, hidden] behind the final norm, where the head is a stage alone; or NULL */
    float *final_mean, *final_rstd;     /* of the final LayerNorm */
};

/*
 * Rows that are worked on together: a micro-batch, or half of its samples while the sums of the other half
 * are on their way. With sequence parallelism a tensor rank holds, of every part, its share of the rows.
 */
struct model_part {
    int sample, samples;
    int64_t row, rows;          /* of the micro-batch */
    int64_t own_at, own_rows;   /* rows of the residual stream: where in this rank's buffers, and how many */
    int64_t own_row;            /* the first of those is this row of the micro-batch */
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
    int64_t rows;               /* of a micro-batch, b * s */
    int64_t own_rows;           /* of the residual stream, held here: all, with sequence parallelism rows / tp */
    int64_t hidden;
    int heads, head_dim;        /* this rank's heads */
    int64_t heads_width;        /* heads * head_dim = hidden / tp */
    int64_t ffn, vocab;         /* this rank's share */
    struct model_cut forward, backward; /* parts of the two passes */
    char *pool;
    uint64_t used;
    uint64_t scratch_bytes, alibi_bytes;
    struct model_slot *slot;
    float *alibi;               /* [heads, s], or NULL */
    /* work buffers */
    void *work;                 /* [rows, hidden] a product that is yet to be summed over tensor ranks, or a gradient */
    void *gathered;             /* [rows, hidden] from all tensor ranks; NULL without sequence parallelism */
    int32_t *positions;         /* [rows] row % s, with sequence parallelism; else NULL */
    struct comm_req *sum_req[MAX_PARTS], *gather_req[MAX_PARTS];        /* on their way, of each part */
    void *d_gelu_in, *d_qkv, *d_attended;       /* gradients */
    void *scratch;
    /* the head */
    int64_t head_rows;          /* of a chunk */
    void *logits;               /* [head_rows, vocab] */
    float *stat, *all_stat;     /* [head_rows, 3]; [tp, head_rows, 3], of all ranks (TP 1: NULL) */
    float *lse;                 /* [head_rows] */
    float *loss_rows;           /* [rows] */
    void *final_norm, *d_final_norm;    /* [rows, hidden] behind the final LayerNorm, and its gradient */
    double *loss;               /* [2]: the sum, the last micro-batch's */
    void *head_grad;            /* [vocab, hidden]: see model_head_grad() */
    void (*look)(void *ctx, int64_t row0, int64_t rows, const void *logits);
    void *look_ctx;
    struct model_hooks hooks;
};

enum model_site { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT, SITE_N };

/* A parameter's weights and gradient. block counts from the stage's first; -1: none. */
static inline const void *weight_of(const struct model *m, int block, enum role r)
{
    return (const char *)m->state.weights + stage_get(m->stage, block, r)->at * dtype_size(m->opts.t);
}
static inline enum dtype model_grad_dtype(const struct model *m) { return m->opts.grad_t ? m->opts.t : DTYPE_F32; }
/* Element `at` of the flat buffer of gradients. */
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

/* Row `row` of T [.., width]. */
static inline void *row_of(const struct model *m, const void *x, int64_t row, int64_t width)
{
    return (char *)x + row * width * dtype_size(m->opts.t);
}

/* ---- model_tensor.c ---- */

/* Sets m->own_rows, m->forward and m->backward. */
void model_cut_rows(struct model *m);
/*
 * Sum x [rows, hidden] over tensor ranks, the rows of part i of `c`: all of them, in place; with sequence
 * parallelism only this rank's own are summed, and stay in x where they are (part.own_row). What is queued after
 * model_sum_wait() finds them.
 */
MUST_CHECK int model_sum_start(struct model *m, const struct model_cut *c, int i, void *x, struct dev_stream *s,
                               struct err *e);
MUST_CHECK int model_sum_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
/* The same of all parts. */
MUST_CHECK int model_sums_start(struct model *m, const struct model_cut *c, void *x, struct dev_stream *s,
                                struct err *e);
MUST_CHECK int model_sums_wait(struct model *m, const struct model_cut *c, struct dev_stream *s, struct err *e);
/*
 * Own rows x [own_rows, hidden] to all tensor ranks: what is queued after model_gather_wait() finds all rows of
 * part i at gathered_rows(). Nothing moves without sequence parallelism; with it they are in m->gathered until the
 * next gather of that part.
 */
MUST_CHECK int model_gather_start(struct model *m, const struct model_cut *c, int i, const void *x,
                                  struct dev_stream *s, struct err *e);
MUST_CHECK int model_gather_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
static inline const void *gathered_rows(const struct model *m, const struct model_part *p, const void *x)
{
    return m->opts.sequence_parallel ? row_of(m, m->gathered, p->row, m->hidden) : row_of(m, x, p->own_at, m->hidden);
}
/*
 * With sequence parallelism each rank's gradients of what all tensor ranks hold copies of come from its own
 * rows: sum those of a block (-1: outside blocks). Once a step, when they are complete.
 */
MUST_CHECK int model_sum_copies(struct model *m, int block, struct dev_stream *s, struct err *e);

/* ---- model_forward.c ---- */

/* Dropout of one site: a key of (seed, step, block, site), the same in every topology; for rows from `row` on. */
struct kernel_dropout model_dropout(const struct model *m, const struct micro_batch *mb, int block,
                                    enum model_site where, int64_t row);
struct kernel_attention model_attention(const struct model *m, const struct micro_batch *mb, int block,
                                        const struct model_block *a, const struct model_part *p);
/* LN1 .. GELU of one block into `a`, from a->input: all that the way back needs. */
MUST_CHECK int model_recompute_block(struct model *m, int block, const struct model_block *a,
                                     const struct micro_batch *mb, struct dev_stream *s, struct err *e);

/* ---- model_head.c ---- */

/*
 * Loss of m->final_norm, into m->loss; gradients when training: own rows of m->d_final_norm (part.own_row), and
 * the word embedding's.
 */
MUST_CHECK int model_head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e);

#endif
