/* cpu_attention.h - tiles of TILE queries by TILE keys, which attention.c and attention_back.c use */
#ifndef SHARDKIT_KERNELS_CPU_CPU_ATTENTION_H
#define SHARDKIT_KERNELS_CPU_CPU_ATTENTION_H

#include "kernels/cpu/half.h"
#include "kernels/cpu/panels.h"
#include "kernels/cpu/philox.h"

/* must also be a multiple of 16, because 16 keys share random numbers for dropout */
#define TILE PANEL_LCM

/* Returns the number of floats in a row of a product [.., hd]: hd rounded up to whole panels. */
static inline int64_t tile_row(int64_t hd)
{
    return up_i64(hd, PANEL_B);
}

/*
 * A product c [na, nb] = a b^T. Each element is a sum over `slots` slots. With `add`, the product is added to c. c is
 * written in whole panels, and b is packed. If a_step is PANEL_A, `a` is packed, too; otherwise `a` is a tile [slots,
 * a_step] whose columns are the rows of the operand.
 */
struct tile_product {
    int64_t na, nb, slots;
    const float *a;
    int64_t a_step;
    const float *b;
    float *c;
    int64_t ldc;
    bool add;
};

static inline void tile_multiply(const struct tile_product *t)
{
    int64_t a_panel = t->a_step == PANEL_A ? t->slots * PANEL_A : PANEL_A;

    for (int64_t j = 0; j < t->nb; j += PANEL_B)
        for (int64_t i = 0; i < t->na; i += PANEL_A)
            panel_multiply(t->slots, (struct panel_rows){ t->a + i / PANEL_A * a_panel, t->a_step },
                           t->b + j * t->slots, t->c + i * t->ldc + j, t->ldc, t->add);
}

/* Returns the operand that consists of the rows of one head's q, k or v for all tokens of a sample. */
static inline struct operand head_rows(const struct kernel_attention *a, const void *p, int64_t sample, int64_t head,
                                       enum dtype t)
{
    int64_t at = sample * a->s * a->token_stride + head * a->head_stride;

    return (struct operand){ (const char *)p + at * bytes_t(t), a->token_stride, false, t };
}

/*
 * Returns the operand that consists of one head's rows of a sample in the output or its gradient. `p` is T [b * s,
 * heads * hd].
 */
static inline struct operand head_out(const struct kernel_attention *a, const void *p, int64_t sample, int64_t head,
                                      enum dtype t)
{
    int64_t ld = (int64_t)a->heads * a->hd, at = sample * a->s * ld + head * a->hd;

    return (struct operand){ (const char *)p + at * bytes_t(t), ld, false, t };
}

static inline struct operand transposed(struct operand x)
{
    x.across = !x.across;
    return x;
}

struct score_rule {
    float scale;
    /* kernel_attention.round_unit; 0 for fp32, where the rounding would change nothing */
    float unit;
    const float *bias;                  /* the bias of element j is bias[j * step] */
    int step;
};

/* Convert n dot products to scores. The forward and the backward pass use this function, so they get the same bits. */
ALWAYS_INLINE void score_run(float *x, int64_t n, const struct score_rule *r, enum dtype t)
{
    const float scale = r->scale, unit = r->unit;
    const bool half = t == DTYPE_F16 && unit != 0;

    for (int64_t j = 0; j < n; j++) {
        float v = MADD(x[j], scale, r->bias[j * r->step]);

        x[j] = half ? v / unit : unit != 0 ? unit * round_t(v / unit, t) : v;
    }
    if (half)
        f16_round_run(x, n);
    for (int64_t j = 0; half && j < n; j++)
        x[j] *= unit;
}

/* Compute the dropout factors of a tile, [query, key]. at.sample and at.head are numbered within this call. */
static inline void tile_mask(float mask[TILE * TILE], const struct kernel_attention *a, struct drop_place at)
{
    at.sample += a->drop.row0 / a->s;
    at.head += a->head0;
    drop_tile(mask, TILE, &a->drop, &at);
}

#endif
