/*
 * model_backward.c - backward pass of blocks and embedding, and recomputation
 *
 * For each product, the gradient of its input is computed before the gradient of its weights. The former is summed over
 * tensor ranks, and this sum is communicated while the latter is computed.
 */
#include "tools/train/network/model_impl.h"

/* The state of a backward pass. */
struct way {
    struct model *m;
    const struct micro_batch *mb;
    void *grad;                 /* [own_rows, hidden], the gradient of the residual stream */
    struct dev_stream *s;
};

/*
 * Recompute the data of block i that was not stored. With RECOMPUTE_FULL this is everything, beginning with LN1;
 * otherwise it is only the outputs that are cheap to compute.
 */
static int recompute(const struct way *f, int i, const struct model_block *a, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->kernels;

    if (m->opts.recompute == RECOMPUTE_NONE)
        return 0;
    if (m->opts.recompute == RECOMPUTE_FULL)
        return model_recompute_block(m, i, a, f->mb, f->s, e);
    k->layernorm(&(struct kernel_layernorm){
        .m = m->own_rows, .h = m->hidden, .x = a->input, .gamma = model_param_weights(m, i, ROLE_NORM1_W),
        .beta = model_param_weights(m, i, ROLE_NORM1_B), .eps = m->opts.eps, .y = a->norm1, .mean = a->norm1_mean,
        .rstd = a->norm1_rstd,
    }, m->opts.t, f->s);
    k->layernorm(&(struct kernel_layernorm){
        .m = m->own_rows, .h = m->hidden, .x = a->middle, .gamma = model_param_weights(m, i, ROLE_NORM2_W),
        .beta = model_param_weights(m, i, ROLE_NORM2_B), .eps = m->opts.eps, .y = a->norm2, .mean = a->norm2_mean,
        .rstd = a->norm2_rstd,
    }, m->opts.t, f->s);
    k->gelu(a->gelu_out, a->gelu_in, m->rows * m->ffn, m->opts.t, f->s);
    return 0;
}

/*
 * Compute the gradient of the input of a dropout, [own_rows, hidden], and set *da to its address. If there is no
 * dropout, *da is f->grad itself. `where` is the site of the dropout. dbias may be NULL.
 */
static void dropout_rows(const struct way *f, int block, enum model_site where, void *dbias, void **da)
{
    struct model *m = f->m;

    *da = model_dropout(m, f->mb, block, where, 0).p > 0 ? m->work : f->grad;
    for (int i = 0; i < m->backward.n; i++) {
        const struct model_part *p = &m->backward.part[i];
        struct kernel_dropout drop = model_dropout(m, f->mb, block, where, p->own_row);

        m->kernels->dropout_back(&(struct kernel_dropout_back){
            .m = p->own_rows, .h = m->hidden, .dz = model_row_address(m, f->grad, p->own_at, m->hidden), .drop = drop,
            .da = model_row_address(m, *da, p->own_at, m->hidden), .dbias = dbias, .add = f->mb->add || i > 0,
            .grad_t = m->opts.grad_t, .scratch = m->scratch,
        }, m->opts.t, f->s);
    }
}

/*
 * A LayerNorm in the backward pass. Its input is x [own_rows, hidden]. The gradient dy of its output is either [rows,
 * hidden], with valid values only in the rows that this rank owns, or f->grad.
 */
struct norm {
    int block;
    enum role gamma, beta;
    const void *x;
    const float *mean, *rstd;
};

/*
 * Compute the gradient of the LayerNorm's input from dy, the gradient of its output, and store it in f->grad. If
 * `residual` is set, it is added instead.
 */
static void norm_rows(const struct way *f, const struct norm *n, const void *dy, bool residual)
{
    struct model *m = f->m;

    for (int i = 0; i < m->backward.n; i++) {
        const struct model_part *p = &m->backward.part[i];
        void *d = model_row_address(m, f->grad, p->own_at, m->hidden);

        m->kernels->layernorm_back(
            &(struct kernel_layernorm_back){
                .m = p->own_rows,
                .h = m->hidden,
                .dy = model_row_address(m, dy, dy == f->grad ? p->own_at : p->own_row, m->hidden),
                .x = model_row_address(m, n->x, p->own_at, m->hidden),
                .gamma = model_param_weights(m, n->block, n->gamma),
                .mean = n->mean + p->own_at,
                .rstd = n->rstd + p->own_at,
                .add_dx = residual ? d : NULL,
                .dx = d,
                .dgamma = grad_of(m, n->block, n->gamma),
                .dbeta = grad_of(m, n->block, n->beta),
                .add = f->mb->add || i > 0,
                .grad_t = m->opts.grad_t,
                .scratch = m->scratch,
            },
            m->opts.t, f->s);
    }
}

static int gather_start(const struct way *f, const void *own, struct err *e)
{
    for (int i = 0; i < f->m->backward.n; i++)
        if (model_gather_start(f->m, &f->m->backward, i, own, f->s, e) < 0)
            return -1;
    return 0;
}

