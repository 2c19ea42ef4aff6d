/* panels.c - pack operands into panels, and the micro-kernels that multiply panels (described in panels.h) */
#include "kernels/cpu/panels.h"
#include "kernels/cpu/transpose.h"

#if defined(__AVX512F__)
#define LANES 16
typedef __m512 vec;
#define SPLAT(x)          _mm512_set1_ps(x)
#define FUSED(a, b, c)    _mm512_fmadd_ps(a, b, c)
#elif defined(__AVX2__) && defined(__FMA__)
#define LANES 8
typedef __m256 vec;
#define SPLAT(x)          _mm256_set1_ps(x)
#define FUSED(a, b, c)    _mm256_fmadd_ps(a, b, c)
#else
#define LANES 4
typedef float vec __attribute__((vector_size(16)));
#define SPLAT(x)          ((vec){ (x), (x), (x), (x) })
#define FUSED(a, b, c)    ((a) * (b) + (c))
#endif

ALWAYS_INLINE vec vec_load(const float *p)
{
    vec v;

    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

ALWAYS_INLINE void vec_store(float *p, vec v)
{
    __builtin_memcpy(p, &v, sizeof v);
}

/* Prefetch the old sums of the tile. They are needed only at the end, and are not yet in a cache near the processor. */
ALWAYS_INLINE void sums_fetch(const float *c, int64_t ldc)
{
    for (int i = 0; i < PANEL_A; i++)
        for (int j = 0; j < PANEL_B; j += 16)
            __builtin_prefetch(c + i * ldc + j, 1);
}

ALWAYS_INLINE void sums_store(vec sum[PANEL_A][2], float *c, int64_t ldc, bool add)
{
    #pragma GCC unroll 12
    for (int i = 0; i < PANEL_A; i++)
        for (int j = 0; j < 2; j++) {
            float *to = c + i * ldc + j * LANES;
            vec v = sum[i][j];

            if (add)
                v += vec_load(to);
            vec_store(to, v);
        }
}

void panel_multiply(int64_t slots, struct panel_rows rows, const float *b, float *c, int64_t ldc, bool add)
{
    const float *a = rows.p;
    vec sum[PANEL_A][2];

    sums_fetch(c, ldc);
    for (int i = 0; i < PANEL_A; i++)
        sum[i][0] = sum[i][1] = SPLAT(0.0f);
    for (int64_t s = 0; s < slots; s++, a += rows.step, b += PANEL_B) {
        vec b0 = vec_load(b), b1 = vec_load(b + LANES);

        #pragma GCC unroll 12
        for (int i = 0; i < PANEL_A; i++) {
            vec x = SPLAT(a[i]);

            sum[i][0] = FUSED(x, b0, sum[i][0]);
            sum[i][1] = FUSED(x, b1, sum[i][1]);
        }
    }
    sums_store(sum, c, ldc, add);
}

#if PANEL_PAIRS
void panel_multiply_pairs(int64_t slots, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc, bool add)
{
    vec sum[PANEL_A][2];

    sums_fetch(c, ldc);
    for (int i = 0; i < PANEL_A; i++)
        sum[i][0] = sum[i][1] = SPLAT(0.0f);
    for (int64_t s = 0; s < slots; s++, a += PANEL_A, b += PANEL_B) {
        __m512bh b0 = (__m512bh)_mm512_loadu_si512(b), b1 = (__m512bh)_mm512_loadu_si512(b + LANES);

        #pragma GCC unroll 12
        for (int i = 0; i < PANEL_A; i++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[i]);

            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
        }
    }
    sums_store(sum, c, ldc, add);
}
#else
void panel_multiply_pairs(int64_t slots, const uint32_t *a, const uint32_t *b, float *c, int64_t ldc, bool add)
{
    (void)slots, (void)a, (void)b, (void)c, (void)ldc, (void)add;
    __builtin_unreachable();            /* pairs are never packed if the machine does not multiply bf16 pairs */
}
#endif

/* ---- packing ---- */

/* Returns the slot of one row: p[at] or, for pairs, p[at] and p[at + next]. */
ALWAYS_INLINE uint32_t slot_of(const void *p, int64_t at, int64_t next, enum form form)
{
    if (form == FORM_F32)
        return ((const uint32_t *)p)[at];
    if (form == FORM_BF16)
        return (uint32_t)((const uint16_t *)p)[at] << 16;
    if (form == FORM_F16)
        return f32_bits(f16_up(((const uint16_t *)p)[at]));
    return ((const uint16_t *)p)[at] | (uint32_t)((const uint16_t *)p)[at + next] << 16;
}

#ifdef __AVX2__
/*
 * Transpose as many slots of a whole panel as possible in squares of 8 or 16. Returns the number of slots transposed. A
 * transposition stores extra numbers after each slot, which the next slot overwrites. Therefore the last slot is never
 * transposed in this way, and rows that do not fill a square are processed first.
 */
ALWAYS_INLINE int64_t transpose_panel_squares(uint32_t *to, const void *p, int64_t ld, int64_t slots, int width,
                                              enum form form)
{
    int64_t step = form == FORM_PAIRS ? 2 : 1, done = 0;
    int odd = width % TRANSPOSE_SIDE;

