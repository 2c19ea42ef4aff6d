/*
 * attention_back.c - gradients of attention; the probabilities are recomputed from lse
 *
 * With P the probabilities, m the dropout factors and D[q] = sum over d of dO[q, d] O[q, d]:
 *     dV = (P m)^T dO    dP = dO V^T    dS = P (dP m - D)    dQ = scale dS K    dK = scale dS^T Q
 * One thread processes a whole head of a sample. For each tile of keys it visits all tiles of queries that attend to
 * these keys, while dK and dV of the keys stay in the cache. dQ is accumulated in the scratch memory, in the order of
 * the keys.
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/cpu_attention.h"

/* The buffers of one thread. */
struct back_room {
    float p[TILE * TILE];               /* [query, key]: scores, then P m */
    float ds[TILE * TILE];              /* [query, key]: dP, then dS */
    float ds_transposed[TILE * TILE];       /* [key, query] */
    float mask[TILE * TILE];            /* [query, key], dropout */
    float tiles[];                      /* packed operands, dk and dv; their addresses are in struct views */
};

/*
 * The addresses of the packed tiles of the current keys and queries. The members *_rows are packed for products that
 * sum over the hd elements of a token, the members *_cols for products that sum over tokens.
 */
struct views {
    float *k_rows, *v_rows, *k_cols, *dk, *dv;
    float *q_rows, *do_rows, *q_cols, *do_cols;
};
#define VIEWS (sizeof(struct views) / sizeof(float *))

/* The head being processed. */
struct back_item {
    const struct kernel_attention *a;
    const struct kernel_attention_back *g;
    int64_t sample, head;
    struct operand q, k, v, d_o;
    float *dq, *dot;                    /* in the scratch memory: dQ as fp32 [s, row], and D as [s] */
    enum dtype t;
};

static int64_t view_floats(int64_t hd)
{
    return TILE * tile_row(hd);
}

static struct views views_of(struct back_room *r, int64_t hd)
{
    float *p[VIEWS];

    for (size_t i = 0; i < VIEWS; i++)
        p[i] = r->tiles + (int64_t)i * view_floats(hd);
    return (struct views){ p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], p[8] };
}

ALWAYS_INLINE void dots(const struct back_item *it, enum dtype t)
{
    const struct kernel_attention *a = it->a;
    struct operand o = head_out(a, a->o, it->sample, it->head, t);

    for (int64_t q = 0; q < a->s; q++) {
        float sum = 0;

        #pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < a->hd; d++)
            sum += load_t(o.p, q * o.ld + d, t) * load_t(it->d_o.p, q * o.ld + d, t);
        it->dot[q] = sum;
    }
}

/* Convert nq rows of scores and dP to P m and dS. */
static void softmax_back(struct back_room *r, const struct back_item *it, int64_t q0, int64_t nq, int64_t k0,
                         int64_t nk)
{
    const struct kernel_attention *a = it->a;
    const float *lse = a->lse + (it->sample * a->heads + it->head) * a->s + q0;
    float bias[TILE] = { 0 }, ones[TILE], unit = it->t == DTYPE_F32 ? 0 : a->round_unit;
    bool has_drop = drop_active(&a->drop);

    if (a->bias)
        memcpy(bias, a->bias + it->head * a->s + k0, (size_t)nk * sizeof *bias);
    for (int64_t j = 0; j < TILE; j++)
        ones[j] = 1;
    if (has_drop)
        tile_mask(r->mask, a, (struct drop_place){ it->sample, it->head, q0, nq, k0, nk });
    for (int64_t q = 0; q < nq; q++) {
        float *p = r->p + q * TILE, *ds = r->ds + q * TILE, down = lse[q], dot = it->dot[q0 + q];
        int64_t seen = max_i64(min_i64(nk, q0 + q - k0 + 1), 0);
        const float *mask = has_drop ? r->mask + q * TILE : ones;

        WITH_T(it->t, score_run(p, seen, &(struct score_rule){ a->scale, unit, bias, 1 }, T));
        for (int64_t j = 0; j < seen; j++) {
            float prob = exp_f32(p[j] - down);

            p[j] = prob * mask[j];
            ds[j] = prob * (ds[j] * mask[j] - dot);
        }
        for (int64_t j = seen; j < TILE; j++)
            p[j] = ds[j] = 0;
    }
}

