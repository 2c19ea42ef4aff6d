/*
 * test_kernels.c - linear layers and flat buffers on every device, compared with fp64
 *
 * A sum of n fp32 products in any order has an error of at most n * 2^-24 times the sum of their sizes (Higham,
 * "Accuracy and Stability of Numerical Algorithms", 3.1). The rounding to T adds its own error.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/kernels/kernel_test.h"
#include "tests/lib/kernels/ref_kernels.h"

static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
#define N_TYPES 3

/*
 * Around the edges of panels (4..32), of cuts of k (256, 512), of chunks of rows (192) and of blocks of columns
 * (1024)
 */
static const struct size { int64_t m, n, k; } sizes[] = {
    { 1, 1, 1 }, { 5, 7, 3 }, { 12, 32, 2 }, { 33, 65, 17 }, { 97, 130, 259 }, { 64, 96, 512 }, { 20, 50, 1031 },
    { 390, 33, 40 }, { 13, 1030, 21 }, { 200, 1027, 5 }, { 7, 5, 1200 },
};
#define N_SIZES (sizeof sizes / sizeof *sizes)

static double *sizes_of(const double *x, int64_t n)
{
    double *y = kt_zeros(n);

    for (int64_t i = 0; i < n; i++)
        y[i] = fabs(x[i]);
    return y;
}

/* n_terms * 2^-24 * (|a| |b|^T + |c|): what rounding may do to a b^T + c */
static double *slack_of(const double *a, const double *b, const double *c, int64_t m, int64_t n, int64_t k)
{
    double *slack = kt_zeros(m * n);

    ref_linear(slack, sizes_of(a, m * k), sizes_of(b, n * k), c ? sizes_of(c, n) : NULL, m, n, k);
    for (int64_t i = 0; i < m * n; i++)
        slack[i] *= (double)(k + 2) * EPS_F32;
    return slack;
}

static double *transposed(const double *x, int64_t rows, int64_t cols)
{
    double *y = kt_zeros(rows * cols);

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            y[j * rows + i] = x[i * cols + j];
    return y;
}

/*
 * The GPU's library computes gelu of pre before it is rounded, and rounds a product before it takes the
 * slope: one rounding of T elsewhere than the formula has it. A slope of gelu is at most 1.13.
 */
static bool fused_twice(enum dtype t)
{
    return t != DTYPE_F32 && strcmp(kt->dev->name, "cuda") == 0;
}

/* ---- forward ---- */

static void check_linear(struct size z, enum dtype t, bool with_bias)
{
    double *x = kt_random(z.m * z.k, -1, 1), *w = kt_random(z.n * z.k, -1, 1), *bias = kt_random(z.n, -1, 1);
    void *dx = kt_in(x, z.m * z.k, t), *dw = kt_in(w, z.n * z.k, t), *db = kt_in(bias, z.n, t);
    void *y = kt_out(z.m * z.n, t), *act = kt_out(z.m * z.n, t), *pre = kt_out(z.m * z.n, t);
    void *alone = kt_out(z.m * z.n, t), *again = kt_out(z.m * z.n, t);
    double *want = kt_zeros(z.m * z.n);
    double *early = kt_zeros(z.m * z.n), *slack = kt_zeros(z.m * z.n);
    const double *b = with_bias ? bias : NULL, *got, *got_pre;

    if (!with_bias)
        db = NULL;
    ref_linear(want, x, w, b, z.m, z.n, z.k);
    kt->linear(&(struct kernel_linear){ .m = z.m, .n = z.n, .k = z.k, .x = dx, .w = dw, .bias = db, .y = y }, t, NULL);
    got = kt_get(y, z.m * z.n, t);
    kt_within("linear", got, want, slack_of(x, w, b, z.m, z.n, z.k), z.m * z.n, kt_eps(t));

    kt->linear_gelu(&(struct kernel_linear){
        .m = z.m, .n = z.n, .k = z.k, .x = dx, .w = dw, .bias = db, .y = act, .pre = pre,
    }, t, NULL);
    kt->linear_gelu(&(struct kernel_linear){
        .m = z.m, .n = z.n, .k = z.k, .x = dx, .w = dw, .bias = db, .y = alone,
    }, t, NULL);
    kt->gelu(again, pre, z.m * z.n, t, NULL);
    got_pre = kt_get(pre, z.m * z.n, t);
    kt_close("linear_gelu's pre", got_pre, got, z.m * z.n, 0, 0);
    /* 1e-14 is what tanh in fp64 leaves of 1 + tanh, times pre. */
    for (int64_t i = 0; i < z.m * z.n; i++) {
        want[i] = ref_gelu(got_pre[i]);
        early[i] = fused_twice(t) ? 1.13 * kt_eps(t) * fabs(got_pre[i]) : 0;
        slack[i] = 1e-14 + early[i];
    }
    /* As in test_gelu_range() */
    got = kt_get(act, z.m * z.n, t);
    kt_within("linear_gelu", got, want, slack, z.m * z.n, kt_eps(t) + 3 * 87 * EPS_F32);
    kt_within("linear_gelu without pre", kt_get(alone, z.m * z.n, t), got, early, z.m * z.n,
              fused_twice(t) * kt_eps(t));
    kt_within("gelu of pre", kt_get(again, z.m * z.n, t), got, early, z.m * z.n, fused_twice(t) * 2 * kt_eps(t));
}

static void test_linear(void)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (int j = 0; j < 2 * N_TYPES; j++)
            check_linear(sizes[i], types[j / 2], j % 2);
    /* So long a sum that blocks have 127 columns or fewer */
    for (int j = 0; j < N_TYPES; j++)
        check_linear((struct size){ 1, 140, 33000 }, types[j], true);
}

