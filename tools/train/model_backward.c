/*
 * model_backward.c - recomputation, blocks and embedding, backward
 *
 * The gradient of a product's input is made before that of its weights, so that its sum over tensor ranks
 * travels while the weights' gradient is computed.
 */
#include "tools/train/model_impl.h"

/* Where backward() stands: the micro-batch, and the gradient of the residual stream. */
struct way {
    struct model *m;
    const struct micro_batch *mb;
    void *d;                    /* [r, h] */
    struct dev_stream *s;
};

/* Make what was not kept: everything from LN1 on, or only the cheap outputs. */
static int recompute(const struct way *f, int i, const struct block_act *a, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->k;

    if (m->o.recompute == RECOMPUTE_NONE)
        return 0;
    if (m->o.recompute == RECOMPUTE_FULL)
        return block_again(m, i, a, f->mb, f->s, e);
    k->layernorm(&(struct kernel_layernorm){
        .m = m->r, .h = m->h, .x = a->x, .gamma = weight_of(m, i, ROLE_NORM1_W), .beta = weight_of(m, i, ROLE_NORM1_B),
        .eps = m->o.eps, .y = a->u, .mean = a->mean1, .rstd = a->rstd1,
    }, m->o.t, f->s);
    k->layernorm(&(struct kernel_layernorm){
        .m = m->r, .h = m->h, .x = a->y, .gamma = weight_of(m, i, ROLE_NORM2_W), .beta = weight_of(m, i, ROLE_NORM2_B),
        .eps = m->o.eps, .y = a->w, .mean = a->mean2, .rstd = a->rstd2,
    }, m->o.t, f->s);
    k->gelu(a->g, a->pre, m->m * m->f, m->o.t, f->s);
    return 0;
}

/* *da [r, h]: d behind the dropout of a site, d itself when there is none; the bias' gradient (NULL: none). */
static void dropout_rows(const struct way *f, int block, enum site where, float *dbias, void **da)
{
    struct model *m = f->m;

    *da = dropout_at(m, f->mb, block, where, 0).p > 0 ? m->t1 : f->d;
    for (int i = 0; i < m->back.n; i++) {
        const struct part *p = &m->back.part[i];
        struct kernel_dropout drop = dropout_at(m, f->mb, block, where, p->number);

        m->k->dropout_back(&(struct kernel_dropout_back){
            .m = p->n_own, .h = m->h, .dz = row_of(m, f->d, p->own, m->h), .drop = drop,
            .da = row_of(m, *da, p->own, m->h), .dbias = dbias, .add = f->mb->add || i > 0, .scratch = m->scratch,
        }, m->o.t, f->s);
    }
}

/* A LayerNorm of x [r, h]; dy [m, h] is there in this rank's own rows; d itself may be it. */
struct norm {
    int block;
    enum role gamma, beta;
    const void *x;
    const float *mean, *rstd;
};

/* d = LN'(dy), + d when `residual`. */
static void norm_rows(const struct way *f, const struct norm *n, const void *dy, bool residual)
{
    struct model *m = f->m;

    for (int i = 0; i < m->back.n; i++) {
        const struct part *p = &m->back.part[i];
        void *d = row_of(m, f->d, p->own, m->h);

        m->k->layernorm_back(&(struct kernel_layernorm_back){
            .m = p->n_own, .h = m->h, .dy = row_of(m, dy, dy == f->d ? p->own : p->number, m->h),
            .x = row_of(m, n->x, p->own, m->h),
            .gamma = weight_of(m, n->block, n->gamma), .mean = n->mean + p->own, .rstd = n->rstd + p->own,
            .add_dx = residual ? d : NULL, .dx = d, .dgamma = grad_of(m, n->block, n->gamma),
            .dbeta = grad_of(m, n->block, n->beta), .add = f->mb->add || i > 0, .scratch = m->scratch,
        }, m->o.t, f->s);
    }
}

static int gather_start(const struct way *f, const void *own, struct err *e)
{
    for (int i = 0; i < f->m->back.n; i++)
        if (tp_gather_start(f->m, &f->m->back, i, own, f->s, e) < 0)
            return -1;
    return 0;
}

static int gather_wait(const struct way *f, struct err *e)
{
    for (int i = 0; i < f->m->back.n; i++)
        if (tp_gather_wait(f->m, i, f->s, e) < 0)
            return -1;
    return 0;
}

