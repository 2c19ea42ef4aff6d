/*
 * model.c - forward and backward of one rank's stage
 *
 * Letters as in docs/training.md: m rows, h hidden, f = ffn / tp, a = h / tp (this rank's heads).
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/model_impl.h"

/* ---- memory ---- */

/* Next `bytes` of the pool; before there is one, only counts. */
static void *take(struct model *m, int64_t bytes)
{
    uint64_t at = m->used;

    m->used += align_up((uint64_t)bytes, 256);
    return m->pool ? (char *)m->pool + at : NULL;
}

static void *take_t(struct model *m, int64_t n) { return take(m, n * dtype_size(m->o.t)); }
static float *take_f(struct model *m, int64_t n) { return take(m, n * (int64_t)sizeof(float)); }

/* What is recomputed has one place for all slots and blocks: `shared`. NULL: everything is the block's own. */
static void place_block(struct model *m, struct block_act *a, const struct block_act *shared)
{
    const bool full = m->o.recompute == RECOMPUTE_FULL;

    *a = shared ? *shared : (struct block_act){0};
    a->x = take_t(m, m->r * m->h);
    if (shared && full)
        return;
    a->mean1 = take_f(m, m->r);
    a->rstd1 = take_f(m, m->r);
    a->mean2 = take_f(m, m->r);
    a->rstd2 = take_f(m, m->r);
    a->qkv = take_t(m, m->m * 3 * m->a);
    a->o = take_t(m, m->m * m->a);
    a->lse = take_f(m, m->m * m->heads);
    a->y = take_t(m, m->r * m->h);
    a->pre = take_t(m, m->m * m->f);
    if (shared)
        return;
    a->u = take_t(m, m->r * m->h);
    a->w = take_t(m, m->r * m->h);
    a->g = take_t(m, m->m * m->f);
}

static void place_head(struct model *m)
{
    int64_t c = m->head_rows;

    m->logits = take_t(m, c * m->v);
    m->stat = take_f(m, c * 3);
    m->stats = m->g->topo.tp > 1 ? take_f(m, c * 3 * m->g->topo.tp) : NULL;
    m->lse = take_f(m, c);
    m->loss_rows = take_f(m, m->m);
    m->fin = take_t(m, m->m * m->h);
    m->d_fin = take_t(m, m->m * m->h);
    m->loss = take(m, 2 * (int64_t)sizeof(double));
    if (m->g->first)
        m->head_grad = take_f(m, m->v * m->h);
}

/* The layout of all memory; run once to count and once to place. */
static void place(struct model *m)
{
    const struct stage *g = m->g;
    struct block_act shared;

    m->used = 0;
    if (m->o.recompute != RECOMPUTE_NONE)
        place_block(m, &shared, NULL);
    for (int k = 0; k < m->o.n_slots; k++) {
        struct slot *s = &m->slot[k];

        for (int i = 0; i < g->n_blocks; i++)
            place_block(m, &s->block[i], m->o.recompute == RECOMPUTE_NONE ? NULL : &shared);
        s->out = take_t(m, m->r * m->h);
        /* A stage without blocks hands on what it has. */
        if (g->n_blocks == 0)
            s->block[0].x = s->out;
        if (g->norm && !g->last)
            s->normed = take_t(m, m->r * m->h);
        if (g->first && g->model.embed_layernorm) {
            s->raw = take_t(m, m->r * m->h);
            s->raw_mean = take_f(m, m->r);
            s->raw_rstd = take_f(m, m->r);
        }
        if (g->norm) {
            s->fin_mean = take_f(m, m->r);
            s->fin_rstd = take_f(m, m->r);
        }
    }
    m->t1 = take_t(m, m->m * m->h);
    if (m->o.sequence_parallel) {
        m->full = take_t(m, m->m * m->h);
        m->position = take(m, m->m * (int64_t)sizeof(int32_t));
    }
    m->d_ff = take_t(m, m->m * m->f);
    m->d_qkv = take_t(m, m->m * 3 * m->a);
    m->d_o = take_t(m, m->m * m->a);
    m->scratch = take(m, (int64_t)m->scratch_bytes);
    if (m->bias_bytes)
        m->bias = take(m, (int64_t)m->bias_bytes);
    if (g->last)
        place_head(m);
}

/*
 * Rows of a chunk of logits: the largest power of two that fits into 2.2 GB on a GPU. Each chunk
 * reads and writes the whole gradient of the head once more: with 512 rows and V = 250,880 that
 * took a tenth of a step of BLOOM-1b7, with 4096 a hundredth. A CPU's caches want less.
 */
static int64_t default_head_rows(const struct model *m)
{
    const int64_t most = dev_on_host(m->k->dev) ? 64 << 20 : (int64_t)2200 << 20;
    int64_t rows = 64;

    while (rows * 2 * m->v * dtype_size(m->o.t) <= most)
        rows *= 2;
    return rows;
}