/* ---- back ---- */

static void check_dx(struct size z, enum dtype t)
{
    double *dy = kt_random(z.m * z.n, -1, 1), *w = kt_random(z.n * z.k, -1, 1), *pre = kt_random(z.m * z.k, -4, 4);
    double *old = kt_random(z.m * z.k, -1, 1), *want = kt_zeros(z.m * z.k), *slack;
    void *d_dy = kt_in(dy, z.m * z.n, t), *d_w = kt_in(w, z.n * z.k, t), *d_pre = kt_in(pre, z.m * z.k, t);
    void *dx = kt_out(z.m * z.k, t), *dx_gelu = kt_out(z.m * z.k, t), *dx_add = kt_in(old, z.m * z.k, t);

    ref_linear_back(want, NULL, NULL, dy, NULL, w, z.m, z.n, z.k);
    slack = slack_of(dy, transposed(w, z.n, z.k), NULL, z.m, z.k, z.n);
    kt->linear_dx(&(struct kernel_linear_dx){ .m = z.m, .n = z.n, .k = z.k, .dy = d_dy, .w = d_w, .dx = dx }, t, NULL);
    kt_within("linear_dx", kt_get(dx, z.m * z.k, t), want, slack, z.m * z.k, kt_eps(t));

    for (int64_t i = 0; i < z.m * z.k; i++) {
        want[i] += old[i];
        slack[i] += EPS_F32 * fabs(old[i]);
    }
    kt->linear_dx(&(struct kernel_linear_dx){
        .m = z.m, .n = z.n, .k = z.k, .dy = d_dy, .w = d_w, .dx = dx_add, .add = true,
    }, t, NULL);
    kt_within("linear_dx, added", kt_get(dx_add, z.m * z.k, t), want, slack, z.m * z.k, kt_eps(t));

    /* The slope is at most 1.13 and its terms, up to 3, are each good to 64 ulp. */
    for (int64_t i = 0; i < z.m * z.k; i++) {
        double sum = want[i] - old[i];

        want[i] = sum * ref_gelu_slope(pre[i]);
        slack[i] = 1.2 * slack[i] + fabs(sum) * 3 * 64 * EPS_F32;
    }
    kt->linear_dx_gelu(&(struct kernel_linear_dx){
        .m = z.m, .n = z.n, .k = z.k, .dy = d_dy, .w = d_w, .pre = d_pre, .dx = dx_gelu,
    }, t, NULL);
    kt_within("linear_dx_gelu", kt_get(dx_gelu, z.m * z.k, t), want, slack, z.m * z.k,
              kt_eps(t) * (1 + fused_twice(t)));
}

static void check_dw(struct size z, struct kt_types of)
{
    const enum dtype t = of.t, g = kt_grad(of);
    double *dy = kt_random(z.m * z.n, -1, 1), *x = kt_random(z.m * z.k, -1, 1);
    double *want = kt_zeros(z.n * z.k), *want_bias = kt_zeros(z.n), *slack;
    double *old = kt_random(z.n * z.k, -1, 1), *old_bias = kt_random(z.n, -1, 1);
    void *d_dy = kt_in(dy, z.m * z.n, t), *d_x = kt_in(x, z.m * z.k, t);
    void *dw = kt_out(z.n * z.k, g), *dbias = kt_out(z.n, g), *no_bias = kt_out(z.n * z.k, g);
    void *dw_add = kt_in(old, z.n * z.k, g), *dbias_add = kt_in(old_bias, z.n, g);
    double bias_slack = (double)(z.m + 1) * EPS_F32 * (double)(z.m + 1);

    ref_linear_back(NULL, want, want_bias, dy, x, NULL, z.m, z.n, z.k);
    slack = slack_of(transposed(dy, z.m, z.n), transposed(x, z.m, z.k), NULL, z.n, z.k, z.m);
    kt->linear_dw(&(struct kernel_linear_dw){
        .m = z.m, .n = z.n, .k = z.k, .dy = d_dy, .x = d_x, .dw = dw, .dbias = dbias, .grad_t = of.grad_t,
    }, t, NULL);
    kt->linear_dw(&(struct kernel_linear_dw){
        .m = z.m, .n = z.n, .k = z.k, .dy = d_dy, .x = d_x, .dw = no_bias, .grad_t = of.grad_t,
    }, t, NULL);
    kt_within("linear_dw", kt_get(dw, z.n * z.k, g), want, slack, z.n * z.k, kt_eps(g));
    kt_within("linear_dw alone", kt_get(no_bias, z.n * z.k, g), want, slack, z.n * z.k, kt_eps(g));
    kt_close("dbias", kt_get(dbias, z.n, g), want_bias, z.n, bias_slack, kt_eps(g));

    /* What is added is rounded, then the sum. */
    for (int64_t i = 0; i < z.n * z.k; i++) {
        slack[i] += kt_eps(g) * fabs(want[i]);
        want[i] += old[i];
    }
    for (int64_t i = 0; i < z.n; i++) {
        bias_slack = fmax(bias_slack, (double)(z.m + 1) * EPS_F32 * (double)(z.m + 1) + kt_eps(g) * fabs(want_bias[i]));
        want_bias[i] += old_bias[i];
    }
    kt->linear_dw(&(struct kernel_linear_dw){
        .m = z.m, .n = z.n, .k = z.k, .dy = d_dy, .x = d_x, .dw = dw_add, .dbias = dbias_add, .add = true,
        .grad_t = of.grad_t,
    }, t, NULL);
    kt_within("linear_dw, added", kt_get(dw_add, z.n * z.k, g), want, slack, z.n * z.k, 2 * kt_eps(g));
    kt_close("dbias, added", kt_get(dbias_add, z.n, g), want_bias, z.n, bias_slack, 2 * kt_eps(g));
}

