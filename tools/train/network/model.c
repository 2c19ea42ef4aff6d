/* model.c - the memory of one rank's part of the model: work buffers, and the data that is kept per micro-batch */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/network/model_impl.h"

/* ---- memory ---- */

/*
 * Acquire the next `bytes` bytes of the pool and return their address. If the pool is not allocated yet, only count the
 * bytes.
 */
static void *acquire_pool_bytes(struct model *m, int64_t bytes)
{
    uint64_t at = m->used;

    m->used += align_up((uint64_t)bytes, 256);
    return m->pool ? (char *)m->pool + at : NULL;
}

static void *acquire_pool_elements(struct model *m, int64_t n)
{
    return acquire_pool_bytes(m, n * dtype_size(m->opts.t));
}
static float *acquire_pool_floats(struct model *m, int64_t n)
{
    return acquire_pool_bytes(m, n * (int64_t)sizeof(float));
}

/*
 * Assign buffers to the members of a block. Data that the backward pass recomputes uses the buffers in `shared`, which
 * all slots and blocks have in common. If `shared` is NULL, all buffers belong to the block itself.
 */
static void place_block(struct model *m, struct model_block *a, const struct model_block *shared)
{
    const bool full = m->opts.recompute == RECOMPUTE_FULL;

    *a = shared ? *shared : (struct model_block){0};
    a->input = acquire_pool_elements(m, m->own_rows * m->hidden);
    if (shared && full)
        return;
    a->norm1_mean = acquire_pool_floats(m, m->own_rows);
    a->norm1_rstd = acquire_pool_floats(m, m->own_rows);
    a->norm2_mean = acquire_pool_floats(m, m->own_rows);
    a->norm2_rstd = acquire_pool_floats(m, m->own_rows);
    a->qkv = acquire_pool_elements(m, m->rows * 3 * m->heads_width);
    a->attended = acquire_pool_elements(m, m->rows * m->heads_width);
    a->lse = acquire_pool_floats(m, m->rows * m->heads);
    a->middle = acquire_pool_elements(m, m->own_rows * m->hidden);
    a->gelu_in = acquire_pool_elements(m, m->rows * m->ffn);
    if (shared)
        return;
    a->norm1 = acquire_pool_elements(m, m->own_rows * m->hidden);
    a->norm2 = acquire_pool_elements(m, m->own_rows * m->hidden);
    a->gelu_out = acquire_pool_elements(m, m->rows * m->ffn);
}

static void place_head(struct model *m)
{
    int64_t c = m->head_rows;

    m->logits = acquire_pool_elements(m, c * m->vocab);
    m->stat = acquire_pool_floats(m, c * 3);
    m->all_stat = m->stage->topo.tp > 1 ? acquire_pool_floats(m, c * 3 * m->stage->topo.tp) : NULL;
    m->lse = acquire_pool_floats(m, c);
    m->loss_rows = acquire_pool_floats(m, m->rows);
    m->final_norm = acquire_pool_elements(m, m->rows * m->hidden);
    m->d_final_norm = acquire_pool_elements(m, m->rows * m->hidden);
    m->loss = acquire_pool_bytes(m, 2 * (int64_t)sizeof(double));
    if (m->stage->first)
        m->head_grad = acquire_pool_bytes(m, m->vocab * m->hidden * dtype_size(model_grad_dtype(m)));
}

/*
 * Assign addresses to all buffers of the model. In the first call there is no pool, so only their sizes are added up.
 */