static void set_sizes(struct model *m)
{
    const struct model_config *c = &m->g->model;
    const int tp = m->g->topo.tp;
    struct kernel_attention at;
    uint64_t need;

    m->m = (int64_t)m->o.b * m->o.s;
    m->h = c->hidden;
    m->a = c->hidden / tp;
    m->f = c->ffn_hidden / tp;
    m->v = c->vocab / tp;
    m->heads = (int)(c->n_heads / tp);
    m->hd = (int)(c->hidden / c->n_heads);
    cut_rows(m);
    m->head_rows = m->o.head_rows > 0 ? m->o.head_rows : default_head_rows(m);
    if (m->head_rows > m->m)
        m->head_rows = m->m;
    m->bias_bytes = strcmp(c->position, "alibi") ? 0 : (uint64_t)m->heads * m->o.s * sizeof(float);

    memset(&at, 0, sizeof at);
    at.b = m->o.b;
    at.s = m->o.s;
    at.heads = m->heads;
    at.hd = m->hd;
    need = m->k->attention_scratch(&at);
    need = max_u64(need, m->k->layernorm_scratch(m->m, m->h));
    if (m->g->first)
        need = max_u64(need, m->k->embed_scratch(m->m, m->v));
    m->scratch_bytes = need;
}

/*
 * ALiBi (spec 1.5): head i of n adds slope_i * j to the scores of key j, rounded to T as the
 * reference's bias tensor is. The rounding is visible: 1877.1 becomes 1880 in bf16.
 */
static void fill_bias(struct model *m)
{
    const int n = (int)m->g->model.n_heads, head0 = m->g->tp * m->heads;
    float *bias = xmalloc(m->bias_bytes);

    for (int i = 0; i < m->heads; i++) {
        float slope = (float)alibi_slope(head0 + i, n);

        for (int j = 0; j < m->o.s; j++) {
            float x = slope * (float)j;

            bias[(int64_t)i * m->o.s + j] = m->o.t == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
        }
    }
    m->k->dev->copy(m->bias, bias, m->bias_bytes, NULL);
    m->k->dev->stream_sync(NULL);
    free(bias);
}

/* Own rows begin anywhere in a sample, so their positions are told. */
static void fill_positions(struct model *m)
{
    int32_t *position = xmalloc((size_t)m->m * sizeof *position);

    for (int64_t i = 0; i < m->m; i++)
        position[i] = (int32_t)(i % m->o.s);
    m->k->dev->copy(m->position, position, (uint64_t)m->m * sizeof *position, NULL);
    m->k->dev->stream_sync(NULL);
    free(position);
}

double alibi_slope(int head, int n_heads)
{
    int c = 1;

    while (c * 2 <= n_heads)
        c *= 2;
    return head < c ? exp2(-8.0 * (head + 1) / c) : exp2(-8.0 * (2 * (head - c) + 1) / (2 * c));
}

static struct model *prepare(const struct stage *g, const struct kernels *k, const struct model_opts *o)
{
    struct model *m = xcalloc(1, sizeof *m);

    m->g = g;
    m->k = k;
    m->o = *o;
    m->slot = xcalloc((size_t)o->n_slots, sizeof *m->slot);
    for (int i = 0; i < o->n_slots; i++)
        m->slot[i].block = xcalloc((size_t)g->n_blocks + 1, sizeof *m->slot[i].block);
    set_sizes(m);
    place(m);
    return m;
}

int64_t model_boundary(const struct stage *g, const struct model_opts *o)
{
    return (int64_t)o->b * o->s / (o->sequence_parallel ? g->topo.tp : 1) * g->model.hidden;
}

/* Where tensor ranks' parts of a sum arrive (comm_share): room for all of one. */
static uint64_t sum_room(const struct model *m)
{
    return align_up((uint64_t)(m->there.part[0].rows * m->h * dtype_size(m->o.t) / m->g->topo.tp), 256);
}

uint64_t model_bytes(const struct stage *g, const struct kernels *k, const struct model_opts *o)
{
    struct model *m = prepare(g, k, o);
    uint64_t n = m->used + comm_share_bytes(g->topo.tp, sum_room(m));

    model_free(m);
    return n;
}

struct model *model_new(const struct stage *g, const struct stage_state *st, const struct kernels *k, struct comm *tp,
                        const struct model_opts *o, struct err *e)
{
    struct model *m = prepare(g, k, o);

    m->st = *st;
    m->tp = tp;
    m->pool = k->dev->alloc(m->used, e);
    if (!m->pool || comm_share(tp, m->pool, m->used, sum_room(m), e) < 0) {
        model_free(m);
        return NULL;
    }
    place(m);
    if (m->bias)
        fill_bias(m);
    if (m->position)
        fill_positions(m);
    return m;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->o.n_slots; i++)
        free(m->slot[i].block);
    free(m->slot);
    if (m->pool)
        m->k->dev->free(m->pool);
    free(m);
}

void *model_input(struct model *m, int slot) { return m->slot[slot].block[0].x; }
void *model_output(struct model *m, int slot)
{
    return m->g->norm && !m->g->last ? m->slot[slot].normed : m->slot[slot].out;
}

double *model_loss(struct model *m) { return m->loss; }
float *model_head_grad(struct model *m) { return m->head_grad; }
void model_loss_begin(struct model *m, struct dev_stream *s) { m->k->dev->zero(m->loss, 2 * sizeof(double), s); }

void model_hook(struct model *m, const struct model_hooks *h) { m->hooks = *h; }

void model_look(struct model *m, void (*look)(void *ctx, int64_t row0, int64_t rows, const void *logits), void *ctx)
{
    m->look = look;
    m->look_ctx = ctx;
}