static int gather_wait(const struct way *f, struct err *e)
{
    for (int i = 0; i < f->m->backward.n; i++)
        if (model_gather_wait(f->m, i, f->s, e) < 0)
            return -1;
    return 0;
}

/* Returns the address of all rows of the micro-batch. The rows are valid once they have been gathered. */
static const void *all_rows(const struct model *m, const void *own)
{
    return gathered_rows(m, &m->backward.part[0], own);
}

/*
 * Gather the rows `own` of all tensor ranks, and wait until all have arrived. *all is set to the address of the
 * gathered rows.
 */
static int gather_all_rows(const struct way *f, const void *own, const void **all, struct err *e)
{
    *all = all_rows(f->m, own);
    return gather_start(f, own, e) < 0 ? -1 : gather_wait(f, e);
}

/*
 * Run the backward pass of the MLP of block i, which computes z = y + dropout(mlp + bias). f->grad is the gradient of z
 * on input, and the gradient of y on return.
 */
static int mlp_back(const struct way *f, int i, const struct model_block *a, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->kernels;
    const struct norm norm = { i, ROLE_NORM2_W, ROLE_NORM2_B, a->middle, a->norm2_mean, a->norm2_rstd };
    const bool add = f->mb->add;
    const void *dm;
    void *own;

    dropout_rows(f, m->stage->first_block + i, SITE_MLP_OUT, grad_of(m, i, ROLE_DOWN_B), &own);
    if (gather_all_rows(f, own, &dm, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->rows, .n = m->hidden, .k = m->ffn, .dy = dm, .x = a->gelu_out, .dw = grad_of(m, i, ROLE_DOWN_W),
        .add = add, .grad_t = m->opts.grad_t,
    }, m->opts.t, f->s);
    k->linear_dx_gelu(
        &(struct kernel_linear_dx){
            .m = m->rows,
            .n = m->hidden,
            .k = m->ffn,
            .dy = dm,
            .w = model_param_weights(m, i, ROLE_DOWN_W),
            .pre = a->gelu_in,
            .dx = m->d_gelu_in,
        },
        m->opts.t, f->s);
    if (gather_start(f, a->norm2, e) < 0)
        return -1;
    k->linear_dx(
        &(struct kernel_linear_dx){
            .m = m->rows,
            .n = m->ffn,
            .k = m->hidden,
            .dy = m->d_gelu_in,
            .w = model_param_weights(m, i, ROLE_UP_W),
            .dx = m->work,
        },
        m->opts.t, f->s);
    if (model_sums_start(m, &m->backward, m->work, f->s, e) < 0 || gather_wait(f, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->rows, .n = m->ffn, .k = m->hidden, .dy = m->d_gelu_in, .x = all_rows(m, a->norm2),
        .dw = grad_of(m, i, ROLE_UP_W), .dbias = grad_of(m, i, ROLE_UP_B), .add = add, .grad_t = m->opts.grad_t,
    }, m->opts.t, f->s);
    if (model_sums_wait(m, &m->backward, f->s, e) < 0)
        return -1;
    norm_rows(f, &norm, m->work, true);
    return 0;
}

/*
 * Run the backward pass of the attention of block i, which computes y = x + dropout(attention + bias). f->grad is the
 * gradient of y on input, and the gradient of x on return.
 */
static int run_attention_backward(const struct way *f, int i, const struct model_block *a, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->kernels;
    const struct norm norm = { i, ROLE_NORM1_W, ROLE_NORM1_B, a->input, a->norm1_mean, a->norm1_rstd };
    const bool add = f->mb->add;
    const int size = dtype_size(m->opts.t);
    const struct model_part all = { .samples = m->opts.b };
    struct kernel_attention at = model_attention(m, f->mb, i, a, &all);
    struct kernel_attention_back back = {
        .d_o = m->d_attended, .dq = m->d_qkv, .dk = (char *)m->d_qkv + m->head_dim * size,
        .dv = (char *)m->d_qkv + 2 * m->head_dim * size, .scratch = m->scratch,
    };
    const void *da;
    void *own;

    dropout_rows(f, m->stage->first_block + i, SITE_ATTENTION_OUT, grad_of(m, i, ROLE_DENSE_B), &own);
    if (gather_all_rows(f, own, &da, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->rows, .n = m->hidden, .k = m->heads_width, .dy = da, .x = a->attended,
        .dw = grad_of(m, i, ROLE_DENSE_W), .add = add, .grad_t = m->opts.grad_t,
    }, m->opts.t, f->s);
    k->linear_dx(&(struct kernel_linear_dx){
        .m = m->rows, .n = m->hidden, .k = m->heads_width, .dy = da, .w = model_param_weights(m, i, ROLE_DENSE_W),
        .dx = m->d_attended,
    }, m->opts.t, f->s);
    if (gather_start(f, a->norm1, e) < 0)
        return -1;
    k->attention_back(&at, &back, m->opts.t, f->s);
    k->linear_dx(
        &(struct kernel_linear_dx){
            .m = m->rows,
            .n = 3 * m->heads_width,
            .k = m->hidden,
            .dy = m->d_qkv,
            .w = model_param_weights(m, i, ROLE_QKV_W),
            .dx = m->work,
        },
        m->opts.t, f->s);
    if (model_sums_start(m, &m->backward, m->work, f->s, e) < 0 || gather_wait(f, e) < 0)
        return -1;
    k->linear_dw(&(struct kernel_linear_dw){
        .m = m->rows, .n = 3 * m->heads_width, .k = m->hidden, .dy = m->d_qkv, .x = all_rows(m, a->norm1),
        .dw = grad_of(m, i, ROLE_QKV_W), .dbias = grad_of(m, i, ROLE_QKV_B), .add = add, .grad_t = m->opts.grad_t,
    }, m->opts.t, f->s);
    if (model_sums_wait(m, &m->backward, f->s, e) < 0)
        return -1;
    norm_rows(f, &norm, m->work, true);
    return 0;
}