static void test_linear_back(void)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (int j = 0; j < KT_TYPES; j++) {
            if (!kt_types[j].grad_t)
                check_dx(sizes[i], kt_types[j].t);
            check_dw(sizes[i], kt_types[j]);
        }
}

/* No tokens: gradients that are overwritten become zeros. */
static void test_no_tokens(void)
{
    double zeros[35] = { 0 };
    void *dw = kt_out(35, DTYPE_F32), *dbias = kt_out(5, DTYPE_F32), *none = kt_out(1, DTYPE_F32);

    kt->linear_dw(&(struct kernel_linear_dw){
        .m = 0, .n = 5, .k = 7, .dy = none, .x = none, .dw = dw, .dbias = dbias,
    }, DTYPE_F32, NULL);
    kt->linear(&(struct kernel_linear){ .m = 0, .n = 5, .k = 7, .x = none, .w = dw, .y = none }, DTYPE_F32, NULL);
    kt_close("dw", kt_get(dw, 35, DTYPE_F32), zeros, 35, 0, 0);
    kt_close("dbias", kt_get(dbias, 5, DTYPE_F32), zeros, 5, 0, 0);
}

/* One NaN or infinity in x shows in its row of y, and in no other. */
static void test_not_finite(void)
{
    enum { M = 100, N = 70, K = 300 };

    for (int i = 0; i < 2 * N_TYPES; i++) {
        enum dtype t = types[i / 2];
        double *x = kt_random(M * K, -1, 1), *w = kt_random(N * K, -1, 1), *y;
        void *dw = kt_in(w, N * K, t), *out = kt_out(M * N, t), *act = kt_out(M * N, t);

        x[37 * K + 299] = i % 2 ? INFINITY : NAN;
        void *dx = kt_in(x, M * K, t);

        kt->linear(&(struct kernel_linear){ .m = M, .n = N, .k = K, .x = dx, .w = dw, .y = out }, t, NULL);
        y = kt_get(out, M * N, t);
        for (int j = 0; j < M * N; j++)
            if (isfinite(y[j]) != (j / N != 37))
                fail_msg("%s: element %d is %g", kt_name, j, y[j]);
        if (i % 2)
            continue;
        kt->gelu(act, out, M * N, t, NULL);
        y = kt_get(act, M * N, t);
        for (int j = 0; j < M * N; j++)
            if (isfinite(y[j]) != (j / N != 37))
                fail_msg("%s: gelu: element %d is %g", kt_name, j, y[j]);
    }
}

/* ---- GELU (docs/training.md 1.6): single numbers, and the whole range ---- */

static void test_gelu_vectors(void)
{
    static const double x[] = { -3, -1, 0.5, 1, 2 };
    static const double want[] = { -0.003637392, -0.158808010, 0.345714010, 0.841191990, 1.954597694 };
    static const double slope[] = { -0.011584167, -0.082964084, 0.867369903, 1.082964084, 1.086099257 };
    double in[5], one[5] = { 1, 1, 1, 1, 1 }, unit[1] = { 1 };

    memcpy(in, x, sizeof x);
    void *dx = kt_in(in, 5, DTYPE_F32), *y = kt_out(5, DTYPE_F32), *d = kt_out(5, DTYPE_F32);

    kt->gelu(y, dx, 5, DTYPE_F32, NULL);
    /* dy = 1 through a 1 x 1 weight of 1: what comes out is the slope. */
    kt->linear_dx_gelu(&(struct kernel_linear_dx){
        .m = 5, .n = 1, .k = 1, .dy = kt_in(one, 5, DTYPE_F32), .w = kt_in(unit, 1, DTYPE_F32), .pre = dx, .dx = d,
    }, DTYPE_F32, NULL);
    kt_close("gelu", kt_get(y, 5, DTYPE_F32), want, 5, 2e-9, 4e-7);
    kt_close("gelu's slope", kt_get(d, 5, DTYPE_F32), slope, 5, 2e-9, 4e-7);
}

static void test_gelu_range(void)
{
    enum { N = 40001 };
    double *x = kt_zeros(N), *want = kt_zeros(N), *slope = kt_zeros(N), *one = kt_zeros(N), *slack = kt_zeros(N);
    double unit[1] = { 1 };

    for (int i = 0; i < N; i++) {
        x[i] = (i - 20000) * 5e-4;
        one[i] = 1;
    }
    x[0] = -1e30, x[1] = -300, x[N - 2] = 300, x[N - 1] = 1e30;
    void *dx = kt_in(x, N, DTYPE_F32), *y = kt_out(N, DTYPE_F32), *d = kt_out(N, DTYPE_F32);

    for (int i = 0; i < N; i++) {
        want[i] = ref_gelu(x[i]);
        slope[i] = fabs(x[i]) > 100 ? x[i] > 0 : ref_gelu_slope(x[i]);
        /*
         * The exponent 2u, up to 87, is good to 3 roundings, so e^2u to 3 * 87 of them; beyond,
         * gelu is 0 but for 1e-37 |x|. tanh in fp64 itself loses 1e-16.
         */
        slack[i] = 2e-16 * fabs(x[i]) + 2e-38 * fabs(x[i]);
    }
    kt->gelu(y, dx, N, DTYPE_F32, NULL);
    kt->linear_dx_gelu(&(struct kernel_linear_dx){
        .m = N, .n = 1, .k = 1, .dy = kt_in(one, N, DTYPE_F32), .w = kt_in(unit, 1, DTYPE_F32), .pre = dx, .dx = d,
    }, DTYPE_F32, NULL);
    kt_within("gelu", kt_get(y, N, DTYPE_F32), want, slack, N, 3 * 87 * EPS_F32);
    kt_close("gelu's slope", kt_get(d, N, DTYPE_F32), slope, N, 64 * EPS_F32, 3 * 87 * EPS_F32);
}

