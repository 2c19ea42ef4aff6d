/* model_forward.c - embedding and transformer blocks, forward */
#include <math.h>

#include "libcommon/base/hash.h"
#include "tools/train/model_impl.h"

#define EMBED_NORM_EPS 1e-5f            /* fixed: --layernorm-epsilon is not for this one (spec 1.1) */

struct kernel_dropout dropout_at(const struct model *m, const struct micro_batch *mb, int block, enum site where,
                                 int64_t row)
{
    struct kernel_dropout d = { .p = where == SITE_ATTENTION ? m->o.attention_dropout : m->o.hidden_dropout };
    uint64_t key;

    if (!mb->training)
        d.p = 0;
    key = hash_mix(hash_mix(m->o.seed) ^ (uint64_t)mb->step);
    key = hash_mix(key ^ (uint64_t)((int64_t)(block + 1) * SITE_N + where));
    d.key[0] = (uint32_t)key;
    d.key[1] = (uint32_t)(key >> 32);
    d.row0 = mb->sample0 * m->o.s + row;
    return d;
}

struct kernel_attention attention_of(const struct model *m, const struct micro_batch *mb, int block,
                                     const struct block_act *a, const struct part *p)
{
    char *q = row_of(m, a->qkv, p->row, 3 * m->a);
    const int size = dtype_size(m->o.t);
    struct kernel_attention at = {
        .b = p->samples, .s = m->o.s, .heads = m->heads, .hd = m->hd,
        .head0 = m->g->tp * m->heads,
        .q = q, .k = q + m->hd * size, .v = q + 2 * m->hd * size,
        .token_stride = 3 * m->a, .head_stride = 3 * m->hd,
        .o = row_of(m, a->o, p->row, m->a), .lse = a->lse + p->row * m->heads, .scale = (float)(1 / sqrt(m->hd)),
        .bias = m->bias,
        .round_unit = m->g->first_block + block > 1 ? (float)(m->g->first_block + block) : 1,
        .drop = dropout_at(m, mb, m->g->first_block + block, SITE_ATTENTION, p->row),
    };

    return at;
}

/* ---- blocks ---- */

/*
 * A pass over blocks. A phase is half a block: attention (even numbers) or MLP (odd ones). Of each part,
 * prepare() makes the phase's input: the sum that ended the phase before, residual and LayerNorm; front() goes
 * on to the input of the last product, and back() is that product, whose sum then travels.
 */
struct pass {
    struct model *m;
    struct slot *sl;
    const struct micro_batch *mb;
    struct dev_stream *s;
};

/* What follows block i: residual and the next LayerNorm in one pass, into the next block or behind the stage. */
static void after_block(struct pass *f, int i, const struct part *p)
{
    struct model *m = f->m;
    struct slot *sl = f->sl;
    struct block_act *a = &sl->block[i], *next = i + 1 == m->g->n_blocks ? NULL : a + 1;
    struct kernel_layernorm norm = { .m = p->n_own, .h = m->h, .eps = m->o.eps };

    if (next) {
        norm.gamma = weight_of(m, i + 1, ROLE_NORM1_W);
        norm.beta = weight_of(m, i + 1, ROLE_NORM1_B);
        norm.y = row_of(m, next->u, p->own, m->h);
        norm.mean = next->mean1 + p->own;
        norm.rstd = next->rstd1 + p->own;
    } else if (m->g->norm) {
        norm.gamma = weight_of(m, -1, ROLE_FINAL_NORM_W);
        norm.beta = weight_of(m, -1, ROLE_FINAL_NORM_B);
        norm.y = m->g->last ? row_of(m, m->fin, p->number, m->h) : row_of(m, sl->normed, p->own, m->h);
        norm.mean = sl->fin_mean + p->own;
        norm.rstd = sl->fin_rstd + p->own;
    }
    m->k->residual_norm(&(struct kernel_residual_norm){
        .a = row_of(m, m->t1, p->number, m->h), .bias = weight_of(m, i, ROLE_DOWN_B),
        .residual = row_of(m, a->y, p->own, m->h),
        .drop = dropout_at(m, f->mb, m->g->first_block + i, SITE_MLP_OUT, p->number),
        .z = row_of(m, next ? next->x : sl->out, p->own, m->h), .norm = norm,
    }, m->o.t, f->s);
}

