/*
 * attention.c - causal attention forward, one tile of queries at a time
 *
 * After Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
 * "FlashAttention" (2022). Keys are processed tile by tile. For each query the kernel keeps the largest score so
 * far, the sum of exponentials relative to it, and the output so far. The sum and the output are scaled down
 * whenever a larger score is found. Tiles above the diagonal are skipped.
 *
 * Scores are computed transposed, [key, query]. Softmax over keys then runs down the columns, as vector code over
 * queries, and the tile already has the layout that the product with V needs for its A.
 */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "kernels/cpu/cpu_attention.h"

/* The buffers of one thread. Packed tiles of q, k and v follow the struct in memory. */
struct attention_room {
    float score[TILE * TILE];           /* [key, query]; later probabilities */
    float top[TILE], sum[TILE];         /* largest score, and sum of exponentials; one per query */
    float mask[TILE * TILE];            /* [query, key], the dropout factors */
    float mask_transposed[TILE * TILE];
    float q[];
};

/* The tile of queries being processed. */
struct attention_item {
    const struct kernel_attention *a;
    int64_t sample, head, q0, nq;
    enum dtype t;
};

/*
 * Compute the scores of keys k0 .. k0 + nk for all queries of the tile. The scores include scale, bias and causal mask.
 * On return, top[] holds the largest score of each query so far.
 */
static void scores(struct attention_room *r, const struct attention_item *it, int64_t k0, int64_t nk, int64_t width,
                   float *top)
{
    const float *bias = it->a->bias ? it->a->bias + it->head * it->a->s + k0 : NULL;
    float factor = it->a->scale, unit = it->t == DTYPE_F32 ? 0 : it->a->round_unit;

    for (int64_t j = 0; j < nk; j++) {
        float *row = r->score + j * TILE, plus = bias ? bias[j] : 0;
        int64_t masked = min_i64(max_i64(k0 + j - it->q0, 0), width);

        WITH_T(it->t, score_run(row, width, &(struct score_rule){ factor, unit, &plus, 0 }, T));
        for (int64_t q = 0; q < masked; q++)
            row[q] = -INFINITY;
        for (int64_t q = 0; q < width; q++)
            top[q] = row[q] > top[q] ? row[q] : top[q];
    }
}

/* Replace the scores of the tile by exp(score - top), and add them to the sums of their queries. */
static void exponentials(struct attention_room *r, int64_t nk, int64_t width)
{
    for (int64_t j = 0; j < nk; j++) {
        float *row = r->score + j * TILE;

        for (int64_t q = 0; q < width; q++) {
            row[q] = exp_f32(row[q] - r->top[q]);
            r->sum[q] += row[q];
        }
    }
}

static void drop(struct attention_room *r, const struct attention_item *it, int64_t k0, int64_t nk)
{
    tile_mask(r->mask, it->a, (struct drop_place){ it->sample, it->head, it->q0, it->nq, k0, nk });
    panel_transpose(r->mask_transposed, TILE, r->mask, TILE, it->nq, nk);
    for (int64_t j = 0; j < nk; j++)
        for (int64_t q = 0; q < it->nq; q++)
            r->score[j * TILE + q] *= r->mask_transposed[j * TILE + q];
}

/* Rescale the sums and outputs computed so far from the old maxima to the new maxima `top`. */
static void shrink(struct attention_room *r, float *o, int64_t row, int64_t nq, const float *top)
{
    for (int64_t q = 0; q < nq; q++) {
        float f = exp_f32(r->top[q] - top[q]);

        r->sum[q] *= f;
        for (int64_t d = 0; d < row; d++)
            o[q * row + d] *= f;
    }
}