/* ---- flat buffers ---- */

static const int64_t lengths[] = { 0, 1, 255, 4095, 4096, 4097, 3 * 4096 + 7 };
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

static double number_at(const void *dev)
{
    return *kt_get(dev, 1, DTYPE_F64);
}

static void test_sums(void)
{
    for (size_t l = 0; l < N_LENGTHS; l++) {
        int64_t n = lengths[l];
        double *x = kt_random(n, -1, 1), *w = kt_random(n, 0, 1), squares = 0, sum = 0, weighted = 0, got;
        void *dx = kt_in(x, n, DTYPE_F32), *dw = kt_in(w, n, DTYPE_F32), *out = kt_out(1, DTYPE_F64);
        void *tmp = kt_scratch((uint64_t)kt->sumsq_scratch(n) * 8);

        for (int64_t i = 0; i < n; i++) {
            squares += x[i] * x[i];
            sum += x[i];
            weighted += x[i] * w[i];
        }
        /* fp64 sums in another order: n * 2^-53 of the sum of sizes, which is at most n. */
        kt->sumsq(out, dx, n, tmp, NULL);
        got = number_at(out);
        kt_close("sumsq", &got, &squares, 1, 1e-16 * (double)(n * n), 0);
        kt->weighted_sum(out, dx, NULL, n, NULL);
        got = number_at(out);
        kt_close("sum", &got, &sum, 1, 1e-16 * (double)(n * n), 0);
        kt->weighted_sum(out, dx, dw, n, NULL);
        got = number_at(out);
        kt_close("weighted sum", &got, &weighted, 1, 1e-16 * (double)(n * n), 0);
    }
}

/* On one run of n elements. */
static void adamw(float *p, float *m, float *v, const float *g, void *w, int64_t n, const struct kernel_adamw *step,
                  enum dtype t)
{
    struct err e = {0};
    struct kernel_runs *r = kt->runs_new(&(struct kernel_run){ .n = n, .decay = 0.1f }, 1, &e);

    assert_non_null(r);
    kt->adamw(&(struct kernel_adamw_buffers){ .p = p, .m = m, .v = v, .g = g, .w = w }, r, step, t, NULL);
    kt->dev->stream_sync(NULL);
    kt->runs_free(r);
}

static void check_adamw(int64_t n, enum dtype t)
{
    struct kernel_adamw step = { 1e-3f, 0.9f, 0.95f, 1e-8f, 1 - 0.9f * 0.9f, 1 - 0.95f * 0.95f, 0.37f };
    double *p = kt_random(n, -1, 1), *m = kt_random(n, -0.1, 0.1), *v = kt_random(n, 0.001, 0.01);
    double *g = kt_random(n, -1, 1), *got;
    void *dp = kt_in(p, n, DTYPE_F32), *dm = kt_in(m, n, DTYPE_F32), *dv = kt_in(v, n, DTYPE_F32);
    void *dg = kt_in(g, n, DTYPE_F32), *w = kt_out(n, t), *ds = kt_bytes(&step, sizeof step);

    adamw(dp, dm, dv, dg, w, n, ds, t);
    for (int64_t i = 0; i < n; i++)
        p[i] = ref_adamw(p[i], &m[i], &v[i], g[i], 0.1f, &step);
    got = kt_get(dp, n, DTYPE_F32);
    /* The update is lr times at most 4 and is good to 10 roundings; p itself to one. */
    kt_close("p", got, p, n, 10 * EPS_F32 * 4e-3, EPS_F32);
    kt_close("m", kt_get(dm, n, DTYPE_F32), m, n, 4 * EPS_F32 * 0.2, 0);
    kt_close("v", kt_get(dv, n, DTYPE_F32), v, n, 4 * EPS_F32 * 0.1, 0);
    for (int64_t i = 0; i < n; i++)
        p[i] = ref_round(got[i], t);
    kt_close("w", kt_get(w, n, t), p, n, 0, 0);
}

static void test_adamw(void)
{
    for (size_t l = 0; l < N_LENGTHS; l++)
        for (int j = 0; j < N_TYPES; j++)
            check_adamw(lengths[l], types[j]);
}