static void place_model_buffers(struct model *m)
{
    const struct stage *g = m->stage;
    struct model_block shared;

    m->used = 0;
    if (m->opts.recompute != RECOMPUTE_NONE)
        place_block(m, &shared, NULL);
    for (int k = 0; k < m->opts.n_slots; k++) {
        struct model_slot *s = &m->slot[k];

        for (int i = 0; i < g->n_blocks; i++)
            place_block(m, &s->block[i], m->opts.recompute == RECOMPUTE_NONE ? NULL : &shared);
        s->output = acquire_pool_elements(m, m->own_rows * m->hidden);
        /* a stage without blocks passes its input on */
        if (g->n_blocks == 0)
            s->block[0].input = s->output;
        if (g->norm && !g->last)
            s->normed = acquire_pool_elements(m, m->own_rows * m->hidden);
        if (g->first && g->model.embed_layernorm) {
            s->embedded = acquire_pool_elements(m, m->own_rows * m->hidden);
            s->embed_mean = acquire_pool_floats(m, m->own_rows);
            s->embed_rstd = acquire_pool_floats(m, m->own_rows);
        }
        if (g->norm) {
            s->final_mean = acquire_pool_floats(m, m->own_rows);
            s->final_rstd = acquire_pool_floats(m, m->own_rows);
        }
    }
    m->work = acquire_pool_elements(m, m->rows * m->hidden);
    if (m->opts.sequence_parallel) {
        m->gathered = acquire_pool_elements(m, m->rows * m->hidden);
        m->positions = acquire_pool_bytes(m, m->rows * (int64_t)sizeof(int32_t));
    }
    m->d_gelu_in = acquire_pool_elements(m, m->rows * m->ffn);
    m->d_qkv = acquire_pool_elements(m, m->rows * 3 * m->heads_width);
    m->d_attended = acquire_pool_elements(m, m->rows * m->heads_width);
    m->scratch = acquire_pool_bytes(m, (int64_t)m->scratch_bytes);
    if (m->alibi_bytes)
        m->alibi = acquire_pool_bytes(m, (int64_t)m->alibi_bytes);
    if (g->last)
        place_head(m);
}

/*
 * Returns the number of rows of a chunk of logits. On a GPU this is the largest power of two such that the chunk fits
 * into 2.2 GB. For each chunk, the whole gradient of the head is read and written once more: with 512 rows and V =
 * 250,880 this took a tenth of a step of BLOOM-1b7, with 4096 rows a hundredth. A CPU needs a smaller chunk because of
 * its caches.
 */
static int64_t default_head_rows(const struct model *m)
{
    const int64_t most = dev_on_host(m->kernels->dev) ? 64 << 20 : (int64_t)2200 << 20;
    int64_t rows = 64;

    while (rows * 2 * m->vocab * dtype_size(m->opts.t) <= most)
        rows *= 2;
    return rows;
}

static void set_sizes(struct model *m)
{
    const struct model_config *c = &m->stage->model;
    const int tp = m->stage->topo.tp;
    struct kernel_attention at;
    uint64_t need;

    m->rows = (int64_t)m->opts.b * m->opts.s;
    m->hidden = c->hidden;
    m->heads_width = c->hidden / tp;
    m->ffn = c->ffn_hidden / tp;
    m->vocab = c->vocab / tp;
    m->heads = (int)(c->n_heads / tp);
    m->head_dim = (int)(c->hidden / c->n_heads);
    model_cut_rows(m);
    m->head_rows = m->opts.head_rows > 0 ? m->opts.head_rows : default_head_rows(m);
    if (m->head_rows > m->rows)
        m->head_rows = m->rows;
    m->alibi_bytes = strcmp(c->position, "alibi") ? 0 : (uint64_t)m->heads * m->opts.s * sizeof(float);

    memset(&at, 0, sizeof at);
    at.b = m->opts.b;
    at.s = m->opts.s;
    at.heads = m->heads;
    at.hd = m->head_dim;
    need = m->kernels->attention_scratch(&at);
    need = max_u64(need, m->kernels->layernorm_scratch(m->rows, m->hidden));
    if (m->stage->first)
        need = max_u64(need, m->kernels->embed_scratch(m->rows, m->vocab));
    m->scratch_bytes = need;
}

/* Returns the ALiBi slope of one of n heads (docs/training.md 1.5). */
static double alibi_slope(int head, int n_heads)
{
    int c = 1;

    while (c * 2 <= n_heads)
        c *= 2;
    return head < c ? exp2(-8.0 * (head + 1) / c) : exp2(-8.0 * (2 * (head - c) + 1) / (2 * c));
}

/*
 * Compute the ALiBi biases (docs/training.md 1.5): the head i adds slope_i * j to the scores of the key at position j.
 * The product is rounded to T, like the bias tensor of the reference. This rounding matters: 1877.1 becomes 1880 in
 * bf16.
 */
