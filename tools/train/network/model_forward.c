/*
 * model_forward.c - forward pass of embedding and transformer blocks
 */
#include <math.h>

#include "libcommon/base/hash.h"
#include "tools/train/network/model_impl.h"

/* epsilon of the embedding's LayerNorm; --layernorm-epsilon does not apply to it (docs/training.md 1) */
#define EMBED_NORM_EPS 1e-5f

struct kernel_dropout model_dropout(const struct model *m, const struct micro_batch *mb, int block,
                                    enum model_site where, int64_t row)
{
    struct kernel_dropout d = { .p = where == SITE_ATTENTION ? m->opts.attention_dropout : m->opts.hidden_dropout };
    uint64_t key;

    if (!mb->training)
        d.p = 0;
    key = hash_mix(hash_mix(m->opts.seed) ^ (uint64_t)mb->step);
    key = hash_mix(key ^ (uint64_t)((int64_t)(block + 1) * SITE_N + where));
    d.key[0] = (uint32_t)key;
    d.key[1] = (uint32_t)(key >> 32);
    d.row0 = mb->sample0 * m->opts.s + row;
    return d;
}

struct kernel_attention model_attention(const struct model *m, const struct micro_batch *mb, int block,
                                        const struct model_block *a, const struct model_part *p)
{
    char *q = model_row_address(m, a->qkv, p->row, 3 * m->heads_width);
    const int size = dtype_size(m->opts.t);
    struct kernel_attention at = {
        .b = p->samples, .s = m->opts.s, .heads = m->heads, .hd = m->head_dim, .head0 = m->stage->tp * m->heads, .q = q,
        .k = q + m->head_dim * size, .v = q + 2 * m->head_dim * size, .token_stride = 3 * m->heads_width,
        .head_stride = 3 * m->head_dim, .o = model_row_address(m, a->attended, p->row, m->heads_width),
        .lse = a->lse + p->row * m->heads, .scale = (float)(1 / sqrt(m->head_dim)), .bias = m->alibi,
        .round_unit = m->stage->first_block + block > 1 ? (float)(m->stage->first_block + block) : 1,
        .drop = model_dropout(m, mb, m->stage->first_block + block, SITE_ATTENTION, p->row),
    };

    return at;
}

/* ---- blocks ---- */

/*
 * A forward pass over blocks. It is divided into phases. Each is half of a block: even numbers are attention, odd
 * numbers the MLP. A phase is computed in three steps. prepare_forward_phase() computes its input: the residual sum
 * that ends the previous phase, and a LayerNorm. front() computes everything before the last product. back() computes
 * the last product, and starts to sum it over the tensor ranks.
 */
struct pass {
    struct model *m;
    struct model_slot *sl;
    const struct micro_batch *mb;
    struct dev_stream *s;
};

/*
 * Compute the input of the next block, or the output of the stage, after block i: the residual sum and the next
 * LayerNorm, in one kernel.
 */
static void after_block(struct pass *f, int i, const struct model_part *p)
{
    struct model *m = f->m;
    struct model_slot *sl = f->sl;
    struct model_block *a = &sl->block[i], *next = i + 1 == m->stage->n_blocks ? NULL : a + 1;
    struct kernel_layernorm norm = { .m = p->own_rows, .h = m->hidden, .eps = m->opts.eps };

    if (next) {
        norm.gamma = model_param_weights(m, i + 1, ROLE_NORM1_W);
        norm.beta = model_param_weights(m, i + 1, ROLE_NORM1_B);
        norm.y = model_row_address(m, next->norm1, p->own_at, m->hidden);
        norm.mean = next->norm1_mean + p->own_at;
        norm.rstd = next->norm1_rstd + p->own_at;
    } else if (m->stage->norm) {
        norm.gamma = model_param_weights(m, -1, ROLE_FINAL_NORM_W);
        norm.beta = model_param_weights(m, -1, ROLE_FINAL_NORM_B);
        norm.y = m->stage->last ? model_row_address(m, m->final_norm, p->own_row, m->hidden)
               : model_row_address(m, sl->normed, p->own_at, m->hidden);
        norm.mean = sl->final_mean + p->own_at;
        norm.rstd = sl->final_rstd + p->own_at;
    }
    m->kernels->residual_norm(&(struct kernel_residual_norm){
        .a = model_row_address(m, m->work, p->own_row, m->hidden), .bias = model_param_weights(m, i, ROLE_DOWN_B),
        .residual = model_row_address(m, a->middle, p->own_at, m->hidden),
        .drop = model_dropout(m, f->mb, m->stage->first_block + i, SITE_MLP_OUT, p->own_row),
        .z = model_row_address(m, next ? next->input : sl->output, p->own_at, m->hidden), .norm = norm,
    }, m->opts.t, f->s);
}