/* All rows of the micro-batch, once they are gathered. */
static const void *all_rows(const struct model *m, const void *own) { return tp_rows(m, &m->back.part[0], own); }

/* Both at once: *all gets them. */
static int gather(const struct way *f, const void *own, const void **all, struct err *e)
{
    *all = all_rows(f->m, own);
    return gather_start(f, own, e) < 0 ? -1 : gather_wait(f, e);
}

/* f->d: in, the gradient of z = y + dropout(mlp + bias); out, that of y. */
static int mlp_back(const struct way *f, int i, const struct block_act *a, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->k;
    const struct norm norm = { i, ROLE_NORM2_W, ROLE_NORM2_B, a->y, a->mean2, a->rstd2 };
    const bool add = f->mb->add;
    const void *dm;
    void *own;

    dropout_rows(f, m->g->first_block + i, SITE_MLP_OUT, grad_of(m, i, ROLE_DOWN_B), &own);
    if (gather(f, own, &dm, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->m, .n = m->h, .k = m->f, .dy = dm, .x = a->g, .dw = grad_of(m, i, ROLE_DOWN_W), .add = add,
    }, m->o.t, f->s);
    k->linear_dx_gelu(&(struct kernel_linear_dx){
        .m = m->m, .n = m->h, .k = m->f, .dy = dm, .w = weight_of(m, i, ROLE_DOWN_W), .pre = a->pre, .dx = m->d_ff,
    }, m->o.t, f->s);
    if (gather_start(f, a->w, e) < 0)
        return -1;
    k->linear_dx(&(struct kernel_linear_dx){
        .m = m->m, .n = m->f, .k = m->h, .dy = m->d_ff, .w = weight_of(m, i, ROLE_UP_W), .dx = m->t1,
    }, m->o.t, f->s);
    if (tp_sums_start(m, &m->back, m->t1, f->s, e) < 0 || gather_wait(f, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->m, .n = m->f, .k = m->h, .dy = m->d_ff, .x = all_rows(m, a->w), .dw = grad_of(m, i, ROLE_UP_W),
        .dbias = grad_of(m, i, ROLE_UP_B), .add = add,
    }, m->o.t, f->s);
    if (tp_sums_wait(m, &m->back, f->s, e) < 0)
        return -1;
    norm_rows(f, &norm, m->t1, true);
    return 0;
}

/* f->d: in, the gradient of y = x + dropout(attention + bias); out, that of x. */
static int attention_back(const struct way *f, int i, const struct block_act *a, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->k;
    const struct norm norm = { i, ROLE_NORM1_W, ROLE_NORM1_B, a->x, a->mean1, a->rstd1 };
    const bool add = f->mb->add;
    const int size = dtype_size(m->o.t);
    const struct part all = { .samples = m->o.b };
    struct kernel_attention at = attention_of(m, f->mb, i, a, &all);
    struct kernel_attention_back back = {
        .d_o = m->d_o, .dq = m->d_qkv, .dk = (char *)m->d_qkv + m->hd * size,
        .dv = (char *)m->d_qkv + 2 * m->hd * size, .scratch = m->scratch,
    };
    const void *da;
    void *own;

    dropout_rows(f, m->g->first_block + i, SITE_ATTENTION_OUT, grad_of(m, i, ROLE_DENSE_B), &own);
    if (gather(f, own, &da, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->m, .n = m->h, .k = m->a, .dy = da, .x = a->o, .dw = grad_of(m, i, ROLE_DENSE_W), .add = add,
    }, m->o.t, f->s);
    k->linear_dx(&(struct kernel_linear_dx){
        .m = m->m, .n = m->h, .k = m->a, .dy = da, .w = weight_of(m, i, ROLE_DENSE_W), .dx = m->d_o,
    }, m->o.t, f->s);
    if (gather_start(f, a->u, e) < 0)
        return -1;
    k->attention_back(&at, &back, m->o.t, f->s);
    k->linear_dx(&(struct kernel_linear_dx){
        .m = m->m, .n = 3 * m->a, .k = m->h, .dy = m->d_qkv, .w = weight_of(m, i, ROLE_QKV_W), .dx = m->t1,
    }, m->o.t, f->s);
    if (tp_sums_start(m, &m->back, m->t1, f->s, e) < 0 || gather_wait(f, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->m, .n = 3 * m->a, .k = m->h, .dy = m->d_qkv, .x = all_rows(m, a->u), .dw = grad_of(m, i, ROLE_QKV_W),
        .dbias = grad_of(m, i, ROLE_QKV_B), .add = add,
    }, m->o.t, f->s);
    if (tp_sums_wait(m, &m->back, f->s, e) < 0)
        return -1;
    norm_rows(f, &norm, m->t1, true);
    return 0;
}