/* Divide the accumulated outputs in `o` by the sums of exponentials, and store the results. */
ALWAYS_INLINE void store_rows(const struct attention_room *r, const struct attention_item *it, float *o,
                              int64_t row, enum dtype t)
{
    const struct kernel_attention *a = it->a;
    struct operand out = head_out(a, a->o, it->sample, it->head, t);
    float *lse = a->lse + (it->sample * a->heads + it->head) * a->s + it->q0;

    for (int64_t q = 0; q < it->nq; q++) {
        void *to = out_t((void *)out.p, (it->q0 + q) * out.ld, t);
        float f = 1.0f / r->sum[q];

        for (int64_t d = 0; d < a->hd; d++)
            o[q * row + d] *= f;
        store_run(to, 0, o + q * row, a->hd, t);
        lse[q] = r->top[q] + logf(r->sum[q]);
    }
}

static void query_tile(struct attention_room *r, const struct attention_item *it)
{
    const struct kernel_attention *a = it->a;
    int64_t hd = a->hd, row = tile_row(hd), width = up_i64(it->nq, PANEL_B);
    float *k = r->q + TILE * hd, *v = k + TILE * hd, *o = v + TILE * row;
    struct operand q_in = head_rows(a, a->q, it->sample, it->head, it->t);
    struct operand k_in = head_rows(a, a->k, it->sample, it->head, it->t);
    struct operand v_in = transposed(head_rows(a, a->v, it->sample, it->head, it->t));

    memset(r->score, 0, sizeof r->score);       /* the columns after the last query must remain zero */
    for (int64_t q = 0; q < TILE; q++) {
        r->top[q] = -INFINITY;
        r->sum[q] = 0;
    }
    memset(o, 0, (size_t)(TILE * row) * sizeof *o);
    panels_pack(r->q, &q_in, (struct operand_part){ it->q0, it->nq, 0, hd }, PANEL_B, false);

    for (int64_t k0 = 0; k0 < it->q0 + it->nq; k0 += TILE) {
        int64_t nk = min_i64(TILE, it->q0 + it->nq - k0);
        float top[TILE];

        panels_pack(k, &k_in, (struct operand_part){ k0, nk, 0, hd }, PANEL_A, false);
        panels_pack(v, &v_in, (struct operand_part){ 0, hd, k0, nk }, PANEL_B, false);
        tile_multiply(&(struct tile_product){
            .na = nk, .nb = it->nq, .slots = hd, .a = k, .a_step = PANEL_A, .b = r->q, .c = r->score, .ldc = TILE,
        });
        memcpy(top, r->top, sizeof top);
        scores(r, it, k0, nk, width, top);
        if (k0 > 0)
            shrink(r, o, row, it->nq, top);
        memcpy(r->top, top, sizeof top);
        exponentials(r, nk, width);
        if (drop_active(&a->drop))
            drop(r, it, k0, nk);
        tile_multiply(&(struct tile_product){
            .na = it->nq, .nb = hd, .slots = nk, .a = r->score, .a_step = TILE, .b = v, .c = o, .ldc = row, .add = true,
        });
    }
    WITH_T(it->t, store_rows(r, it, o, row, T));
}

static void attention(const struct kernel_attention *a, enum dtype t, struct dev_stream *s)
{
    int64_t tiles = (a->s + TILE - 1) / TILE, heads = (int64_t)a->b * a->heads;
    size_t floats = (size_t)(2 * TILE * up_i64(a->hd, 16) + 2 * TILE * tile_row(a->hd));

    (void)s;
    /* Process the longest items first. These are the tiles at the end of a sample, which attend to the most keys. */
    #pragma omp parallel for num_threads(cpu_threads) schedule(static, 1)
    for (int64_t i = 0; i < tiles * heads; i++) {
        struct attention_room *r = cpu_room(omp_get_thread_num(), sizeof *r + floats * sizeof(float));
        int64_t q0 = (tiles - 1 - i / heads) * TILE;
        struct attention_item it = { a, i % heads / a->heads, i % heads % a->heads, q0, min_i64(TILE, a->s - q0),
                                     t };

        query_tile(r, &it);
    }
}

void attention_fill(struct kernels *k)
{
    k->attention = attention;
}
