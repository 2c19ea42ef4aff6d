/* model_forward.c - embedding and transformer blocks, forward */
#include <math.h>

#include "tools/train/model_impl.h"

#define EMBED_NORM_EPS 1e-5f            /* fixed: --layernorm-epsilon is not for this one (spec 1.1) */

/* splitmix64: spreads neighbouring numbers over all bits (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct kernel_dropout dropout_at(const struct model *m, const struct micro_batch *mb, int block, enum site where)
{
    struct kernel_dropout d = { .p = where == SITE_ATTENTION ? m->o.attention_dropout : m->o.hidden_dropout };
    uint64_t key;

    if (!mb->training)
        d.p = 0;
    key = mix(mix(mix(m->o.seed) ^ (uint64_t)mb->step) ^ (uint64_t)((int64_t)(block + 1) * SITE_N + where));
    d.key[0] = (uint32_t)key;
    d.key[1] = (uint32_t)(key >> 32);
    d.row0 = mb->sample0 * m->o.s;
    return d;
}

int tp_sum(const struct model *m, void *x, struct dev_stream *s, struct err *e)
{
    return comm_all_reduce(m->tp, x, x, m->m * m->h, m->o.t, COMM_SUM, s, e);
}

struct kernel_attention attention_of(const struct model *m, const struct micro_batch *mb, int block,
                                     const struct block_act *a)
{
    const int size = dtype_size(m->o.t);
    struct kernel_attention at = {
        .b = m->o.b, .s = m->o.s, .heads = m->heads, .hd = m->hd,
        .head0 = m->g->tp * m->heads, .heads_all = (int)m->g->model.n_heads,
        .q = a->qkv, .k = (char *)a->qkv + m->hd * size, .v = (char *)a->qkv + 2 * m->hd * size,
        .token_stride = 3 * m->a, .head_stride = 3 * m->hd,
        .o = a->o, .lse = a->lse, .scale = (float)(1 / sqrt(m->hd)), .bias = m->bias,
        .round_unit = m->g->first_block + block > 1 ? (float)(m->g->first_block + block) : 1,
        .drop = dropout_at(m, mb, m->g->first_block + block, SITE_ATTENTION),
    };

    return at;
}

int block_forward(struct model *m, int block, const struct block_act *a, const struct micro_batch *mb, bool again,
                  struct dev_stream *s, struct err *e)
{
    const struct kernels *k = m->k;
    const enum dtype t = m->o.t;
    struct kernel_attention at = attention_of(m, mb, block, a);
    struct kernel_dropout drop = dropout_at(m, mb, m->g->first_block + block, SITE_ATTENTION_OUT);

    k->linear(a->qkv, a->u, weight_of(m, block, ROLE_QKV_W), weight_of(m, block, ROLE_QKV_B), m->m, 3 * m->a, m->h, t, s);
    k->attention(&at, t, s);
    k->linear(m->t1, a->o, weight_of(m, block, ROLE_DENSE_W), NULL, m->m, m->h, m->a, t, s);
    if (tp_sum(m, m->t1, s, e) < 0)
        return -1;
    k->residual_norm(a->y, a->w, a->mean2, a->rstd2, m->t1, weight_of(m, block, ROLE_DENSE_B), a->x, &drop,
                     weight_of(m, block, ROLE_NORM2_W), weight_of(m, block, ROLE_NORM2_B), m->m, m->h, m->o.eps, t, s);
    k->linear_gelu(a->g, a->pre, a->w, weight_of(m, block, ROLE_UP_W), weight_of(m, block, ROLE_UP_B), m->m, m->f,
                   m->h, t, s);
    if (again)
        return 0;
    k->linear(m->t1, a->g, weight_of(m, block, ROLE_DOWN_W), NULL, m->m, m->h, m->f, t, s);
    return tp_sum(m, m->t1, s, e);
}

/* x of the first block: word rows summed over tensor ranks, LayerNorm, positions, dropout. */
static int embedding(struct model *m, struct slot *sl, const struct micro_batch *mb, struct dev_stream *s,
                     struct err *e)
{
    const struct kernels *k = m->k;
    const enum dtype t = m->o.t;
    const struct stage_param *position = stage_get(m->g, -1, ROLE_POSITION);
    struct kernel_dropout drop = dropout_at(m, mb, -1, SITE_EMBEDDING);
    void *x = sl->block[0].x, *raw = sl->raw ? sl->raw : x;

    k->embed(raw, mb->tokens, weight_of(m, -1, ROLE_WORD), m->g->tp * m->v, m->v, m->m, m->h, t, s);
    if (tp_sum(m, raw, s, e) < 0)
        return -1;
    if (sl->raw)
        k->layernorm(x, sl->raw_mean, sl->raw_rstd, raw, weight_of(m, -1, ROLE_WORD_NORM_W),
                     weight_of(m, -1, ROLE_WORD_NORM_B), m->m, m->h, EMBED_NORM_EPS, t, s);
    if (position || drop.p > 0)
        k->embed_finish(x, x, position ? weight_of(m, -1, ROLE_POSITION) : NULL, mb->positions, m->o.s, &drop, m->m,
                        m->h, t, s);
    return 0;
}

/* What follows block i: residual and the next LayerNorm in one pass, into the next block or behind the stage. */
static void after_block(struct model *m, struct slot *sl, int i, const struct micro_batch *mb, struct dev_stream *s)
{
    const bool end = i == m->g->n_blocks - 1;
    struct block_act *a = &sl->block[i], *next = end ? NULL : a + 1;
    struct kernel_dropout drop = dropout_at(m, mb, m->g->first_block + i, SITE_MLP_OUT);
    const void *gamma = NULL, *beta = NULL;

    if (next) {
        gamma = weight_of(m, i + 1, ROLE_NORM1_W);
        beta = weight_of(m, i + 1, ROLE_NORM1_B);
    } else if (m->g->last) {
        gamma = weight_of(m, -1, ROLE_FINAL_NORM_W);
        beta = weight_of(m, -1, ROLE_FINAL_NORM_B);
    }
    m->k->residual_norm(next ? next->x : sl->out, next ? next->u : m->fin, next ? next->mean1 : sl->fin_mean,
                        next ? next->rstd1 : sl->fin_rstd, m->t1, weight_of(m, i, ROLE_DOWN_B), a->y, &drop, gamma,
                        beta, m->m, m->h, m->o.eps, m->o.t, s);
}

int model_forward(struct model *m, int slot, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    struct slot *sl = &m->slot[slot];
    struct block_act *first = &sl->block[0];

    if (m->g->first && embedding(m, sl, mb, s, e) < 0)
        return -1;
    m->k->layernorm(first->u, first->mean1, first->rstd1, first->x, weight_of(m, 0, ROLE_NORM1_W),
                    weight_of(m, 0, ROLE_NORM1_B), m->m, m->h, m->o.eps, m->o.t, s);
    for (int i = 0; i < m->g->n_blocks; i++) {
        if (block_forward(m, i, &sl->block[i], mb, false, s, e) < 0)
            return -1;
        after_block(m, sl, i, mb, s);
    }
    return m->g->last ? head(m, mb, s, e) : 0;
}
