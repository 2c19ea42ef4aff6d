/*
 * model_impl.h - what the model_*.c files share; for the room only
 *
 *   model.c             memory: what is kept of a micro-batch, and where
 *   model_forward.c     embedding, blocks
 *   model_head.c        logits, loss and their gradients, a chunk of rows at a time
 *   model_backward.c    recomputation, blocks, embedding
 */
#ifndef SHARDKIT_TRAIN_MODEL_IMPL_H
#define SHARDKIT_TRAIN_MODEL_IMPL_H

#include "tools/train/model.h"

/* What the way back needs of one block; T unless said. Shapes: m rows. */
struct block_act {
    void *x;                    /* [m, h] its input */
    void *u;                    /* [m, h] LN1(x) */
    void *qkv;                  /* [m, 3a] */
    void *o;                    /* [m, a] attention's output */
    void *y;                    /* [m, h] x + attention */
    void *w;                    /* [m, h] LN2(y) */
    void *pre, *g;              /* [m, f] before and after the GELU */
    float *mean1, *rstd1, *mean2, *rstd2;       /* fp32 [m] */
    float *lse;                 /* fp32 [b, heads, s] */
};

/* Of one micro-batch in flight. */
struct slot {
    struct block_act *block;    /* [n_blocks] */
    void *raw;                  /* [m, h] embedding before its LayerNorm */
    float *raw_mean, *raw_rstd;
    void *out;                  /* [m, h] behind the last block */
    float *fin_mean, *fin_rstd; /* of the final LayerNorm */
};

struct model {
    const struct stage *g;
    struct stage_state st;
    const struct kernels *k;
    struct comm *tp;
    struct model_opts o;
    int64_t m, h, a, f, v;      /* rows; hidden; this rank's share of hidden, ffn, vocabulary */
    int heads, hd;              /* of this rank */
    char *pool;
    uint64_t used;
    uint64_t scratch_bytes, bias_bytes;
    struct slot *slot;
    float *bias;                /* ALiBi: [heads, s] */
    /* work buffers */
    void *t1;                   /* [m, h] */
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

/* Dropout of one site: a key of (seed, step, block, site), the same in every topology. */
struct kernel_dropout dropout_at(const struct model *m, const struct micro_batch *mb, int block, enum site where);
/* Sum over the tensor-parallel group, in place. */
MUST_CHECK int tp_sum(const struct model *m, void *x, struct dev_stream *s, struct err *e);
struct kernel_attention attention_of(const struct model *m, const struct micro_batch *mb, int block,
                                     const struct block_act *a);
/* LN1 .. GELU of one block, into `a`, from a->u: all that the way back needs. The MLP's output stays in t1, before its
 * bias, unless `again` (recomputation has no use for it). */
MUST_CHECK int block_forward(struct model *m, int block, const struct block_act *a, const struct micro_batch *mb,
                             bool again, struct dev_stream *s, struct err *e);
/* Loss of m->fin, into m->loss; gradients when training: m->d_fin, and the word embedding's. */
MUST_CHECK int head(struct model *m, const struct micro_batch *mb, struct dev_stream *s, struct err *e);
/* Slope of one of n heads (spec 1.5). */
double alibi_slope(int head, int n_heads);

#endif