static void after_attention(struct pass *f, int i, const struct model_part *p)
{
    struct model *m = f->m;
    struct model_block *a = &f->sl->block[i];

    m->kernels->residual_norm(&(struct kernel_residual_norm){
        .a = model_row_address(m, m->work, p->own_row, m->hidden), .bias = model_param_weights(m, i, ROLE_DENSE_B),
        .residual = model_row_address(m, a->input, p->own_at, m->hidden),
        .drop = model_dropout(m, f->mb, m->stage->first_block + i, SITE_ATTENTION_OUT, p->own_row),
        .z = model_row_address(m, a->middle, p->own_at, m->hidden),
        .norm = {
            .m = p->own_rows, .h = m->hidden, .gamma = model_param_weights(m, i, ROLE_NORM2_W),
            .beta = model_param_weights(m, i, ROLE_NORM2_B), .eps = m->opts.eps,
            .y = model_row_address(m, a->norm2, p->own_at, m->hidden),
            .mean = a->norm2_mean + p->own_at, .rstd = a->norm2_rstd + p->own_at,
        },
    }, m->opts.t, f->s);
}

/* Compute the first LayerNorm of the stage's first block. For the other blocks, after_block() computes it. */
static void norm1(struct pass *f, int i, const struct model_part *p)
{
    struct model *m = f->m;
    struct model_block *a = &f->sl->block[i];

    m->kernels->layernorm(
        &(struct kernel_layernorm){
            .m = p->own_rows,
            .h = m->hidden,
            .x = model_row_address(m, a->input, p->own_at, m->hidden),
            .gamma = model_param_weights(m, i, ROLE_NORM1_W),
            .beta = model_param_weights(m, i, ROLE_NORM1_B),
            .eps = m->opts.eps,
            .y = model_row_address(m, a->norm1, p->own_at, m->hidden),
            .mean = a->norm1_mean + p->own_at,
            .rstd = a->norm1_rstd + p->own_at,
        },
        m->opts.t, f->s);
}

static int prepare_forward_phase(struct pass *f, int phase, int first, int part, struct err *e)
{
    struct model *m = f->m;
    const struct model_part *p = &m->forward.part[part];
    const int i = phase / 2;

    if (phase > first && model_sum_wait(m, part, f->s, e) < 0)
        return -1;
    /*
     * The LayerNorm at the end of a block is the first one of the next block, or the final one. Wait for the weights of
     * the place to which it belongs.
     */
    if (phase % 2 == 0 && weights_ready(m, m->stage->first_block + i, f->s, e) < 0)
        return -1;
    if (phase == first)
        norm1(f, i, p);
    else if (phase % 2)
        after_attention(f, i, p);
    else
        after_block(f, i - 1, p);
    if (i == m->stage->n_blocks)
        return 0;
    return model_gather_start(m, &m->forward, part, phase % 2 ? f->sl->block[i].norm2 : f->sl->block[i].norm1, f->s, e);
}