static void after_attention(struct pass *f, int i, const struct part *p)
{
    struct model *m = f->m;
    struct block_act *a = &f->sl->block[i];

    m->k->residual_norm(&(struct kernel_residual_norm){
        .a = row_of(m, m->t1, p->number, m->h), .bias = weight_of(m, i, ROLE_DENSE_B),
        .residual = row_of(m, a->x, p->own, m->h),
        .drop = dropout_at(m, f->mb, m->g->first_block + i, SITE_ATTENTION_OUT, p->number),
        .z = row_of(m, a->y, p->own, m->h),
        .norm = {
            .m = p->n_own, .h = m->h, .gamma = weight_of(m, i, ROLE_NORM2_W), .beta = weight_of(m, i, ROLE_NORM2_B),
            .eps = m->o.eps, .y = row_of(m, a->w, p->own, m->h), .mean = a->mean2 + p->own, .rstd = a->rstd2 + p->own,
        },
    }, m->o.t, f->s);
}

/* The first LayerNorm of a block that no other comes before. */
static void norm1(struct pass *f, int i, const struct part *p)
{
    struct model *m = f->m;
    struct block_act *a = &f->sl->block[i];

    m->k->layernorm(&(struct kernel_layernorm){
        .m = p->n_own, .h = m->h, .x = row_of(m, a->x, p->own, m->h), .gamma = weight_of(m, i, ROLE_NORM1_W),
        .beta = weight_of(m, i, ROLE_NORM1_B), .eps = m->o.eps, .y = row_of(m, a->u, p->own, m->h),
        .mean = a->mean1 + p->own, .rstd = a->rstd1 + p->own,
    }, m->o.t, f->s);
}

static int prepare(struct pass *f, int phase, int first, int part, struct err *e)
{
    struct model *m = f->m;
    const struct part *p = &m->there.part[part];
    const int i = phase / 2;

    if (phase > first && tp_sum_wait(m, part, f->s, e) < 0)
        return -1;
    /* The LayerNorm behind a block is the next one's, or the final one. */
    if (phase % 2 == 0 && weights_ready(m, m->g->first_block + i, f->s, e) < 0)
        return -1;
    if (phase == first)
        norm1(f, i, p);
    else if (phase % 2)
        after_attention(f, i, p);
    else
        after_block(f, i - 1, p);
    if (i == m->g->n_blocks)
        return 0;
    return tp_gather_start(m, &m->there, part, phase % 2 ? f->sl->block[i].w : f->sl->block[i].u, f->s, e);
}

static int front(struct pass *f, int phase, int part, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->k;
    const struct part *p = &m->there.part[part];
    const int i = phase / 2;
    struct block_act *a = &f->sl->block[i];
    struct kernel_attention at = attention_of(m, f->mb, i, a, p);
    const void *rows = tp_rows(m, p, phase % 2 ? a->w : a->u);

    if (tp_gather_wait(m, part, f->s, e) < 0)
        return -1;
    if (phase % 2) {
        k->linear_gelu(&(struct kernel_linear){
            .m = p->rows, .n = m->f, .k = m->h, .x = rows, .w = weight_of(m, i, ROLE_UP_W),
            .bias = weight_of(m, i, ROLE_UP_B), .y = row_of(m, a->g, p->row, m->f),
            .pre = row_of(m, a->pre, p->row, m->f),
        }, m->o.t, f->s);
    } else {
        k->linear(&(struct kernel_linear){
            .m = p->rows, .n = 3 * m->a, .k = m->h, .x = rows, .w = weight_of(m, i, ROLE_QKV_W),
            .bias = weight_of(m, i, ROLE_QKV_B), .y = row_of(m, a->qkv, p->row, 3 * m->a),
        }, m->o.t, f->s);
        k->attention(&at, m->o.t, f->s);
    }
    return 0;
}

static int back(struct pass *f, int phase, int part, struct err *e)
{
    struct model *m = f->m;
    const struct part *p = &m->there.part[part];
    const int i = phase / 2;
    struct block_act *a = &f->sl->block[i];
    void *y = row_of(m, m->t1, p->row, m->h);

    if (phase % 2)
        m->k->linear(&(struct kernel_linear){
            .m = p->rows, .n = m->h, .k = m->f, .x = row_of(m, a->g, p->row, m->f), .w = weight_of(m, i, ROLE_DOWN_W),
            .y = y,
        }, m->o.t, f->s);
    else
        m->k->linear(&(struct kernel_linear){
            .m = p->rows, .n = m->h, .k = m->a, .x = row_of(m, a->o, p->row, m->a), .w = weight_of(m, i, ROLE_DENSE_W),
            .y = y,
        }, m->o.t, f->s);
    return tp_sum_start(m, &m->there, part, m->t1, f->s, e);
}

/*
 * Phases first .. last of all parts, and the input of what follows the last. A part's sum has the time of the other
 * part's front() to travel, its gather the time of the other's back(): the next part is prepared between the two.
 */