static void tile_pair(struct back_room *r, const struct views *w, const struct back_item *it, int64_t q0, int64_t k0,
                      int64_t nk)
{
    int64_t hd = it->a->hd, row = tile_row(hd), nq = min_i64(TILE, it->a->s - q0);
    struct operand q_cols = transposed(it->q), do_cols = transposed(it->d_o);

    panels_pack(w->q_rows, &it->q, (struct operand_part){ q0, nq, 0, hd }, PANEL_A, false);
    panels_pack(w->do_rows, &it->d_o, (struct operand_part){ q0, nq, 0, hd }, PANEL_A, false);
    panels_pack(w->q_cols, &q_cols, (struct operand_part){ 0, hd, q0, nq }, PANEL_B, false);
    panels_pack(w->do_cols, &do_cols, (struct operand_part){ 0, hd, q0, nq }, PANEL_B, false);

    tile_multiply(&(struct tile_product){
        .na = nq, .nb = nk, .slots = hd, .a = w->q_rows, .a_step = PANEL_A, .b = w->k_rows, .c = r->p, .ldc = TILE,
    });
    tile_multiply(&(struct tile_product){
        .na = nq, .nb = nk, .slots = hd, .a = w->do_rows, .a_step = PANEL_A, .b = w->v_rows, .c = r->ds, .ldc = TILE,
    });
    softmax_back(r, it, q0, nq, k0, nk);
    tile_multiply(&(struct tile_product){
        .na = nk, .nb = hd, .slots = nq, .a = r->p, .a_step = TILE, .b = w->do_cols, .c = w->dv, .ldc = row,
        .add = true,
    });
    tile_multiply(&(struct tile_product){
        .na = nk, .nb = hd, .slots = nq, .a = r->ds, .a_step = TILE, .b = w->q_cols, .c = w->dk, .ldc = row,
        .add = true,
    });
    panel_transpose(r->ds_transposed, TILE, r->ds, TILE, up_i64(nq, PANEL_A), nk);
    tile_multiply(&(struct tile_product){
        .na = nq, .nb = hd, .slots = nk, .a = r->ds_transposed, .a_step = TILE, .b = w->k_cols, .c = it->dq + q0 * row,
        .ldc = row, .add = k0 > 0,
    });
}

/* A range of tokens of the head: t0 .. t0 + n. */
struct tokens {
    int64_t t0, n;
};

/* Multiply rows of sums by f, and store them in the gradient p, in the rows of the tokens `at`. */
ALWAYS_INLINE void store_rows(const struct back_item *it, void *p, float *sum, struct tokens at, float f,
                              enum dtype t)
{
    struct operand out = head_rows(it->a, p, it->sample, it->head, t);
    int64_t row = tile_row(it->a->hd);

    for (int64_t i = 0; i < at.n; i++) {
        for (int64_t d = 0; d < it->a->hd; d++)
            sum[i * row + d] *= f;
        store_run((void *)out.p, (at.t0 + i) * out.ld, sum + i * row, it->a->hd, t);
    }
}

static void store(const struct back_item *it, void *p, float *sum, struct tokens at, float f)
{
    WITH_T(it->t, store_rows(it, p, sum, at, f, T));
}

static void key_tile(struct back_room *r, const struct back_item *it, int64_t k0)
{
    const struct kernel_attention *a = it->a;
    int64_t hd = a->hd, nk = min_i64(TILE, a->s - k0);
    struct views w = views_of(r, hd);
    struct operand k_cols = transposed(it->k);

    panels_pack(w.k_rows, &it->k, (struct operand_part){ k0, nk, 0, hd }, PANEL_B, false);
    panels_pack(w.v_rows, &it->v, (struct operand_part){ k0, nk, 0, hd }, PANEL_B, false);
    panels_pack(w.k_cols, &k_cols, (struct operand_part){ 0, hd, k0, nk }, PANEL_B, false);
    memset(w.dk, 0, (size_t)view_floats(hd) * sizeof(float));
    memset(w.dv, 0, (size_t)view_floats(hd) * sizeof(float));
    for (int64_t q0 = k0; q0 < a->s; q0 += TILE)
        tile_pair(r, &w, it, q0, k0, nk);
    store(it, it->g->dk, w.dk, (struct tokens){ k0, nk }, a->scale);
    store(it, it->g->dv, w.dv, (struct tokens){ k0, nk }, 1);
}

/* Returns the scratch size in floats of one head, which holds dQ and D. */
static int64_t head_floats(const struct kernel_attention *a)
{
    return up_i64(a->s, TILE) * (tile_row(a->hd) + 1);
}

static uint64_t attention_scratch(const struct kernel_attention *a)
{
    return (uint64_t)a->b * (uint64_t)a->heads * (uint64_t)head_floats(a) * sizeof(float);
}

static void attention_back(const struct kernel_attention *a, const struct kernel_attention_back *g, enum dtype t,
                           struct dev_stream *s)
{
    size_t bytes = sizeof(struct back_room) + VIEWS * (size_t)view_floats(a->hd) * sizeof(float);

    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < (int64_t)a->b * a->heads; i++) {
        struct back_room *r = cpu_room(omp_get_thread_num(), bytes);
        int64_t sample = i / a->heads, head = i % a->heads;
        struct back_item it = {
            .a = a, .g = g, .sample = sample, .head = head, .t = t,
            .q = head_rows(a, a->q, sample, head, t), .k = head_rows(a, a->k, sample, head, t),
            .v = head_rows(a, a->v, sample, head, t), .d_o = head_out(a, g->d_o, sample, head, t),
            .dq = (float *)g->scratch + i * head_floats(a),
        };

        it.dot = it.dq + up_i64(a->s, TILE) * tile_row(a->hd);
        WITH_T(t, dots(&it, T));
        for (int64_t k0 = 0; k0 < a->s; k0 += TILE)
            key_tile(r, &it, k0);
        store(&it, g->dq, it.dq, (struct tokens){ 0, a->s }, a->scale);
    }
}

void attention_back_fill(struct kernels *k)
{
    k->attention_back = attention_back;
    k->attention_scratch = attention_scratch;
}
