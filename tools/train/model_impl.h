/*
 * model_impl.h - what the model_*.c files share; for the room only
 *
 *   model.c             memory: what is kept of a micro-batch, and where
 *   model_tensor.c      tensor parallelism: who holds which rows, sums and gathers
 *   model_forward.c     embedding, blocks
 *   model_head.c        logits, loss and their gradients, a chunk of rows at a time
 *   model_backward.c    recomputation, blocks, embedding
 */
#ifndef SHARDKIT_TRAIN_MODEL_IMPL_H
#define SHARDKIT_TRAIN_MODEL_IMPL_H

#include "tools/train/model.h"

/* What the way back needs of one block; T unless said. r: the rows of the residual stream that this rank holds. */
struct block_act {
    void *x;                    /* [r, h] its input */
    void *u;                    /* [r, h] LN1(x) */
    void *qkv;                  /* [m, 3a] */
    void *o;                    /* [m, a] attention's output */
    void *y;                    /* [r, h] x + attention */
    void *w;                    /* [r, h] LN2(y) */
    void *pre, *g;              /* [m, f] before and after the GELU */
    float *mean1, *rstd1, *mean2, *rstd2;       /* fp32 [r] */
    float *lse;                 /* fp32 [b, heads, s] */
};

/* Of one micro-batch in flight. */
struct slot {
    struct block_act *block;    /* [n_blocks] */
    void *raw;                  /* [r, h] embedding before its LayerNorm */
    float *raw_mean, *raw_rstd;
    void *out;                  /* [r, h] behind the last block; without blocks what came in, or the embedding */
    void *normed;               /* [r, h] behind the final LayerNorm, for a stage with the head alone; else NULL */
    float *fin_mean, *fin_rstd; /* of the final LayerNorm */
};

/*
 * Rows that are worked on together: a micro-batch, or half of its samples while the sums of the other half
 * are on their way. With sequence parallelism a tensor rank holds, of every part, its share of the rows.
 */
struct part {
    int sample, samples;
    int64_t row, rows;          /* of the micro-batch */
    int64_t own, n_own;         /* rows of the residual stream: where in this rank's buffers, and how many */
    int64_t number;             /* the first of those is this row of the micro-batch */
};
enum { MAX_PARTS = 2 };
struct cut {
    int n;
    struct part part[MAX_PARTS];
};

struct model {
    const struct stage *g;
    struct stage_state st;
    const struct kernels *k;
    struct comm *tp;
    struct model_opts o;
    int64_t m, h, a, f, v;      /* rows; hidden; this rank's share of hidden, ffn, vocabulary */
    int64_t r;                  /* rows of the residual stream held here: m, with sequence parallelism m / tp */
    struct cut there, back;     /* parts of the forward and of the backward pass */
    int heads, hd;              /* of this rank */
    char *pool;
    uint64_t used;
    uint64_t scratch_bytes, bias_bytes;
    struct slot *slot;
    float *bias;                /* ALiBi: [heads, s] */
    /* work buffers */
    void *t1;                   /* [m, h] */
    void *full;                 /* [m, h] rows gathered from all tensor ranks; NULL without sequence parallelism */
    int32_t *position;          /* [m] row % s, with sequence parallelism; else NULL */
    struct comm_req *sum[MAX_PARTS], *gather[MAX_PARTS];        /* on their way, of each part */
    void *d_ff, *d_qkv, *d_o;   /* gradients of pre, qkv, o */
    void *scratch;
    /* the head */
    int64_t head_rows;
    void *logits;               /* [head_rows, v] */
    float *stat, *stats, *lse;  /* [head_rows, 3], [tp, head_rows, 3] (TP 1: NULL), [head_rows] */
    float *loss_rows;           /* [m] */
    void *fin, *d_fin;          /* [m, h] behind the final LayerNorm, and its gradient */
    double *loss;               /* [2]: the sum, the last micro-batch's */
    float *head_grad;           /* [v, h]: see model_head_grad() */
    void (*look)(void *ctx, int64_t row0, int64_t rows, const void *logits);
    void *look_ctx;
    struct model_hooks hooks;
};

enum site { SITE_EMBEDDING, SITE_ATTENTION, SITE_ATTENTION_OUT, SITE_MLP_OUT, SITE_N };

/* A parameter's weights and gradient. block counts from the stage's first; -1: none. */
static inline const void *weight_of(const struct model *m, int block, enum role r)
{
    return (const char *)m->st.weights + stage_get(m->g, block, r)->at * dtype_size(m->o.t);
}
static inline float *grad_of(const struct model *m, int block, enum role r)
{
    return m->st.grads + stage_get(m->g, block, r)->at;
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
    return (char *)x + row * width * dtype_size(m->o.t);
}

/* ---- model_tensor.c ---- */

/* Sets m->r, m->there and m->back. */
void cut_rows(struct model *m);
/*
 * Sum x [m, h] over tensor ranks, the rows of part i of `c`: all of them, in place; with sequence
 * parallelism only this rank's own are summed, and stay in x where they are (part.number). What is queued after
 * tp_sum_wait() finds them.
 */
MUST_CHECK int tp_sum_start(struct model *m, const struct cut *c, int i, void *x, struct dev_stream *s, struct err *e);
MUST_CHECK int tp_sum_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
/* The same of all parts. */
MUST_CHECK int tp_sums_start(struct model *m, const struct cut *c, void *x, struct dev_stream *s, struct err *e);
MUST_CHECK int tp_sums_wait(struct model *m, const struct cut *c, struct dev_stream *s, struct err *e);
/*
 * Own rows x [r, h] to all tensor ranks: what is queued after tp_gather_wait() finds all rows of part i at
 * tp_rows(). Nothing moves without sequence parallelism; with it they are in m->full until the next gather of that part.
 */
MUST_CHECK int tp_gather_start(struct model *m, const struct cut *c, int i, const void *x, struct dev_stream *s,
                               struct err *e);
MUST_CHECK int tp_gather_wait(struct model *m, int i, struct dev_stream *s, struct err *e);
static inline const void *tp_rows(const struct model *m, const struct part *p, const void *x)
{
    return m->o.sequence_parallel ? row_of(m, m->full, p->row, m->h) : row_of(m, x, p->own, m->h);
}
/*
 * With sequence parallelism each rank's gradients of what all tensor ranks hold copies of come from its own
 * rows: sum those of a block (-1: outside blocks). Once a step, when they are complete.
 */
MUST_CHECK int tp_sum_copies(struct model *m, int block, struct dev_stream *s, struct err *e);

/* ---- model_forward.c ---- */

/* Dropout of one site: a key of (seed, step, block, site), the same in every topology; for rows from `row` on. */
struct kernel_dropout dropout_at(const struct model *m, const struct micro_batch *mb, int block, enum site where,
                                 int64_t row);
struct kernel_attention attention_of(const struct model *m, const struct micro_batch *mb, int block,
                                     const struct block_act *a, const struct part *p);
/* LN1 .. GELU of one block into `a`, from a->x: all that the way back needs. */
MUST_CHECK int block_again(struct model *m, int block, const struct block_act *a, const struct micro_batch *mb,
                           struct dev_stream *s, struct err *e);

/* ---- model_head.c ---- */

/* Loss of m->fin, into m->loss; gradients when training: own rows of m->d_fin (part.number), and the word embedding's. */
MUST_CHECK int head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e);
/* Slope of one of n heads (spec 1.5). */
double alibi_slope(int head, int n_heads);

#endif
