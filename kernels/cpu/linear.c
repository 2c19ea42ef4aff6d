/*
 * linear.c - linear layers: the matrix product, and the operations on each result before it is rounded
 */
#include <string.h>

#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/half.h"

struct out {
    void *y;
    /* the input of GELU, which the forward pass writes and the gradient reads; NULL: it is not stored */
    void *pre;
    const void *bias;
    int64_t ld;
    bool add;
};

static struct operand operand(const void *p, int64_t ld, bool across, enum dtype t)
{
    return (struct operand){ p, ld, across, t };
}

/* ---- finishing a piece of a row ---- */

ALWAYS_INLINE void finish_plain(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n,
                                enum dtype t)
{
    void *y = out_t(o->y, row * o->ld + col, t);
    const void *bias = o->bias ? at_t(o->bias, col, t) : NULL;

    if (bias)
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            store_t(y, j, acc[j] + load_t(bias, j, t), t);
    else if (o->add)
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            store_t(y, j, load_t(y, j, t) + acc[j], t);
    else
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            store_t(y, j, acc[j], t);
}

ALWAYS_INLINE void finish_gelu(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n,
                               enum dtype t)
{
    void *y = out_t(o->y, row * o->ld + col, t);
    void *pre = o->pre ? out_t(o->pre, row * o->ld + col, t) : y;      /* y is used temporarily */

    if (o->bias)
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            store_t(pre, j, acc[j] + load_t(at_t(o->bias, col, t), j, t), t);
    else
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            store_t(pre, j, acc[j], t);
    /* GELU is computed from the rounded value. Recomputation only has the rounded value, and must give the same y. */
    #pragma omp simd
    for (int64_t j = 0; j < n; j++)
        store_t(y, j, gelu_f32(load_t(pre, j, t)), t);
}

ALWAYS_INLINE void finish_slope(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n,
                                enum dtype t)
{
    void *y = out_t(o->y, row * o->ld + col, t);
    const void *pre = at_t(o->pre, row * o->ld + col, t);

    #pragma omp simd
    for (int64_t j = 0; j < n; j++)
        store_t(y, j, acc[j] * gelu_slope_f32(load_t(pre, j, t)), t);
}

ALWAYS_INLINE void finish_grad(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n,
                               enum dtype t)
{
    void *y = out_t(o->y, row * o->ld + col, t);

    if (o->add)
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            put_grad(y, j, acc[j], true, t);
    else
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            put_grad(y, j, acc[j], false, t);
}

/*
 * The same functions for fp16, with n <= HALF_RUN. They compute in fp32, and round at the same places as the functions
 * above.
 */
ALWAYS_INLINE void half_plain(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n)
{
    void *y = out_t(o->y, row * o->ld + col, DTYPE_F16);
    float v[HALF_RUN], w[HALF_RUN];

    if (o->bias)
        f16_widen(w, at_t(o->bias, col, DTYPE_F16), n);
    else if (o->add)
        f16_widen(v, y, n);
    finish_plain(&(struct out){ .y = v, .bias = o->bias ? w : NULL, .add = o->add }, acc, 0, 0, n, DTYPE_F32);
    f16_narrow(y, v, n);
}

ALWAYS_INLINE void gelu_half(void *y, const void *pre, int64_t n)
{
    float v[HALF_RUN];

    f16_widen(v, pre, n);
    for (int64_t j = 0; j < n; j++)
        v[j] = gelu_f32(v[j]);
    f16_narrow(y, v, n);
}

ALWAYS_INLINE void half_gelu(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n)
{
    struct out pre = *o;

    pre.y = o->pre ? o->pre : o->y;
    pre.add = false;
    half_plain(&pre, acc, row, col, n);
    gelu_half(out_t(o->y, row * o->ld + col, DTYPE_F16), at_t(pre.y, row * o->ld + col, DTYPE_F16), n);
}

ALWAYS_INLINE void half_slope(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n)
{
    float v[HALF_RUN], pre[HALF_RUN];

    f16_widen(pre, at_t(o->pre, row * o->ld + col, DTYPE_F16), n);
    finish_slope(&(struct out){ .y = v, .pre = pre }, acc, 0, 0, n, DTYPE_F32);
    f16_narrow(out_t(o->y, row * o->ld + col, DTYPE_F16), v, n);
}

ALWAYS_INLINE void half_grad(const struct out *o, const float *acc, int64_t row, int64_t col, int64_t n)
{
    void *y = out_t(o->y, row * o->ld + col, DTYPE_F16);
    float v[HALF_RUN], w[HALF_RUN];

    memcpy(v, acc, (size_t)n * sizeof *v);
    f16_round_run(v, n);
    if (o->add) {
        f16_widen(w, y, n);
        for (int64_t j = 0; j < n; j++)
            v[j] += w[j];
    }
    f16_narrow(y, v, n);
}

/*
 * Define one function per type. gcc 12 would make a product 5 % slower if these functions were inlined into the loop.
 */
#define FINISH_T(name, t, dtype)                                                                                \
    static __attribute__((noinline)) void name##_row_##t(const struct out *o, const float *acc, int64_t row,    \
                                                         int64_t col, int64_t n)                                \
    {                                                                                                           \
        name(o, acc, row, col, n, dtype);                                                                       \
    }                                                                                                           \
    static void name##_##t(const void *o, const struct gemm_tile *x)                                            \
    {                                                                                                           \
        for (int64_t i = 0; i < x->rows; i++)                                                                   \
            name##_row_##t(o, x->acc + i * x->ld, x->row + i, x->col, x->cols);                                 \
    }