    for (; done + TRANSPOSE_SIDE < slots; done += TRANSPOSE_SIDE) {
        const void *at = at_t(p, done * step, form_t(form));

        if (odd)
            turn_square(to + done * width + width - odd, width, at_t(at, (width - odd) * ld, form_t(form)), ld, odd,
                        form);
        for (int i = 0; i + TRANSPOSE_SIDE <= width; i += TRANSPOSE_SIDE)
            turn_square(to + done * width + i, width, at_t(at, i * ld, form_t(form)), ld, TRANSPOSE_SIDE, form);
    }
    return done;
}
#else
ALWAYS_INLINE int64_t transpose_panel_squares(uint32_t *to, const void *p, int64_t ld, int64_t slots, int width,
                                              enum form form)
{
    (void)to, (void)p, (void)ld, (void)slots, (void)width, (void)form;
    return 0;
}
#endif

void panel_transpose(float *to, int64_t to_step, const float *from, int64_t ld, int64_t rows, int64_t cols)
{
    int64_t i = 0, j;

#ifdef __AVX2__
    for (; i + 8 <= rows; i += 8) {
        for (j = 0; j + 8 <= cols; j += 8)
            transpose_8x8((uint32_t *)to + j * to_step + i, to_step, from + i * ld + j, ld, 8, FORM_F32);
        for (; j < cols; j++)
            for (int l = 0; l < 8; l++)
                to[j * to_step + i + l] = from[(i + l) * ld + j];
    }
#endif
    for (; i < rows; i++)
        for (j = 0; j < cols; j++)
            to[j * to_step + i] = from[i * ld + j];
}

/* Pack whole panels. The inner loops have constant bounds, so the compiler vectorises them. */
ALWAYS_INLINE void pack_full(uint32_t *to, struct operand x, int64_t slots, int width, enum form form)
{
    int64_t step = form == FORM_PAIRS ? 2 : 1,
            s = x.across ? 0 : transpose_panel_squares(to, x.p, x.ld, slots, width, form);

    for (to += s * width; s < slots; s++, to += width)
        for (int i = 0; i < width; i++)
            to[i] = x.across ? slot_of(x.p, s * step * x.ld + i, x.ld, form)
                  : slot_of(x.p, i * x.ld + s * step, 1, form);
}

/*
 * Pack panels at the edge of the operand. Missing rows are filled with zeros. If nk is odd, the second half of the last
 * pair is also filled with a zero.
 */
static void pack_edge(uint32_t *to, struct operand x, int64_t n, int64_t nk, int width, enum form form)
{
    int64_t step = form == FORM_PAIRS ? 2 : 1;

    for (int64_t k = 0; k < nk; k += step, to += width)
        for (int i = 0; i < width; i++) {
            int64_t at = x.across ? k * x.ld + i : i * x.ld + k;

            to[i] = i >= n ? 0 : form == FORM_PAIRS && k + 1 == nk ? ((const uint16_t *)x.p)[at]
                  : slot_of(x.p, at, x.across ? x.ld : 1, form);
        }
}

/* Returns the operand that begins at element (i, k) of x. */
ALWAYS_INLINE struct operand operand_from(struct operand x, int64_t i, int64_t k)
{
    x.p = at_t(x.p, x.across ? k * x.ld + i : i * x.ld + k, x.t);
    return x;
}

ALWAYS_INLINE void pack_form(uint32_t *to, struct operand x, int64_t n, int64_t nk, int width, enum form form)
{
    int64_t whole = form == FORM_PAIRS ? nk / 2 : nk;

    if (n < width) {
        pack_edge(to, x, n, nk, width, form);
        return;
    }
    if (x.across)
        pack_full(to, (struct operand){ x.p, x.ld, true, x.t }, whole, width, form);
    else
        pack_full(to, (struct operand){ x.p, x.ld, false, x.t }, whole, width, form);
    if (form == FORM_PAIRS && nk % 2)
        pack_edge(to + whole * width, operand_from(x, 0, nk - 1), n, 1, width, form);
}

/*
 * Pack panels of n rows. Operands whose rows are stored along are packed one panel at a time. Operands whose rows are
 * stored across are packed a few slots at a time, for all panels, so that each cache line that is loaded is used
 * completely.
 */
#define ACROSS_RUN 16

ALWAYS_INLINE void pack_all(uint32_t *to, struct operand x, int64_t n, int64_t nk, int width, enum form form)
{
    int64_t per_slot = form == FORM_PAIRS ? 2 : 1, slots = (nk + per_slot - 1) / per_slot;
    int64_t run = x.across ? ACROSS_RUN * per_slot : nk;

    for (int64_t k = 0; k < nk; k += run)
        for (int64_t i = 0; i < n; i += width)
            pack_form(to + i * slots + k / per_slot * width, operand_from(x, i, k), min_i64(width, n - i),
                      min_i64(run, nk - k), width, form);
}

ALWAYS_INLINE void pack_width(void *to, struct operand x, int64_t n, int64_t nk, int width, enum form form)
{
    if (form == FORM_F32)
        pack_all(to, x, n, nk, width, FORM_F32);
    else if (form == FORM_BF16)
        pack_all(to, x, n, nk, width, FORM_BF16);
    else if (form == FORM_F16)
        pack_all(to, x, n, nk, width, FORM_F16);
    else
        pack_all(to, x, n, nk, width, FORM_PAIRS);
}

void panels_pack(void *panels, const struct operand *x, struct operand_part part, int width, bool pairs)
{
    const struct operand from = operand_from(*x, part.i0, part.k0);
    enum form form = pairs ? FORM_PAIRS
                   : x->t == DTYPE_BF16 ? FORM_BF16 : x->t == DTYPE_F16 ? FORM_F16 : FORM_F32;

    if (width == PANEL_A)
        pack_width(panels, from, part.n, part.nk, PANEL_A, form);
    else
        pack_width(panels, from, part.n, part.nk, PANEL_B, form);
}