static int front(struct pass *f, int phase, int part, struct err *e)
{
    struct model *m = f->m;
    const struct kernels *k = m->kernels;
    const struct model_part *p = &m->forward.part[part];
    const int i = phase / 2;
    struct model_block *a = &f->sl->block[i];
    struct kernel_attention at = model_attention(m, f->mb, i, a, p);
    const void *rows = gathered_rows(m, p, phase % 2 ? a->norm2 : a->norm1);

    if (model_gather_wait(m, part, f->s, e) < 0)
        return -1;
    if (phase % 2) {
        k->linear_gelu(&(struct kernel_linear){
            .m = p->rows, .n = m->ffn, .k = m->hidden, .x = rows, .w = model_param_weights(m, i, ROLE_UP_W),
            .bias = model_param_weights(m, i, ROLE_UP_B), .y = model_row_address(m, a->gelu_out, p->row, m->ffn),
            .pre = model_row_address(m, a->gelu_in, p->row, m->ffn),
        }, m->opts.t, f->s);
    } else {
        k->linear(
            &(struct kernel_linear){
                .m = p->rows,
                .n = 3 * m->heads_width,
                .k = m->hidden,
                .x = rows,
                .w = model_param_weights(m, i, ROLE_QKV_W),
                .bias = model_param_weights(m, i, ROLE_QKV_B),
                .y = model_row_address(m, a->qkv, p->row, 3 * m->heads_width),
            },
            m->opts.t, f->s);
        k->attention(&at, m->opts.t, f->s);
    }
    return 0;
}

static int back(struct pass *f, int phase, int part, struct err *e)
{
    struct model *m = f->m;
    const struct model_part *p = &m->forward.part[part];
    const int i = phase / 2;
    struct model_block *a = &f->sl->block[i];
    void *y = model_row_address(m, m->work, p->row, m->hidden);

    if (phase % 2)
        m->kernels->linear(&(struct kernel_linear){
            .m = p->rows, .n = m->hidden, .k = m->ffn, .x = model_row_address(m, a->gelu_out, p->row, m->ffn),
            .w = model_param_weights(m, i, ROLE_DOWN_W), .y = y,
        }, m->opts.t, f->s);
    else
        m->kernels->linear(
            &(struct kernel_linear){
                .m = p->rows,
                .n = m->hidden,
                .k = m->heads_width,
                .x = model_row_address(m, a->attended, p->row, m->heads_width),
                .w = model_param_weights(m, i, ROLE_DENSE_W),
                .y = y,
            },
            m->opts.t, f->s);
    return model_sum_start(m, &m->forward, part, m->work, f->s, e);
}

/*
 * Run the phases first .. last for all parts of the micro-batch, and prepare the input of the phase after `last`. The
 * communication of one part runs while another part is computed: the sum of a part during front() of the next part, and
 * the gather of a part during back() of the next part, because the next part is prepared in between.
 */
static int phases(struct pass *f, int first, int last, struct err *e)
{
    const int n = f->m->forward.n;

    if (prepare_forward_phase(f, first, first, 0, e) < 0)
        return -1;
    for (int at = first * n; at < (last + 1) * n; at++) {
        const int next = at + 1;

        if (front(f, at / n, at % n, e) < 0 || (n > 1 && prepare_forward_phase(f, next / n, first, next % n, e) < 0))
            return -1;
        if (back(f, at / n, at % n, e) < 0 || (n == 1 && prepare_forward_phase(f, next, first, 0, e) < 0))
            return -1;
    }
    return n > 1 ? prepare_forward_phase(f, last + 1, first, 1, e) : 0;
}

int model_recompute_block(struct model *m, int block, const struct model_block *a, const struct micro_batch *mb,
                          struct dev_stream *s, struct err *e)
{
    struct model_slot sl = { .block = (struct model_block *)a - block };
    struct pass f = { m, &sl, mb, s };

    if (phases(&f, 2 * block, 2 * block, e) < 0)
        return -1;
    for (int part = 0; part < m->forward.n; part++)
        if (front(&f, 2 * block + 1, part, e) < 0)
            return -1;
    return 0;
}

/* ---- embedding ---- */

/*
 * Look up the word embeddings of all tokens, sum them over the tensor ranks, and store this rank's rows in x [own_rows,
 * hidden].
 */
