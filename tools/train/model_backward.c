/* model_backward.c - recomputation, blocks and embedding, backward */
#include "tools/train/model_impl.h"

/* Make what was not kept: everything from LN1 on, or only the cheap outputs. */
static int recompute(struct model *m, int i, const struct block_act *a, const struct micro_batch *mb,
                     struct dev_stream *s, struct err *e)
{
    const struct kernels *k = m->k;

    if (m->o.recompute == RECOMPUTE_NONE)
        return 0;
    k->layernorm(a->u, a->mean1, a->rstd1, a->x, weight_of(m, i, ROLE_NORM1_W), weight_of(m, i, ROLE_NORM1_B), m->m,
                 m->h, m->o.eps, m->o.t, s);
    if (m->o.recompute == RECOMPUTE_FULL)
        return block_forward(m, i, a, mb, true, s, e);
    k->layernorm(a->w, a->mean2, a->rstd2, a->y, weight_of(m, i, ROLE_NORM2_W), weight_of(m, i, ROLE_NORM2_B), m->m,
                 m->h, m->o.eps, m->o.t, s);
    k->gelu(a->g, a->pre, m->m * m->f, m->o.t, s);
    return 0;
}

/* d: in, the gradient of z = y + dropout(mlp + bias); out, that of y. */
static int mlp_back(struct model *m, int i, const struct block_act *a, const struct micro_batch *mb, void *d,
                    struct dev_stream *s, struct err *e)
{
    const struct kernels *k = m->k;
    const enum dtype t = m->o.t;
    struct kernel_dropout drop = dropout_at(m, mb, m->g->first_block + i, SITE_MLP_OUT);
    void *dm = drop.p > 0 ? m->t1 : d;

    k->dropout_back(dm, grad_of(m, i, ROLE_DOWN_B), d, &drop, m->m, m->h, mb->add, m->scratch, t, s);
    k->linear_dw(grad_of(m, i, ROLE_DOWN_W), NULL, dm, a->g, m->m, m->h, m->f, mb->add, t, s);
    k->linear_dx_gelu(m->d_ff, dm, weight_of(m, i, ROLE_DOWN_W), a->pre, m->m, m->h, m->f, t, s);
    k->linear_dw(grad_of(m, i, ROLE_UP_W), grad_of(m, i, ROLE_UP_B), m->d_ff, a->w, m->m, m->f, m->h, mb->add, t, s);
    k->linear_dx(m->t1, m->d_ff, weight_of(m, i, ROLE_UP_W), m->m, m->f, m->h, false, t, s);
    if (tp_sum(m, m->t1, s, e) < 0)
        return -1;
    k->layernorm_back(d, grad_of(m, i, ROLE_NORM2_W), grad_of(m, i, ROLE_NORM2_B), m->t1, a->y,
                      weight_of(m, i, ROLE_NORM2_W), a->mean2, a->rstd2, d, m->m, m->h, mb->add, m->scratch, t, s);
    return 0;
}

/* d: in, the gradient of y = x + dropout(attention + bias); out, that of x. */
static int attention_back(struct model *m, int i, const struct block_act *a, const struct micro_batch *mb, void *d,
                          struct dev_stream *s, struct err *e)
{
    const struct kernels *k = m->k;
    const enum dtype t = m->o.t;
    const int size = dtype_size(t);
    struct kernel_dropout drop = dropout_at(m, mb, m->g->first_block + i, SITE_ATTENTION_OUT);
    struct kernel_attention at = attention_of(m, mb, i, a);
    struct kernel_attention_back back = {
        .d_o = m->d_o, .dq = m->d_qkv, .dk = (char *)m->d_qkv + m->hd * size,
        .dv = (char *)m->d_qkv + 2 * m->hd * size, .scratch = m->scratch,
    };
    void *da = drop.p > 0 ? m->t1 : d;

    k->dropout_back(da, grad_of(m, i, ROLE_DENSE_B), d, &drop, m->m, m->h, mb->add, m->scratch, t, s);
    k->linear_dw(grad_of(m, i, ROLE_DENSE_W), NULL, da, a->o, m->m, m->h, m->a, mb->add, t, s);
    k->linear_dx(m->d_o, da, weight_of(m, i, ROLE_DENSE_W), m->m, m->h, m->a, false, t, s);
    k->attention_back(&at, &back, t, s);
    k->linear_dw(grad_of(m, i, ROLE_QKV_W), grad_of(m, i, ROLE_QKV_B), m->d_qkv, a->u, m->m, 3 * m->a, m->h, mb->add,
                 t, s);
    k->linear_dx(m->t1, m->d_qkv, weight_of(m, i, ROLE_QKV_W), m->m, 3 * m->a, m->h, false, t, s);
    if (tp_sum(m, m->t1, s, e) < 0)
        return -1;
    k->layernorm_back(d, grad_of(m, i, ROLE_NORM1_W), grad_of(m, i, ROLE_NORM1_B), m->t1, a->x,
                      weight_of(m, i, ROLE_NORM1_W), a->mean1, a->rstd1, d, m->m, m->h, mb->add, m->scratch, t, s);
    return 0;
}

static void embedding_back(struct model *m, const struct slot *sl, const struct micro_batch *mb, void *d,
                           struct dev_stream *s)
{
    const struct kernels *k = m->k;
    const enum dtype t = m->o.t;
    const struct stage_param *position = stage_get(m->g, -1, ROLE_POSITION);
    struct kernel_dropout drop = dropout_at(m, mb, -1, SITE_EMBEDDING);

    if (drop.p > 0)
        k->dropout_back(d, NULL, d, &drop, m->m, m->h, false, m->scratch, t, s);
    if (position)
        k->position_back(m->st.grads + position->at, position->shape[0], d, mb->positions, m->o.s, m->m, m->h,
                         mb->add, t, s);
    if (sl->raw)
        k->layernorm_back(d, grad_of(m, -1, ROLE_WORD_NORM_W), grad_of(m, -1, ROLE_WORD_NORM_B), d, sl->raw,
                          weight_of(m, -1, ROLE_WORD_NORM_W), sl->raw_mean, sl->raw_rstd, NULL, m->m, m->h, mb->add,
                          m->scratch, t, s);
    k->embed_back(grad_of(m, -1, ROLE_WORD), mb->tokens, d, m->g->tp * m->v, m->v, m->m, m->h, mb->add, m->scratch, t,
                  s);
}

int model_backward(struct model *m, int slot, const struct micro_batch *mb, void *d, struct dev_stream *s,
                   struct err *e)
{
    struct slot *sl = &m->slot[slot];

    if (m->g->last)
        m->k->layernorm_back(d, grad_of(m, -1, ROLE_FINAL_NORM_W), grad_of(m, -1, ROLE_FINAL_NORM_B), m->d_fin,
                             sl->out, weight_of(m, -1, ROLE_FINAL_NORM_W), sl->fin_mean, sl->fin_rstd, NULL, m->m,
                             m->h, mb->add, m->scratch, m->o.t, s);
    for (int i = m->g->n_blocks - 1; i >= 0; i--) {
        const struct block_act *a = &sl->block[i];

        if (recompute(m, i, a, mb, s, e) < 0 || mlp_back(m, i, a, mb, d, s, e) < 0 ||
            attention_back(m, i, a, mb, d, s, e) < 0)
            return -1;
    }
    if (m->g->first)
        embedding_back(m, sl, mb, d, s);
    return 0;
}