/* Runs of several sizes, with gaps: each as if alone, and nothing between them. */
static void check_runs(struct kt_types of)
{
    const enum dtype t = of.t, gt = kt_grad(of);
    static const int64_t size[] = { 1, 40000, 8, 0, 5000, 33 };
    enum { N = 6 };
    const struct kernel_adamw step = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.19f, 0.0975f, 0.37f };
    struct kernel_run run[N];
    int64_t n = 8;
    struct err e = {0};

    for (int i = 0; i < N; i++) {
        run[i] = (struct kernel_run){ n, size[i], n + 16, N - 1 - i, i % 2 ? 0.1f : 0 };
        n += (size[i] + 7) / 8 * 8 + 8 * i;
    }
    double *p = kt_random(n, -1, 1), *g = kt_random(n, -1, 1), *zero = kt_random(n + 16, 0, 0);
    void *dp = kt_in(p, n, DTYPE_F32), *dg = kt_in(g, n, gt);
    void *dm = kt_in(zero, n, DTYPE_F32), *dv = kt_in(zero, n, DTYPE_F32), *w = kt_in(zero, n + 16, t);
    void *ds = kt_bytes(&step, sizeof step), *sums = kt_out(N, DTYPE_F64);
    struct kernel_runs *r = kt->runs_new(run, N, &e);
    double want[N], *got;

    assert_non_null(r);
    kt->sumsq_runs(sums, dg, gt, r, NULL);
    kt->adamw(&(struct kernel_adamw_buffers){
        .p = dp, .m = dm, .v = dv, .g = dg, .w = w, .grad_t = of.grad_t,
    }, r, ds, t, NULL);
    for (int i = 0; i < N; i++) {
        double *m = kt_random(size[i] + 1, 0, 0), *v = kt_random(size[i] + 1, 0, 0);

        want[N - 1 - i] = 0;
        for (int64_t j = 0; j < size[i]; j++) {
            int64_t at = run[i].at + j;

            want[N - 1 - i] += g[at] * g[at];
            p[at] = ref_adamw(p[at], &m[j], &v[j], g[at], run[i].decay, &step);
        }
    }
    kt_close("sums", kt_get(sums, N, DTYPE_F64), want, N, 1e-16 * 4e4 * 4e4, 0);
    got = kt_get(dp, n, DTYPE_F32);
    kt_close("p", got, p, n, 10 * EPS_F32 * 4e-3, EPS_F32);
    double *weights = kt_random(n + 16, 0, 0);
    for (int i = 0; i < N; i++)
        for (int64_t j = 0; j < size[i]; j++)
            weights[run[i].w_at + j] = ref_round(got[run[i].at + j], t);
    kt_close("w", kt_get(w, n + 16, t), weights, n + 16, 0, 0);
    kt->runs_free(r);
}

static void test_runs(void)
{
    for (int i = 0; i < KT_TYPES; i++)
        check_runs(kt_types[i]);
}