static int embed_words(struct model *m, void *x, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    const struct model_cut *c = &m->backward;
    void *all = m->opts.sequence_parallel ? m->work : x;

    m->kernels->embed(&(struct kernel_embed){
        .m = m->rows, .h = m->hidden, .first = m->stage->tp * m->vocab, .rows = m->vocab, .id = mb->tokens,
        .table = model_param_weights(m, -1, ROLE_WORD), .y = all,
    }, m->opts.t, s);
    if (model_sums_start(m, c, all, s, e) < 0 || model_sums_wait(m, c, s, e) < 0)
        return -1;
    for (int i = 0; i < c->n && all != x; i++)
        m->kernels->dev->copy(model_row_address(m, x, c->part[i].own_at, m->hidden),
                              model_row_address(m, all, c->part[i].own_row, m->hidden),
                              (uint64_t)(c->part[i].own_rows * m->hidden * dtype_size(m->opts.t)), s);
    return 0;
}

/* Compute the input of the first block: word embeddings, LayerNorm, positions and dropout. */
static int embedding(struct model *m, struct model_slot *sl, const struct micro_batch *mb, struct dev_stream *s,
                     struct err *e)
{
    const void *table = stage_get(m->stage, -1, ROLE_POSITION) ? model_param_weights(m, -1, ROLE_POSITION) : NULL;
    const int32_t *position = mb->positions ? mb->positions : m->positions;
    void *x = sl->block[0].input;

    if (embed_words(m, sl->embedded ? sl->embedded : x, mb, s, e) < 0)
        return -1;
    if (sl->embedded)
        m->kernels->layernorm(&(struct kernel_layernorm){
            .m = m->own_rows, .h = m->hidden, .x = sl->embedded, .gamma = model_param_weights(m, -1, ROLE_WORD_NORM_W),
            .beta = model_param_weights(m, -1, ROLE_WORD_NORM_B), .eps = EMBED_NORM_EPS, .y = x, .mean = sl->embed_mean,
            .rstd = sl->embed_rstd,
        }, m->opts.t, s);
    for (int i = 0; i < m->backward.n; i++) {
        const struct model_part *p = &m->backward.part[i];
        struct kernel_dropout drop = model_dropout(m, mb, -1, SITE_EMBEDDING, p->own_row);
        void *own = model_row_address(m, x, p->own_at, m->hidden);

        if (table || drop.p > 0)
            m->kernels->embed_finish(&(struct kernel_embed_finish){
                .m = p->own_rows, .h = m->hidden, .s = m->opts.s, .x = own, .position = table,
                .pos = position ? position + p->own_row : NULL, .drop = drop, .y = own,
            }, m->opts.t, s);
    }
    return 0;
}

/* Run the forward pass of a last stage without blocks. The final LayerNorm has already been applied to its input. */
static int lone_head(struct model *m, const struct model_slot *sl, struct dev_stream *s, struct err *e)
{
    if (weights_ready(m, (int)m->stage->model.n_layers, s, e) < 0)
        return -1;
    for (int i = 0; i < m->forward.n; i++) {
        const struct model_part *p = &m->forward.part[i];

        m->kernels->dev->copy(model_row_address(m, m->final_norm, p->own_row, m->hidden),
                              model_row_address(m, sl->output, p->own_at, m->hidden),
                              (uint64_t)(p->own_rows * m->hidden * dtype_size(m->opts.t)), s);
    }
    return 0;
}

int model_forward(struct model *m, int slot, const struct micro_batch *mb, struct dev_stream *s, struct err *e)
{
    struct model_slot *sl = &m->slot[slot];
    struct pass f = { m, sl, mb, s };

    if (m->stage->first && (weights_ready(m, -1, s, e) < 0 || embedding(m, sl, mb, s, e) < 0))
        return -1;
    if (m->stage->n_blocks && phases(&f, 0, 2 * m->stage->n_blocks - 1, e) < 0)
        return -1;
    if (!m->stage->n_blocks && m->stage->last && lone_head(m, sl, s, e) < 0)
        return -1;
    return m->stage->last ? model_head(m, mb, s, e) : 0;
}