#define FINISH_HALF(name)                                                                                       \
    static void name##_f16(const void *o, const struct gemm_tile *x)                                            \
    {                                                                                                           \
        for (int64_t i = 0; i < x->rows; i++)                                                                   \
            for (int64_t j = 0; j < x->cols; j += HALF_RUN)                                                     \
                name(o, x->acc + i * x->ld + j, x->row + i, x->col + j, min_i64(HALF_RUN, x->cols - j));        \
    }
#define FINISH(name, half)                                                                                      \
    FINISH_T(name, bf16, DTYPE_BF16) FINISH_T(name, f32, DTYPE_F32) FINISH_HALF(half)
FINISH(finish_plain, half_plain)
FINISH(finish_gelu, half_gelu)
FINISH(finish_slope, half_slope)
FINISH(finish_grad, half_grad)
#define PICK(name, t) \
    ((t) == DTYPE_BF16 ? finish_##name##_bf16 : (t) == DTYPE_F16 ? half_##name##_f16 : finish_##name##_f32)

/* ---- the layers ---- */

static void linear(const struct kernel_linear *l, enum dtype t, struct dev_stream *s)
{
    struct out o = { .y = l->y, .bias = l->bias, .ld = l->n };
    struct gemm g = {
        .a = operand(l->x, l->k, false, t), .b = operand(l->w, l->k, false, t), .m = l->m, .n = l->n, .k = l->k,
        .finish = PICK(plain, t), .arg = &o,
    };

    (void)s;
    gemm_run(&g);
}

static void linear_gelu(const struct kernel_linear *l, enum dtype t, struct dev_stream *s)
{
    struct out o = { .y = l->y, .pre = l->pre, .bias = l->bias, .ld = l->n };
    struct gemm g = {
        .a = operand(l->x, l->k, false, t), .b = operand(l->w, l->k, false, t), .m = l->m, .n = l->n, .k = l->k,
        .finish = PICK(gelu, t), .arg = &o,
    };

    (void)s;
    gemm_run(&g);
}

static void linear_dx(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s)
{
    struct out o = { .y = l->dx, .ld = l->k, .add = l->add };
    struct gemm g = {
        .a = operand(l->dy, l->n, false, t), .b = operand(l->w, l->k, true, t), .m = l->m, .n = l->k, .k = l->n,
        .finish = PICK(plain, t), .arg = &o,
    };

    (void)s;
    gemm_run(&g);
}

static void linear_dx_gelu(const struct kernel_linear_dx *l, enum dtype t, struct dev_stream *s)
{
    struct out o = { .y = l->dx, .pre = (void *)l->pre, .ld = l->k };
    struct gemm g = {
        .a = operand(l->dy, l->n, false, t), .b = operand(l->w, l->k, true, t), .m = l->m, .n = l->k, .k = l->n,
        .finish = PICK(slope, t), .arg = &o,
    };

    (void)s;
    gemm_run(&g);
}

#define SUM_COLS 64                     /* columns per work item */
/* number of rows that are summed before their sum is added to the total; this shortens the chain of roundings */
#define SUM_ROWS 32

/* Compute the sums of columns col .. col + n of dy; n <= SUM_COLS. */
ALWAYS_INLINE void column_sums(float *sum, const struct kernel_linear_dw *l, int64_t col, int64_t n, enum dtype t)
{
    const void *dy = l->dy;
    const int64_t m = l->m, ld = l->n;

    for (int64_t row = 0; row < m; row += SUM_ROWS) {
        float part[SUM_COLS] = { 0 };

        for (int64_t i = row; i < min_i64(row + SUM_ROWS, m); i++)
            add_run(part, dy, i * ld + col, n, t);
        for (int64_t j = 0; j < n; j++)
            sum[j] += part[j];
    }
}

static void bias_back(const struct kernel_linear_dw *l, enum dtype t)
{
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t col = 0; col < l->n; col += SUM_COLS) {
        int64_t width = min_i64(SUM_COLS, l->n - col);
        float sum[SUM_COLS] = { 0 };

        WITH_T(t, column_sums(sum, l, col, width, T));
        for (int64_t j = 0; j < width; j++)
            WITH_T(l->grad_t ? t : DTYPE_F32, put_grad(l->dbias, col + j, sum[j], l->add, T));
    }
}

static void linear_dw(const struct kernel_linear_dw *l, enum dtype t, struct dev_stream *s)
{
    struct out o = { .y = l->dw, .ld = l->k, .add = l->add };
    struct gemm g = {
        .a = operand(l->dy, l->n, true, t), .b = operand(l->x, l->k, true, t), .m = l->n, .n = l->k, .k = l->m,
        .finish = PICK(grad, l->grad_t ? t : DTYPE_F32), .arg = &o,
    };

    (void)s;
    gemm_run(&g);
    if (l->dbias)
        bias_back(l, t);
}

#define GELU_RUN 4096

static void gelu(void *y, const void *pre, int64_t n, enum dtype t, struct dev_stream *s)
{
    (void)s;
    #pragma omp parallel for num_threads(cpu_threads) schedule(static)
    for (int64_t i = 0; i < n; i += GELU_RUN) {
        int64_t end = min_i64(i + GELU_RUN, n);

        if (t == DTYPE_F16)
            for (int64_t j = i; j < end; j += HALF_RUN)
                gelu_half(out_t(y, j, t), at_t(pre, j, t), min_i64(HALF_RUN, end - j));
        else
            WITH_T(t, {
                for (int64_t j = i; j < end; j++)
                    store_t(y, j, gelu_f32(load_t(pre, j, T)), T);
            });
    }
}

void linear_fill(struct kernels *k)
{
    k->linear = linear;
    k->linear_gelu = linear_gelu;
    k->linear_dx = linear_dx;
    k->linear_dx_gelu = linear_dx_gelu;
    k->linear_dw = linear_dw;
    k->gelu = gelu;
}