/* As the contract has it, from bytes. */
static uint64_t digest(const unsigned char *x, int64_t bytes)
{
    uint64_t sum = 0;

    for (int64_t i = 0; 8 * i < bytes; i++) {
        uint64_t u = 0;

        for (int b = 0; b < 8 && 8 * i + b < bytes; b++)
            u |= (uint64_t)x[8 * i + b] << 8 * b;
        u = (u ^ (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
        u = (u ^ u >> 32) * 0x94d049bb133111ebu;
        sum += u ^ u >> 29;
    }
    return sum;
}

/* Runs one after the other, written in another order; a place of eight elements and more lies between them. */
static struct kernel_runs *digest_list(struct kernel_run *run, const int64_t *size, int n)
{
    struct err e = {0};
    struct kernel_runs *r;
    int64_t at = 8;

    for (int i = 0; i < n; i++) {
        run[i] = (struct kernel_run){ .at = at, .n = size[i], .out = (i + 3) % n };
        at += (size[i] + 7) / 8 * 8 + 8;
    }
    r = kt->runs_new(run, n, &e);
    assert_non_null(r);
    return r;
}

static void same_digests(const unsigned char *x, enum dtype t, const struct kernel_run *run, int n, const uint64_t *got)
{
    for (int i = 0; i < n; i++)
        if (got[run[i].out] != digest(x + run[i].at * dtype_size(t), run[i].n * dtype_size(t)))
            fail_msg("%s: run %d of %lld elements: %#llx", dtype_name(t), i, (long long)run[i].n,
                     (unsigned long long)got[run[i].out]);
}

/*
 * Runs around the edges of words, loads and blocks; any bit shows, and none between them. Two buffers that have
 * nothing in common, and one without runs before the second.
 */
static void check_digest(enum dtype t, enum dtype other)
{
    static const int64_t size[] = { 1, 3, 0, 16384, 8, 40001, 5 }, others[] = { 20011, 9, 0, 4096, 3 };
    enum { N = 7, M = 5, ALL = N + 1 + M, BYTES = 1 << 18, HIT = 5 };
    struct kernel_run run[N], more[M];
    static unsigned char x[2][BYTES];
    uint64_t got[ALL], *out = kt_out(ALL, DTYPE_F64);
    void *d[2] = { kt_scratch(BYTES), kt_scratch(BYTES) };
    struct kernel_runs *r = digest_list(run, size, N), *none = digest_list(NULL, NULL, 0),
                       *q = digest_list(more, others, M);
    const struct kernel_digests of = { {        /* of no run: between them */
        { d[0], t, r, 0 }, { d[0], t, none, N }, { d[1], other, q, N + 1 },
    }, 3 };

    for (int i = 0; i < 2 * BYTES; i++)
        x[i / BYTES][i % BYTES] = (unsigned char)(i * 2654435761u >> 13);
    for (int hit = 0; hit < 40; hit++) {
        const int64_t byte = run[HIT].at * dtype_size(t) + hit * 1999 * dtype_size(t) / 2;

        x[0][hit % 2 ? byte : 7] ^= (unsigned char)(1 << hit % 8);
        for (int i = 0; i < 2; i++)
            kt->dev->copy(d[i], x[i], BYTES, NULL);
        kt->digest_runs(out, ALL, &of, NULL);
        kt->dev->copy(got, out, sizeof got, NULL);
        kt->dev->stream_sync(NULL);
        assert_int_equal(got[N], 0);
        same_digests(x[0], t, run, N, got);
        same_digests(x[1], other, more, M, got + N + 1);
    }
    kt->runs_free(r);
    kt->runs_free(none);
    kt->runs_free(q);
}

static void test_digest(void)
{
    check_digest(DTYPE_BF16, DTYPE_F32);
    check_digest(DTYPE_F32, DTYPE_BF16);
}

/* The first infinity or NaN of the runs, whatever lies between or after them. */
static void test_first_not_finite(void)
{
    static const struct { int64_t at; double x; int64_t want; } add[] = {
        { 7, INFINITY, -1 }, { 50004, NAN, -1 },                        /* before the runs, and between them */
        { 60001, NAN, 60001 }, { 50003, -INFINITY, 50003 }, { 9000, INFINITY, 9000 }, { 8, NAN, 8 },
    };
    static const struct kernel_run run[] = { { .at = 60000, .n = 9 }, { .at = 8, .n = 49996 } };
    enum { N = 60016 };
    double *x = kt_random(N, -1, 1);
    int64_t *d = kt_out(1, DTYPE_F64), got;
    struct err e = {0};
    struct kernel_runs *r = kt->runs_new(run, 2, &e);

    assert_non_null(r);
    for (size_t i = 0; i < 2 * sizeof add / sizeof *add; i++) {
        const enum dtype t = i % 2 ? DTYPE_F16 : DTYPE_F32;

        x[add[i / 2].at] = add[i / 2].x;
        kt->first_not_finite(d, kt_in(x, N, t), t, r, NULL);
        kt->dev->copy(&got, d, sizeof got, NULL);
        kt->dev->stream_sync(NULL);
        assert_int_equal(got, add[i / 2].want);
    }
    kt->runs_free(r);
}

/* docs/training.md 3.5 worked out: three steps from p = 1, with the counter beginning at 1 and at 2. */
static void test_adamw_vectors(void)
{
    static const double want[2][3] = { { 0.9988999963, 0.9991635084, 0.9992008209 },
                                       { 0.9991650581, 0.9993732572, 0.9993966222 } };
    static const double g[] = { 0.1, -0.2, 0.05 };

    for (int first = 1; first <= 2; first++) {
        double one[1] = { 1 }, zero[1] = { 0 }, m_end = -0.0049, v_end = 0.00247625;
        void *p = kt_in(one, 1, DTYPE_F32), *m = kt_in(zero, 1, DTYPE_F32), *v = kt_in(zero, 1, DTYPE_F32);
        void *w = kt_out(1, DTYPE_F32);

        for (int i = 0; i < 3; i++) {
            struct kernel_adamw step = { 1e-3f, 0.9f, 0.95f, 1e-8f, (float)(1 - pow(0.9, first + i)),
                                         (float)(1 - pow(0.95, first + i)), 1 };
            double gi[1] = { g[i] };

            adamw(p, m, v, kt_in(gi, 1, DTYPE_F32), w, 1, kt_bytes(&step, sizeof step), DTYPE_F32);
            /* The numbers are given with ten digits, p is fp32. */
            kt_close("p", kt_get(p, 1, DTYPE_F32), &want[first - 1][i], 1, 5e-11, 2 * EPS_F32);
        }
        kt_close("m", kt_get(m, 1, DTYPE_F32), &m_end, 1, 0, 8 * EPS_F32);
        kt_close("v", kt_get(v, 1, DTYPE_F32), &v_end, 1, 0, 8 * EPS_F32);
    }
}

static void test_cast(void)
{
    static const uint32_t odd[] = { 0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0xff800000,
                                    0x7fc00000, 0x7f800001, 0x00000001, 0x80000000, 0x7fffffff };
    static const uint16_t want[] = { 0x3f80, 0x3f82, 0x3f81, 0x7f80, 0xff80, 0x7fc0, 0x7fc0, 0, 0x8000, 0x7fff };
    uint16_t half[10];
    void *d = kt_out(10, DTYPE_BF16);

    kt->cast(d, DTYPE_BF16, kt_bytes(odd, sizeof odd), DTYPE_F32, 10, NULL);
    kt->dev->copy(half, d, sizeof half, NULL);
    kt->dev->stream_sync(NULL);
    assert_memory_equal(half, want, sizeof want);

    for (size_t l = 0; l < N_LENGTHS; l++) {
        int64_t n = lengths[l];
        double *x = kt_random(n, -1, 1), *same;
        void *dx = kt_in(x, n, DTYPE_F32), *h = kt_out(n, DTYPE_BF16);
        void *up = kt_out(n, DTYPE_F32), *y = kt_out(n, DTYPE_F32);

        kt->cast(h, DTYPE_BF16, dx, DTYPE_F32, n, NULL);
        kt->cast(up, DTYPE_F32, h, DTYPE_BF16, n, NULL);
        kt->cast(y, DTYPE_F32, dx, DTYPE_F32, n, NULL);
        same = kt_get(h, n, DTYPE_BF16);
        kt_close("to bf16", same, x, n, 0, EPS_BF16);
        kt_close("and back", kt_get(up, n, DTYPE_F32), same, n, 0, 0);
        kt_close("f32 to f32", kt_get(y, n, DTYPE_F32), x, n, 0, 0);
    }
}

/* Both ways between fp16 and fp32, of all numbers of fp16, of those half way between two, and of those next to them. */
static void test_f16_exact(void)
{
    enum { N = 0x10000, FINITE = 0x7c00, EACH = 4 };
    uint16_t all[N], *back = (void *)kt_zeros(N / 4 + 1), *down = (void *)kt_zeros(FINITE * EACH / 4 + 1);
    float *up = (void *)kt_zeros(N / 2 + 1), *between = (void *)kt_zeros(FINITE * EACH / 2 + 1);
    void *d_up = kt_out(N, DTYPE_F32), *d_back = kt_out(N, DTYPE_F16), *d_down = kt_out(FINITE * EACH, DTYPE_F16);

    for (int i = 0; i < N; i++)
        all[i] = (uint16_t)i;
    kt->cast(d_up, DTYPE_F32, kt_bytes(all, sizeof all), DTYPE_F16, N, NULL);
    kt->cast(d_back, DTYPE_F16, d_up, DTYPE_F32, N, NULL);
    /* 65536 stands for infinity where a number is half way to it. */
    for (int i = 0; i < FINITE; i++) {
        double low = dtype_value(DTYPE_F16, &all[i]),
               high = i + 1 == FINITE ? 65536 : dtype_value(DTYPE_F16, &all[i + 1]);
        float half = (float)((low + high) / 2);
        float x[EACH] = { half, nextafterf(half, 0), nextafterf(half, INFINITY), -half };

        memcpy(between + EACH * i, x, sizeof x);
    }
    kt->cast(d_down, DTYPE_F16, kt_bytes(between, FINITE * EACH * 4), DTYPE_F32, FINITE * EACH, NULL);
    kt->dev->copy(up, d_up, N * 4, NULL);
    kt->dev->copy(back, d_back, N * 2, NULL);
    kt->dev->copy(down, d_down, FINITE * EACH * 2, NULL);
    kt->dev->stream_sync(NULL);
    for (int i = 0; i < N; i++) {
        double want = dtype_value(DTYPE_F16, &all[i]);

        if (isnan(want) ? !isnan(up[i]) || (back[i] & 0x7fff) <= FINITE : !(up[i] == want) || back[i] != all[i])
            fail_msg("%s: %#x is %g and %#x again", kt_name, i, (double)up[i], back[i]);
    }
    for (int i = 0; i < FINITE; i++) {
        const int even = i + i % 2;
        const uint16_t want[EACH] = { (uint16_t)even, (uint16_t)i, (uint16_t)(i + 1), (uint16_t)(even | 0x8000) };

        if (memcmp(down + EACH * i, want, sizeof want) != 0)
            fail_msg("%s: %.9g to fp16: got %#x, want %#x", kt_name, (double)between[EACH * i], down[EACH * i], even);
    }
}

/* Every finite number of fp16 through a product with one: packing reads it as it is. */
static void test_f16_products(void)
{
    enum { K = 64, M = 2 * 0x7c00 / K };
    double *x = kt_zeros(M * K), *unit = kt_zeros(K * K), *turned;
    void *y = kt_out(M * K, DTYPE_F16), *dw = kt_out(M * K, DTYPE_F16);

    for (int i = 0; i < M * K; i++) {
        uint16_t u = (uint16_t)(i % 0x7c00 | (i < 0x7c00 ? 0 : 0x8000));

        x[i] = dtype_value(DTYPE_F16, &u);
    }
    for (int i = 0; i < K; i++)
        unit[i * K + i] = 1;
    turned = transposed(x, M, K);
    void *d_unit = kt_in(unit, K * K, DTYPE_F16);

    kt->linear(&(struct kernel_linear){
        .m = M, .n = K, .k = K, .x = kt_in(x, M * K, DTYPE_F16), .w = d_unit, .y = y,
    }, DTYPE_F16, NULL);
    kt_close("rows that lie along", kt_get(y, M * K, DTYPE_F16), x, M * K, 0, 0);
    kt->linear_dw(&(struct kernel_linear_dw){
        .m = K, .n = M, .k = K, .dy = kt_in(turned, M * K, DTYPE_F16), .x = d_unit, .dw = dw, .grad_t = true,
    }, DTYPE_F16, NULL);
    kt_close("rows that lie across", kt_get(dw, M * K, DTYPE_F16), x, M * K, 0, 0);
}

/* What is too large for fp16 is infinite, in results and in gradients that were finite before it was added. */
static void test_f16_overflow(void)
{
    enum { N = 16 };
    double *x = kt_zeros(N * N), *old = kt_zeros(N * N), *got;

    for (int i = 0; i < N * N; i++) {
        x[i] = i < N ? 200 : 1;
        old[i] = 30000;
    }
    void *dx = kt_in(x, N * N, DTYPE_F16), *y = kt_out(N * N, DTYPE_F16), *dw = kt_in(old, N * N, DTYPE_F16);

    kt->linear(&(struct kernel_linear){ .m = N, .n = N, .k = N, .x = dx, .w = dx, .y = y }, DTYPE_F16, NULL);
    got = kt_get(y, N * N, DTYPE_F16);
    for (int i = 0; i < N * N; i++)
        assert_true(got[i] == (i == 0 ? INFINITY : i < N || i % N == 0 ? 200 * N : N));
    kt->linear_dw(&(struct kernel_linear_dw){
        .m = N, .n = N, .k = N, .dy = dx, .x = dx, .dw = dw, .add = true, .grad_t = true,
    }, DTYPE_F16, NULL);
    got = kt_get(dw, N * N, DTYPE_F16);
    for (int i = 0; i < N * N; i++)
        assert_true(got[i] == INFINITY);        /* 200 * 200 + 15 + 30000 */
}

/* ALiBi's products of slope and position, with 112 heads, as docs/training.md 1.5 rounds them */
static void test_alibi_rounding(void)
{
    static const struct { float slope; int position; uint16_t want; } v[] = {
        { 0x1.d5818ep-1f, 1, 0x3f6b }, { 0x1.d5818ep-1f, 1000, 0x4465 }, { 0x1.d5818ep-1f, 2047, 0x44eb },
        { 0x1.ea4afap-1f, 300, 0x4390 }, { 0x1.0b5586p-6f, 2047, 0x4206 }, { 0x1p-8f, 257, 0x3f80 },
    };
    enum { N = sizeof v / sizeof *v };
    float product[N];
    uint16_t half[N];
    void *d = kt_out(N, DTYPE_BF16);

    for (int i = 0; i < N; i++)
        product[i] = v[i].slope * (float)v[i].position;
    kt->cast(d, DTYPE_BF16, kt_bytes(product, sizeof product), DTYPE_F32, N, NULL);
    kt->dev->copy(half, d, sizeof half, NULL);
    kt->dev->stream_sync(NULL);
    for (int i = 0; i < N; i++)
        assert_int_equal(half[i], v[i].want);
}

static void check_scale_add(int64_t n, enum dtype t)
{
    double *x = kt_random(n, -1, 1), *y = kt_random(n, -1, 1);
    void *dx = kt_in(x, n, t), *dy = kt_in(y, n, t);

    kt->scale(dx, 0.3f, n, t, NULL);
    kt->add(dy, dx, n, t, NULL);
    for (int64_t i = 0; i < n; i++) {
        x[i] *= 0.3f;
        y[i] += x[i];
    }
    kt_close("scale", kt_get(dx, n, t), x, n, 0, kt_eps(t));
    kt_close("add", kt_get(dy, n, t), y, n, kt_eps(t) * 0.31, kt_eps(t));
}

static void test_scale_add(void)
{
    for (size_t l = 0; l < N_LENGTHS; l++) {
        check_scale_add(lengths[l], DTYPE_F32);
        check_scale_add(lengths[l], DTYPE_F16);
    }
}

static void test_normal(void)
{
    static const int64_t firsts[] = { 0, 7, (1ll << 33) + 1 };
    enum { N = 10001 };
    uint32_t key[2] = { 1, 0xdeadbeef };

    for (size_t f = 0; f < 3; f++) {
        double *want = kt_zeros(N), sum = 0, squares = 0, *got;
        void *x = kt_out(N, DTYPE_F32);

        for (int i = 0; i < N; i++) {
            want[i] = 0.02f * ref_normal(key, firsts[f] + i);
            sum += want[i] / 0.02;
            squares += want[i] * want[i] / 0.0004;
        }
        kt->normal(x, firsts[f], N, 0.02f, key, NULL);
        got = kt_get(x, N, DTYPE_F32);
        kt_close("normal", got, want, N, 0, 2 * EPS_F32);
        /* Five standard errors: 1 / sqrt(N) of the mean, sqrt(2 / N) of the variance */
        assert_true(fabs(sum / N) < 5e-2);
        assert_true(fabs(squares / N - 1) < 7.1e-2);
    }
}

/* The known answers that come with Random123, the authors' library */
static void test_philox_vectors(void)
{
    static const uint32_t in[3][6] = {
        { 0 }, { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0 },
    };
    static const uint32_t want[2][3][4] = {
        { { 0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48 }, { 0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662 },
          { 0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a } },
        { { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    for (int i = 0; i < 6; i++) {
        uint32_t got[4];

        ref_philox(got, in[i % 3], in[i % 3] + 4, i < 3 ? 7 : 10);
        assert_memory_equal(got, want[i / 3][i % 3], sizeof got);
    }
}

/*
 * Masks are as a coin would make them: how many of N are kept, and how many of N pairs of neighbours (keys, queries,
 * heads, samples; the last two are other counters) are both kept, within 5 standard deviations.
 */
static void test_dropout_rate(void)
{
    enum { S = 128, N = S * S };
    static const int next[5][4] = { { 0 }, { 0, 0, 0, 1 }, { 0, 0, 1, 0 }, { 0, 1, 0, 0 }, { 1, 0, 0, 0 } };
    struct kernel_dropout d = { 0.1f, { 1234, 5678 }, 0 };

    for (int i = 0; i < 5; i++) {
        const int *n = next[i];
        double rate = i ? 0.81 : 0.9, both = 0, flat = 0;

        for (int q = 0; q < S; q++)
            for (int k = 0; k < S; k++) {
                both += ref_drop_attention(&d, 3, 5, q, k) > 0 &&
                        ref_drop_attention(&d, 3 + n[0], 5 + n[1], q + n[2], k + n[3]) > 0;
                flat += ref_drop(&d, q * S + k) > 0 && ref_drop(&d, q * S + k + i) > 0;
            }
        assert_true(fabs(both / N - rate) < 5 * sqrt(rate * (1 - rate) / N) + 1e-4);
        assert_true(fabs(flat / N - rate) < 5 * sqrt(rate * (1 - rate) / N) + 1e-4);
    }
}

int main(void)
{
    static const struct kt_case cases[] = {
        KT_CASE(test_linear), KT_CASE(test_linear_back), KT_CASE(test_no_tokens), KT_CASE(test_not_finite),
        KT_CASE(test_gelu_vectors), KT_CASE(test_gelu_range), KT_CASE(test_sums), KT_CASE(test_adamw),
        KT_CASE(test_adamw_vectors), KT_CASE(test_runs), KT_CASE(test_digest),
        KT_CASE(test_first_not_finite),
        KT_CASE(test_cast), KT_CASE(test_f16_exact),
        KT_CASE(test_f16_products), KT_CASE(test_f16_overflow), KT_CASE(test_alibi_rounding),
        KT_CASE(test_scale_add), KT_CASE(test_normal),
        KT_CASE(test_philox_vectors), KT_CASE(test_dropout_rate),
    };

    return kt_run_all(cases, sizeof cases / sizeof *cases);
}