static void fill_bias(struct model *m)
{
    const int n = (int)m->stage->model.n_heads, head0 = m->stage->tp * m->heads;
    float *bias = xmalloc(m->alibi_bytes);

    for (int i = 0; i < m->heads; i++) {
        float slope = (float)alibi_slope(head0 + i, n);

        for (int j = 0; j < m->opts.s; j++) {
            float x = slope * (float)j;

            bias[(int64_t)i * m->opts.s + j] = m->opts.t == DTYPE_BF16 ? bf16_to_f32(f32_to_bf16(x))
                                             : m->opts.t == DTYPE_F16  ? f16_to_f32(f32_to_f16(x)) : x;
        }
    }
    m->kernels->dev->copy(m->alibi, bias, m->alibi_bytes, NULL);
    m->kernels->dev->stream_sync(NULL);
    free(bias);
}

/* The positions are stored explicitly, because the rows that a rank holds may begin anywhere in a sample. */
static void fill_positions(struct model *m)
{
    int32_t *position = xmalloc((size_t)m->rows * sizeof *position);

    for (int64_t i = 0; i < m->rows; i++)
        position[i] = (int32_t)(i % m->opts.s);
    m->kernels->dev->copy(m->positions, position, (uint64_t)m->rows * sizeof *position, NULL);
    m->kernels->dev->stream_sync(NULL);
    free(position);
}

static struct model *prepare_model_layout(const struct stage *g, const struct kernels *k, const struct model_opts *o)
{
    struct model *m = xcalloc(1, sizeof *m);

    m->stage = g;
    m->kernels = k;
    m->opts = *o;
    m->slot = xcalloc((size_t)o->n_slots, sizeof *m->slot);
    for (int i = 0; i < o->n_slots; i++)
        m->slot[i].block = xcalloc((size_t)g->n_blocks + 1, sizeof *m->slot[i].block);
    set_sizes(m);
    place_model_buffers(m);
    return m;
}

int64_t model_boundary(const struct stage *g, const struct model_opts *o)
{
    return (int64_t)o->b * o->s / (o->sequence_parallel ? g->topo.tp : 1) * g->model.hidden;
}

/*
 * Returns the size in bytes of the memory in which the parts of other tensor ranks arrive for a sum (see comm_share()).
 * It is sufficient for all parts of one sum.
 */
static uint64_t model_sum_room(const struct model *m)
{
    return align_up((uint64_t)(m->forward.part[0].rows * m->hidden * dtype_size(m->opts.t) / m->stage->topo.tp), 256);
}

uint64_t model_bytes(const struct stage *g, const struct kernels *k, const struct model_opts *o)
{
    struct model *m = prepare_model_layout(g, k, o);
    uint64_t n = m->used + comm_share_bytes(g->topo.tp, model_sum_room(m));

    model_free(m);
    return n;
}

struct model *model_new(const struct stage *g, const struct stage_state *st, const struct kernels *k, struct comm *tp,
                        const struct model_opts *o, struct err *e)
{
    struct model *m = prepare_model_layout(g, k, o);

    m->state = *st;
    m->tp_group = tp;
    m->pool = k->dev->alloc(m->used, e);
    if (!m->pool || comm_share(tp, m->pool, m->used, model_sum_room(m), e) < 0) {
        model_free(m);
        return NULL;
    }
    place_model_buffers(m);
    if (m->alibi)
        fill_bias(m);
    if (m->positions)
        fill_positions(m);
    return m;
}

void model_free(struct model *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->opts.n_slots; i++)
        free(m->slot[i].block);
    free(m->slot);
    if (m->pool)
        m->kernels->dev->free(m->pool);
    free(m);
}

void *model_input(struct model *m, int slot) { return m->slot[slot].block[0].input; }
void *model_output(struct model *m, int slot)
{
    return m->stage->norm && !m->stage->last ? m->slot[slot].normed : m->slot[slot].output;
}

double *model_loss(struct model *m) { return m->loss; }
void *model_head_grad(struct model *m) { return m->head_grad; }
void model_loss_begin(struct model *m, struct dev_stream *s) { m->kernels->dev->zero(m->loss, 2 * sizeof(double), s); }

void model_hook(struct model *m, const struct model_hooks *h) { m->hooks = *h; }

void model_set_logits_callback(struct model *m, model_logits_fn *on_logits, void *ctx)
{
    m->on_logits = on_logits;
    m->on_logits_ctx = ctx;
}