static int phases(struct pass *f, int first, int last, struct err *e)
{
    const int n = f->m->there.n;

    if (prepare(f, first, first, 0, e) < 0)
        return -1;
    for (int at = first * n; at < (last + 1) * n; at++) {
        const int next = at + 1;

        if (front(f, at / n, at % n, e) < 0 || (n > 1 && prepare(f, next / n, first, next % n, e) < 0))
            return -1;
        if (back(f, at / n, at % n, e) < 0 || (n == 1 && prepare(f, next, first, 0, e) < 0))
            return -1;
    }
    return n > 1 ? prepare(f, last + 1, first, 1, e) : 0;
}

int block_again(struct model *m, int block, const struct block_act *a, const struct micro_batch *mb,
                struct dev_stream *s, struct err *e)
{
    struct slot sl = { .block = (struct block_act *)a - block };
    struct pass f = { m, &sl, mb, s };

    if (phases(&f, 2 * block, 2 * block, e) < 0)
        return -1;
    for (int part = 0; part < m->there.n; part++)
        if (front(&f, 2 * block + 1, part, e) < 0)
            return -1;
    return 0;
}

/* ---- embedding ---- */

/* Word rows summed over tensor ranks, into own rows x [r, h]. */
static int look_up(struct model *m, void *x, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    const struct cut *c = &m->back;
    void *all = m->o.sequence_parallel ? m->t1 : x;

    m->k->embed(&(struct kernel_embed){
        .m = m->m, .h = m->h, .first = m->g->tp * m->v, .rows = m->v, .id = mb->tokens,
        .table = weight_of(m, -1, ROLE_WORD), .y = all,
    }, m->o.t, s);
    if (tp_sums_start(m, c, all, s, e) < 0 || tp_sums_wait(m, c, s, e) < 0)
        return -1;
    for (int i = 0; i < c->n && all != x; i++)
        m->k->dev->copy(row_of(m, x, c->part[i].own, m->h), row_of(m, all, c->part[i].number, m->h),
                        (uint64_t)(c->part[i].n_own * m->h * dtype_size(m->o.t)), s);
    return 0;
}

/* x of the first block: word rows, LayerNorm, positions, dropout. */
static int embedding(struct model *m, struct slot *sl, const struct micro_batch *mb, struct dev_stream *s,
                     struct err *e)
{
    const void *table = stage_get(m->g, -1, ROLE_POSITION) ? weight_of(m, -1, ROLE_POSITION) : NULL;
    const int32_t *position = mb->positions ? mb->positions : m->position;
    void *x = sl->block[0].x;

    if (look_up(m, sl->raw ? sl->raw : x, mb, s, e) < 0)
        return -1;
    if (sl->raw)
        m->k->layernorm(&(struct kernel_layernorm){
            .m = m->r, .h = m->h, .x = sl->raw, .gamma = weight_of(m, -1, ROLE_WORD_NORM_W),
            .beta = weight_of(m, -1, ROLE_WORD_NORM_B), .eps = EMBED_NORM_EPS, .y = x, .mean = sl->raw_mean,
            .rstd = sl->raw_rstd,
        }, m->o.t, s);
    for (int i = 0; i < m->back.n; i++) {
        const struct part *p = &m->back.part[i];
        struct kernel_dropout drop = dropout_at(m, mb, -1, SITE_EMBEDDING, p->number);
        void *own = row_of(m, x, p->own, m->h);

        if (table || drop.p > 0)
            m->k->embed_finish(&(struct kernel_embed_finish){
                .m = p->n_own, .h = m->h, .s = m->o.s, .x = own, .position = table,
                .pos = position ? position + p->number : NULL, .drop = drop, .y = own,
            }, m->o.t, s);
    }
    return 0;
}

/* A last stage without blocks: what came in has gone through the final LayerNorm. */
static int lone_head(struct model *m, const struct slot *sl, struct dev_stream *s, struct err *e)
{
    if (weights_ready(m, (int)m->g->model.n_layers, s, e) < 0)
        return -1;
    for (int i = 0; i < m->there.n; i++) {
        const struct part *p = &m->there.part[i];

        m->k->dev->copy(row_of(m, m->fin, p->number, m->h), row_of(m, sl->out, p->own, m->h),
                        (uint64_t)(p->n_own * m->h * dtype_size(m->o.t)), s);
    }
    return 0;
}

int model_forward(struct model *m, int slot, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    struct slot *sl = &m->slot[slot];
    struct pass f = { m, sl, mb, s };

    if (m->g->first && (weights_ready(m, -1, s, e) < 0 || embedding(m, sl, mb, s, e) < 0))
        return -1;
    if (m->g->n_blocks ? phases(&f, 0, 2 * m->g->n_blocks - 1, e) < 0 : m->g->last && lone_head(m, sl, s, e) < 0)
        return -1;
    return m->g->last ? head(m, mb, s, e) : 0;
}