static int embedding_back(const struct way *f, const struct model_slot *sl, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->kernels;
    const struct stage_param *table = stage_get(m->stage, -1, ROLE_POSITION);
    const int32_t *position = f->mb->positions ? f->mb->positions : m->positions;
    const bool add = f->mb->add;
    const void *all;

    for (int i = 0; i < m->backward.n; i++) {
        const struct model_part *p = &m->backward.part[i];
        struct kernel_dropout drop = model_dropout(m, f->mb, -1, SITE_EMBEDDING, p->own_row);
        void *d = model_row_address(m, f->grad, p->own_at, m->hidden);

        if (drop.p > 0)
            k->dropout_back(&(struct kernel_dropout_back){
                .m = p->own_rows, .h = m->hidden, .dz = d, .drop = drop, .da = d, .scratch = m->scratch,
            }, m->opts.t, f->s);
        if (table)
            k->position_back(&(struct kernel_position_back){
                .m = p->own_rows, .h = m->hidden, .s = m->opts.s, .n_pos = table->shape[0], .dx = d,
                .pos = position ? position + p->own_row : NULL, .dposition = grad_at(m, table->at),
                .add = add || i > 0, .grad_t = m->opts.grad_t,
            }, m->opts.t, f->s);
    }
    if (sl->embedded)
        k->layernorm_back(
            &(struct kernel_layernorm_back){
                .m = m->own_rows,
                .h = m->hidden,
                .dy = f->grad,
                .x = sl->embedded,
                .gamma = model_param_weights(m, -1, ROLE_WORD_NORM_W),
                .mean = sl->embed_mean,
                .rstd = sl->embed_rstd,
                .dx = f->grad,
                .dgamma = grad_of(m, -1, ROLE_WORD_NORM_W),
                .dbeta = grad_of(m, -1, ROLE_WORD_NORM_B),
                .add = add,
                .grad_t = m->opts.grad_t,
                .scratch = m->scratch,
            },
            m->opts.t, f->s);
    if (gather_all_rows(f, f->grad, &all, e) < 0)
        return -1;
    k->embed_back(&(struct kernel_embed_back){
        .m = m->rows, .h = m->hidden, .first = m->stage->tp * m->vocab, .rows = m->vocab, .id = f->mb->tokens,
        .dy = all, .dtable = grad_of(m, -1, ROLE_WORD), .add = add,
        .grad_t = m->opts.grad_t, .scratch = m->scratch,
    }, m->opts.t, f->s);
    return 0;
}

/*
 * Run the backward pass of a stage without blocks. The gradient that the head has computed is passed to the previous
 * stage.
 */
static void lone_head_back(const struct way *f)
{
    struct model *m = f->m;

    for (int i = 0; i < m->backward.n; i++) {
        const struct model_part *p = &m->backward.part[i];

        m->kernels->dev->copy(model_row_address(m, f->grad, p->own_at, m->hidden),
                              model_row_address(m, m->d_final_norm, p->own_row, m->hidden),
                              (uint64_t)(p->own_rows * m->hidden * dtype_size(m->opts.t)), f->s);
    }
}

int model_backward(struct model *m, int slot, const struct micro_batch *mb, void *d, struct dev_stream *s,
                   struct err *e)
{
    struct model_slot *sl = &m->slot[slot];
    const struct way f = { m, mb, d, s };
    const struct norm final = { -1, ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B, sl->output, sl->final_mean, sl->final_rstd };

    if (m->stage->norm)
        norm_rows(&f, &final, m->stage->last ? m->d_final_norm : d, false);
    else if (m->stage->last)
        lone_head_back(&f);
    for (int i = m->stage->n_blocks - 1; i >= 0; i--) {
        const struct model_block *a = &sl->block[i];

        if (recompute(&f, i, a, e) < 0 || mlp_back(&f, i, a, e) < 0 || run_attention_backward(&f, i, a, e) < 0)
            return -1;
        if (mb->last && (model_sum_copies(m, i, s, e) < 0 || grads_done(m, m->stage->first_block + i, s, e) < 0))
            return -1;
    }
    if (m->stage->first && embedding_back(&f, sl, e) < 0)
        return -1;
    return mb->last ? model_sum_copies(m, -1, s, e) : 0;
}