static int embedding_back(const struct way *f, const struct slot *sl, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->k;
    const struct stage_param *table = stage_get(m->g, -1, ROLE_POSITION);
    const int32_t *position = f->mb->positions ? f->mb->positions : m->position;
    const bool add = f->mb->add;
    const void *all;

    for (int i = 0; i < m->back.n; i++) {
        const struct part *p = &m->back.part[i];
        struct kernel_dropout drop = dropout_at(m, f->mb, -1, SITE_EMBEDDING, p->number);
        void *d = row_of(m, f->d, p->own, m->h);

        if (drop.p > 0)
            k->dropout_back(&(struct kernel_dropout_back){
                .m = p->n_own, .h = m->h, .dz = d, .drop = drop, .da = d, .scratch = m->scratch,
            }, m->o.t, f->s);
        if (table)
            k->position_back(&(struct kernel_position_back){
                .m = p->n_own, .h = m->h, .s = m->o.s, .n_pos = table->shape[0], .dx = d,
                .pos = position ? position + p->number : NULL, .dposition = m->st.grads + table->at,
                .add = add || i > 0,
            }, m->o.t, f->s);
    }
    if (sl->raw)
        k->layernorm_back(&(struct kernel_layernorm_back){
            .m = m->r, .h = m->h, .dy = f->d, .x = sl->raw, .gamma = weight_of(m, -1, ROLE_WORD_NORM_W),
            .mean = sl->raw_mean, .rstd = sl->raw_rstd, .dx = f->d, .dgamma = grad_of(m, -1, ROLE_WORD_NORM_W),
            .dbeta = grad_of(m, -1, ROLE_WORD_NORM_B), .add = add, .scratch = m->scratch,
        }, m->o.t, f->s);
    if (gather(f, f->d, &all, e) < 0)
        return -1;
    k->embed_back(&(struct kernel_embed_back){
        .m = m->m, .h = m->h, .first = m->g->tp * m->v, .rows = m->v, .id = f->mb->tokens, .dy = all,
        .dtable = grad_of(m, -1, ROLE_WORD), .add = add, .scratch = m->scratch,
    }, m->o.t, f->s);
    return 0;
}

/* The head's own gradient is what the stage before gets. */
static void lone_head_back(const struct way *f)
{
    struct model *m = f->m;

    for (int i = 0; i < m->back.n; i++) {
        const struct part *p = &m->back.part[i];

        m->k->dev->copy(row_of(m, f->d, p->own, m->h), row_of(m, m->d_fin, p->number, m->h),
                        (uint64_t)(p->n_own * m->h * dtype_size(m->o.t)), f->s);
    }
}

int model_backward(struct model *m, int slot, const struct micro_batch *mb, void *d, struct dev_stream *s,
                   struct err *e)
{
    struct slot *sl = &m->slot[slot];
    const struct way f = { m, mb, d, s };
    const struct norm final = { -1, ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B, sl->out, sl->fin_mean, sl->fin_rstd };

    if (m->g->norm)
        norm_rows(&f, &final, m->g->last ? m->d_fin : d, false);
    else if (m->g->last)
        lone_head_back(&f);
    for (int i = m->g->n_blocks - 1; i >= 0; i--) {
        const struct block_act *a = &sl->block[i];

        if (recompute(&f, i, a, e) < 0 || mlp_back(&f, i, a, e) < 0 || attention_back(&f, i, a, e) < 0)
            return -1;
        if (mb->last && (tp_sum_copies(m, i, s, e) < 0 || grads_done(m, m->g->first_block + i, s, e) < 0))
            return -1;
    }
    if (m->g->first && embedding_back(&f, sl, e) < 0)
        return -1;
    return mb->last ? tp_sum_copies(m, -1, s, e) : 0;
}
