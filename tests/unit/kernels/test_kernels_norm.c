/*
 * test_kernels_norm.c - LayerNorm, residual and dropout, embeddings and the loss on every device, compared with
 * fp64
 *
 * The reference's own gradients are compared with finite differences. Tolerances count roundings of 2^-24 (u below)
 * on values whose size the inputs bound.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/kernels/kernel_test.h"
#include "tests/lib/kernels/ref_kernels.h"

#define U EPS_F32

static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
#define N_TYPES 3

/* Around the edges of vectors, of runs of 256 for dropout, of chunks of 16 rows and of 128 chunks. */
static const struct size { int64_t m, h; } sizes[] = {
    { 1, 1 }, { 3, 7 }, { 17, 64 }, { 16, 255 }, { 33, 257 }, { 5, 1030 }, { 2049, 3 }, { 2100, 40 },
};
#define N_SIZES (sizeof sizes / sizeof *sizes)

static const float eps = 1e-5f;

/* ---- LayerNorm ---- */

/* Values around 3, so that the mean matters. Rows' variance is near 1/3 unless h is tiny. */
static double *rows(struct size z)
{
    return kt_random(z.m * z.h, 2, 4);
}

/* xhat is off by a few u * |x| * rstd; |x| <= 4, and rstd <= 1 / sqrt(eps) = 316 when h is 1 to 3. */
static double xhat_slack(struct size z)
{
    double rstd = z.h < 16 ? 316 : 4;

    return (double)(z.h + 8) * U * 4 * rstd;
}

static void check_layernorm(struct size z, enum dtype t)
{
    int64_t n = z.m * z.h;
    double *x = rows(z), *gamma = kt_random(z.h, 0.5, 1.5), *beta = kt_random(z.h, -1, 1);
    double *want = kt_zeros(n), *mean = kt_zeros(z.m), *rstd = kt_zeros(z.m), *got;
    void *dx = kt_in(x, n, t), *dg = kt_in(gamma, z.h, t), *db = kt_in(beta, z.h, t);
    void *y = kt_out(n, t), *again = kt_out(n, t), *dm = kt_out(z.m, DTYPE_F32), *dr = kt_out(z.m, DTYPE_F32);

    ref_layernorm(want, mean, rstd, x, gamma, beta, z.m, z.h, eps);
    kt->layernorm(&(struct kernel_layernorm){
        .m = z.m, .h = z.h, .x = dx, .gamma = dg, .beta = db, .eps = eps, .y = y, .mean = dm, .rstd = dr,
    }, t, NULL);
    kt->layernorm(&(struct kernel_layernorm){
        .m = z.m, .h = z.h, .x = dx, .gamma = dg, .beta = db, .eps = eps, .y = again,
    }, t, NULL);
    got = kt_get(y, n, t);
    kt_close("layernorm", got, want, n, 1.5 * xhat_slack(z) + 4 * U, kt_eps(t));
    kt_close("layernorm without statistics", kt_get(again, n, t), got, n, 0, 0);
    kt_close("mean", kt_get(dm, z.m, DTYPE_F32), mean, z.m, 0, (double)(z.h + 2) * U);
    kt_close("rstd", kt_get(dr, z.m, DTYPE_F32), rstd, z.m, 0, (double)(z.h + 8) * 4 * U + xhat_slack(z));
}

static void test_layernorm(void)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (int j = 0; j < N_TYPES; j++)
            check_layernorm(sizes[i], types[j]);
}

static void check_layernorm_back(struct size z, struct kt_types of, bool with_add)
{
    const enum dtype t = of.t, g = kt_grad(of);
    int64_t n = z.m * z.h;
    double *x = rows(z), *gamma = kt_random(z.h, 0.5, 1.5), *dy = kt_random(n, -1, 1), *plus = kt_random(n, -1, 1);
    double *y = kt_zeros(n), *mean = kt_zeros(z.m), *rstd = kt_zeros(z.m), *beta = kt_zeros(z.h);
    double *want = kt_zeros(n), *want_g = kt_zeros(z.h), *want_b = kt_zeros(z.h);
    double *old_g = kt_random(z.h, -1, 1), *old_b = kt_random(z.h, -1, 1);
    void *d_x = kt_in(x, n, t), *d_gamma = kt_in(gamma, z.h, t), *d_dy = kt_in(dy, n, t), *d_plus = kt_in(plus, n, t);
    void *d_g = kt_in(old_g, z.h, g), *d_b = kt_in(old_b, z.h, g);
    void *dx = with_add ? d_plus : kt_out(n, t), *g0 = kt_out(z.h, g), *b0 = kt_out(z.h, g);
    void *scratch = kt_scratch(kt->layernorm_scratch(z.m, z.h));
    double tol = 8 * xhat_slack(z), rstd_max = 0, twice = 0;    /* twice: what is added is rounded before the sum */

    ref_layernorm(y, mean, rstd, x, gamma, beta, z.m, z.h, eps);
    for (int64_t i = 0; i < z.m; i++)
        rstd_max = fmax(rstd_max, rstd[i]);
    ref_layernorm_back(want, want_g, want_b, dy, x, gamma, z.m, z.h, eps);
    void *d_mean = kt_in(mean, z.m, DTYPE_F32), *d_rstd = kt_in(rstd, z.m, DTYPE_F32);

    kt->layernorm_back(&(struct kernel_layernorm_back){
        .m = z.m, .h = z.h, .dy = d_dy, .x = d_x, .gamma = d_gamma, .mean = d_mean, .rstd = d_rstd,
        .add_dx = with_add ? d_plus : NULL, .dx = dx, .dgamma = g0, .dbeta = b0, .grad_t = of.grad_t,
        .scratch = scratch,
    }, t, NULL);
    for (int64_t i = 0; with_add && i < n; i++)
        want[i] += plus[i];
    /* dx = rstd * (terms of size 1.5, wrong by as much as xhat is) */
    kt_close("dx", kt_get(dx, n, t), want, n, rstd_max * tol, kt_eps(t));
    /* Sums of m terms up to 2, each off like xhat; |xhat| <= 2 or so */
    kt_close("dgamma", kt_get(g0, z.h, g), want_g, z.h, (double)z.m * (tol / 8 + 32 * U), kt_eps(g) + 3 * U);
    kt_close("dbeta", kt_get(b0, z.h, g), want_b, z.h, (double)z.m * 32 * U, kt_eps(g) + 3 * U);

    for (int64_t j = 0; j < z.h; j++) {
        twice = fmax(twice, kt_eps(g) * fmax(fabs(want_g[j]), fabs(want_b[j])));
        want_g[j] += old_g[j];
        want_b[j] += old_b[j];
    }
    kt->layernorm_back(&(struct kernel_layernorm_back){
        .m = z.m, .h = z.h, .dy = d_dy, .x = d_x, .gamma = d_gamma, .mean = d_mean, .rstd = d_rstd, .dx = kt_out(n, t),
        .dgamma = d_g, .dbeta = d_b, .add = true, .grad_t = of.grad_t, .scratch = scratch,
    }, t, NULL);
    kt_close("dgamma, added", kt_get(d_g, z.h, g), want_g, z.h, (double)z.m * (tol / 8 + 32 * U) + twice,
             kt_eps(g) + 3 * U);
    kt_close("dbeta, added", kt_get(d_b, z.h, g), want_b, z.h, (double)z.m * 32 * U + U + twice, kt_eps(g) + 3 * U);
}

static void test_layernorm_back(void)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (int j = 0; j < 2 * KT_TYPES; j++)
            check_layernorm_back(sizes[i], kt_types[j / 2], j % 2);
}

/* ---- residual and dropout ---- */

static struct kernel_dropout dropout(float p)
{
    return (struct kernel_dropout){ p, { 0x12345678, 0x9abcdef0 }, (1ll << 33) + 5 };
}

static void check_residual(struct size z, enum dtype t, float p, bool norm)
{
    int64_t n = z.m * z.h;
    struct kernel_dropout drop = dropout(p);
    double *a = kt_random(n, -1, 1), *bias = kt_random(z.h, -1, 1), *residual = kt_random(n, 2, 3);
    double *gamma = kt_random(z.h, 0.5, 1.5), *beta = kt_random(z.h, -1, 1), *want = kt_zeros(n), *want_y = kt_zeros(n);
    double *mean = kt_zeros(z.m), *rstd = kt_zeros(z.m), *got;
    void *d_a = kt_in(a, n, t), *d_bias = kt_in(bias, z.h, t), *d_r = kt_in(residual, n, t);
    void *d_gamma = kt_in(gamma, z.h, t), *d_beta = kt_in(beta, z.h, t);
    void *out = kt_out(n, t), *y = kt_out(n, t), *dm = kt_out(z.m, DTYPE_F32), *dr = kt_out(z.m, DTYPE_F32);

    for (int64_t i = 0; i < n; i++)
        want[i] = residual[i] + ref_drop(&drop, drop.row0 * z.h + i) * (a[i] + bias[i % z.h]);
    kt->residual_norm(&(struct kernel_residual_norm){
        .a = d_a, .bias = d_bias, .residual = d_r, .drop = drop, .z = out,
        .norm = {
            .m = z.m, .h = z.h, .gamma = norm ? d_gamma : NULL, .beta = d_beta, .eps = eps, .y = y, .mean = dm,
            .rstd = dr,
        },
    }, t, NULL);
    got = kt_get(out, n, t);
    kt_close("z", got, want, n, 16 * U, kt_eps(t));
    kt->residual_norm(&(struct kernel_residual_norm){
        .a = d_a, .bias = d_bias, .residual = d_r, .drop = drop, .z = d_r,
        .norm = {
            .m = z.m, .h = z.h, .gamma = norm ? d_gamma : NULL, .beta = d_beta, .eps = eps, .y = y, .mean = dm,
            .rstd = dr,
        },
    }, t, NULL);
    kt_close("z over residual", kt_get(d_r, n, t), got, n, 0, 0);
    if (!norm)
        return;
    /* y belongs to the rounded z. */
    ref_layernorm(want_y, mean, rstd, got, gamma, beta, z.m, z.h, eps);
    kt_close("y", kt_get(y, n, t), want_y, n, 2 * xhat_slack(z) + 4 * U, kt_eps(t));
    kt_close("mean", kt_get(dm, z.m, DTYPE_F32), mean, z.m, 0, (double)(z.h + 2) * U);
    kt_close("rstd", kt_get(dr, z.m, DTYPE_F32), rstd, z.m, 0, (double)(z.h + 8) * 4 * U + xhat_slack(z));
}

static void test_residual(void)
{
    for (size_t i = 0; i < N_SIZES; i++)
        for (int j = 0; j < N_TYPES; j++) {
            check_residual(sizes[i], types[j], 0.1f, true);
            check_residual(sizes[i], types[j], 0, true);
            check_residual(sizes[i], types[j], 0.5f, false);
        }
}

static void check_dropout_back(struct size z, struct kt_types of, float p)
{
    const enum dtype t = of.t, g = kt_grad(of);
    int64_t n = z.m * z.h;
    struct kernel_dropout drop = dropout(p);
    double *dz = kt_random(n, -1, 1), *old = kt_random(z.h, -1, 1), *want = kt_zeros(n), *want_b = kt_zeros(z.h), *got;
    void *d_dz = kt_in(dz, n, t), *da = kt_out(n, t), *db = kt_out(z.h, g), *db_add = kt_in(old, z.h, g);
    void *scratch = kt_scratch(kt->layernorm_scratch(z.m, z.h));
    double twice = 0;

    for (int64_t i = 0; i < n; i++)
        want[i] = dz[i] * ref_drop(&drop, drop.row0 * z.h + i);
    kt->dropout_back(&(struct kernel_dropout_back){
        .m = z.m, .h = z.h, .dz = d_dz, .drop = drop, .da = da, .dbias = db, .grad_t = of.grad_t,
        .scratch = scratch,
    }, t, NULL);
    got = kt_get(da, n, t);
    kt_close("da", got, want, n, 0, kt_eps(t) + 4 * U);
    for (int64_t i = 0; i < n; i++)
        want_b[i % z.h] += got[i];
    kt_close("dbias", kt_get(db, z.h, g), want_b, z.h, 32 * U * (double)z.m, kt_eps(g));
    kt->dropout_back(&(struct kernel_dropout_back){
        .m = z.m, .h = z.h, .dz = d_dz, .drop = drop, .da = d_dz, .dbias = db_add, .add = true,
        .grad_t = of.grad_t, .scratch = scratch,
    }, t, NULL);
    kt_close("da over dz", kt_get(d_dz, n, t), got, n, 0, 0);
    for (int64_t j = 0; j < z.h; j++) {
        twice = fmax(twice, kt_eps(g) * fabs(want_b[j]));
        want_b[j] += old[j];
    }
    kt_close("dbias, added", kt_get(db_add, z.h, g), want_b, z.h, 32 * U * (double)z.m + twice, kt_eps(g) + U);
}

static void test_dropout_back(void)
{
    static const float p[] = { 0, 0.1f, 0.75f };

    for (size_t i = 0; i < N_SIZES; i++)
        for (int j = 0; j < 3 * KT_TYPES; j++)
            check_dropout_back(sizes[i], kt_types[j / 3], p[j % 3]);
}

/* ---- embedding ---- */

/* Sums in fp32 have a tolerance of their own; fp16 rounds them. */
static double round_grad(struct kt_types of)
{
    return of.grad_t ? kt_eps(of.t) : 0;
}

static void check_embed(int64_t m, int64_t h, int64_t rows_n, int64_t first, struct kt_types of)
{
    const enum dtype t = of.t, g = kt_grad(of);
    int32_t *id = kt_random_ids(m, 0, 40);      /* some are another rank's, most come up several times */
    double *table = kt_random(rows_n * h, -1, 1), *dy = kt_random(m * h, -1, 1), *old = kt_random(rows_n * h, -1, 1);
    double *want = kt_zeros(m * h), *grad = kt_zeros(rows_n * h);
    void *d_id = kt_bytes(id, (uint64_t)m * 4), *d_table = kt_in(table, rows_n * h, t), *d_dy = kt_in(dy, m * h, t);
    void *y = kt_out(m * h, t), *dt = kt_out(rows_n * h, g), *dt_add = kt_in(old, rows_n * h, g);
    void *scratch = kt_scratch(kt->embed_scratch(m, rows_n));
    double twice = 0;

    for (int64_t i = 0; i < m * h; i++) {
        int64_t row = id[i / h] - first;

        if (row < 0 || row >= rows_n)
            continue;
        want[i] = table[row * h + i % h];
        grad[row * h + i % h] += dy[i];
    }
    kt->embed(&(struct kernel_embed){
        .m = m, .h = h, .first = first, .rows = rows_n, .id = d_id, .table = d_table, .y = y,
    }, t, NULL);
    kt_close("embed", kt_get(y, m * h, t), want, m * h, 0, 0);
    kt->embed_back(&(struct kernel_embed_back){
        .m = m, .h = h, .first = first, .rows = rows_n, .id = d_id, .dy = d_dy, .dtable = dt, .grad_t = of.grad_t,
        .scratch = scratch,
    }, t, NULL);
    kt_close("embed_back", kt_get(dt, rows_n * h, g), grad, rows_n * h, (double)(m * m) * U, round_grad(of));
    kt->embed_back(&(struct kernel_embed_back){
        .m = m, .h = h, .first = first, .rows = rows_n, .id = d_id, .dy = d_dy, .dtable = dt_add, .add = true,
        .grad_t = of.grad_t, .scratch = scratch,
    }, t, NULL);
    for (int64_t i = 0; i < rows_n * h; i++) {
        twice = fmax(twice, round_grad(of) * fabs(grad[i]));
        grad[i] += old[i];
    }
    kt_close("embed_back, added", kt_get(dt_add, rows_n * h, g), grad, rows_n * h, (double)(m * m) * U + twice,
             round_grad(of));
}

static void test_embed(void)
{
    for (int j = 0; j < KT_TYPES; j++) {
        check_embed(100, 33, 40, 0, kt_types[j]);
        check_embed(100, 17, 20, 20, kt_types[j]);
        check_embed(200, 5, 7, 13, kt_types[j]);
        check_embed(1, 300, 1, 100, kt_types[j]);
    }
}

static void check_finish(int64_t h, struct kt_types of, float p, bool with_position, bool with_pos)
{
    const enum dtype t = of.t, g = kt_grad(of);
    enum { M = 70, S = 35 };
    struct kernel_dropout drop = dropout(p);
    int32_t *pos = kt_random_ids(M, 0, 50);
    double *x = kt_random(M * h, -1, 1), *table = kt_random(50 * h, -1, 1), *old = kt_random(50 * h, -1, 1);
    double *want = kt_zeros(M * h), *grad = kt_zeros(50 * h), *got;
    void *d_x = kt_in(x, M * h, t), *d_table = kt_in(table, 50 * h, t), *y = kt_out(M * h, t);
    void *d_pos = with_pos ? kt_bytes(pos, M * 4) : NULL;
    void *d_grad = kt_out(50 * h, g), *d_add = kt_in(old, 50 * h, g);
    double twice = 0;

    for (int64_t i = 0; i < M * h; i++) {
        int64_t at = (with_pos ? pos[i / h] : i / h % S) * h + i % h;

        want[i] = (x[i] + (with_position ? table[at] : 0)) * ref_drop(&drop, drop.row0 * h + i);
        grad[at] += x[i];
    }
    kt->position_back(&(struct kernel_position_back){
        .m = M, .h = h, .s = S, .n_pos = 50, .dx = d_x, .pos = d_pos, .dposition = d_grad,
        .grad_t = of.grad_t,
    }, t, NULL);
    kt_close("position_back", kt_get(d_grad, 50 * h, g), grad, 50 * h, M * M * U, round_grad(of));
    kt->position_back(&(struct kernel_position_back){
        .m = M, .h = h, .s = S, .n_pos = 50, .dx = d_x, .pos = d_pos, .dposition = d_add, .add = true,
        .grad_t = of.grad_t,
    }, t, NULL);
    for (int64_t i = 0; i < 50 * h; i++) {
        twice = fmax(twice, round_grad(of) * fabs(grad[i]));
        grad[i] += old[i];
    }
    kt_close("position_back, added", kt_get(d_add, 50 * h, g), grad, 50 * h, M * M * U + twice, round_grad(of));

    kt->embed_finish(&(struct kernel_embed_finish){
        .m = M, .h = h, .s = S, .x = d_x, .position = with_position ? d_table : NULL, .pos = d_pos, .drop = drop,
        .y = y,
    }, t, NULL);
    got = kt_get(y, M * h, t);
    kt_close("embed_finish", got, want, M * h, 16 * U, kt_eps(t));
    kt->embed_finish(&(struct kernel_embed_finish){
        .m = M, .h = h, .s = S, .x = d_x, .position = with_position ? d_table : NULL, .pos = d_pos, .drop = drop,
        .y = d_x,
    }, t, NULL);
    kt_close("embed_finish in place", kt_get(d_x, M * h, t), got, M * h, 0, 0);
}

static void test_embed_finish(void)
{
    for (int j = 0; j < 8 * KT_TYPES; j++)
        check_finish(j % 2 ? 259 : 33, kt_types[j / 8], j & 2 ? 0.1f : 0, j & 4, j & 2);
}

/* ---- loss ---- */

/* Cut over `tp` ranks, as the trainer does; v is the whole vocabulary. */
static void check_xent(int64_t m, int64_t v, int tp, double range, enum dtype t)
{
    double *logits = kt_random(m * v, -range, range), *scale = kt_random(m, 0, 0.01), *want = kt_zeros(m);
    double *lse = kt_zeros(m), *grad = kt_zeros(m * v), *part = kt_zeros(m * v / tp), *got;
    int32_t *target = kt_random_ids(m, 0, (int32_t)v);
    int64_t w = v / tp;
    struct { float x[3]; } *stats = (void *)kt_zeros(2 * m * tp);
    void *d_target, *d_scale = kt_in(scale, m, DTYPE_F32), *loss = kt_out(m, DTYPE_F32), *d_lse = kt_out(m, DTYPE_F32);
    void *piece[8];

    /* The same rounding as the pieces below get */
    kt_in(logits, m * v, t);
    ref_xent(want, lse, grad, logits, target, scale, m, v);
    d_target = kt_bytes(target, (uint64_t)m * 4);
    for (int r = 0; r < tp; r++) {
        void *stat = kt_out(3 * m, DTYPE_F32);

        for (int64_t i = 0; i < m * w; i++)
            part[i] = logits[i / w * v + r * w + i % w];
        piece[r] = kt_in(part, m * w, t);
        kt->xent_stat(stat, &(struct kernel_xent){
            .m = m, .v = w, .first = r * w, .target = d_target, .logits = piece[r],
        }, t, NULL);
        kt->dev->copy(stats + r * m, stat, (uint64_t)m * 12, NULL);
    }
    kt->dev->stream_sync(NULL);
    kt->xent_loss(loss, d_lse, kt_bytes(stats, (uint64_t)(m * tp) * 12), tp, m, NULL);
    /* An exponential of 2 ulp, a sum in short runs: log of it is off by less than v / 8 + 8 roundings. */
    kt_close("lse", kt_get(d_lse, m, DTYPE_F32), lse, m, ((double)v / 8 + 8) * U, U);
    kt_close("loss", kt_get(loss, m, DTYPE_F32), want, m, ((double)v / 8 + 8) * U, 2 * U);
    for (int r = 0; r < tp; r++) {
        double *slice = kt_zeros(m * w);

        for (int64_t i = 0; i < m * w; i++)
            slice[i] = grad[i / w * v + r * w + i % w];
        kt->xent_back(&(struct kernel_xent){
            .m = m, .v = w, .first = r * w, .target = d_target, .logits = piece[r],
        }, d_lse, d_scale, t, NULL);
        got = kt_get(piece[r], m * w, t);
        /* exp(logit - lse) to as many ulp as |logit - lse| <= 2 range + log v has, and lse's error */
        kt_close("dlogits", got, slice, m * w, 0.01 * 8 * U, kt_eps(t) + (2 * range + 8 + (double)v / 8 + 16) * 2 * U);
    }
}

static void test_xent(void)
{
    for (int j = 0; j < N_TYPES; j++) {
        check_xent(5, 12, 1, 3, types[j]);
        check_xent(3, 1030, 1, 20, types[j]);
        check_xent(2, 5000, 2, 8, types[j]);
        check_xent(7, 96, 8, 40, types[j]);
        check_xent(1, 4, 4, 1, types[j]);
    }
}

/* A NaN among the logits must come out in the loss, wherever it is. */
static void test_xent_nan(void)
{
    for (int64_t at = 0; at < 40; at += 13) {
        double *x = kt_random(40, -1, 1);
        int32_t target = 7;
        void *stat = kt_out(3, DTYPE_F32), *loss = kt_out(1, DTYPE_F32), *lse = kt_out(1, DTYPE_F32);

        x[at] = NAN;
        kt->xent_stat(stat, &(struct kernel_xent){
            .m = 1, .v = 40, .target = kt_bytes(&target, 4), .logits = kt_in(x, 40, DTYPE_F32),
        }, DTYPE_F32, NULL);
        kt->xent_loss(loss, lse, stat, 1, 1, NULL);
        assert_true(isnan(*kt_get(loss, 1, DTYPE_F32)));
    }
}

/* ---- the reference itself, against finite differences ---- */

enum { FD_M = 3, FD_H = 6 };
static struct {
    double x[FD_M * FD_H], gamma[FD_H], beta[FD_H], w[FD_M * FD_H]; /* w: weights of the sum that is differentiated */
    int32_t target[FD_M];
} fd;

static double fd_norm(const void *arg)
{
    double y[FD_M * FD_H], sum = 0;

    (void)arg;
    ref_layernorm(y, NULL, NULL, fd.x, fd.gamma, fd.beta, FD_M, FD_H, eps);
    for (int i = 0; i < FD_M * FD_H; i++)
        sum += y[i] * fd.w[i];
    return sum;
}

static double fd_xent(const void *arg)
{
    double loss[FD_M], lse[FD_M], sum = 0;

    (void)arg;
    ref_xent(loss, lse, NULL, fd.x, fd.target, NULL, FD_M, FD_H);
    for (int i = 0; i < FD_M; i++)
        sum += loss[i] * fd.w[i];
    return sum;
}

static double fd_gelu(const void *arg)
{
    (void)arg;
    return ref_gelu(fd.x[0]);
}

static double fd_linear(const void *arg)
{
    double y[FD_M * FD_M], sum = 0;

    (void)arg;
    ref_linear(y, fd.x, fd.w, fd.gamma, FD_M, FD_M, FD_H);
    for (int i = 0; i < FD_M * FD_M; i++)
        sum += y[i] * y[i] / 2;         /* so that dy = y */
    return sum;
}

/* Central differences with h = 1e-5 are good to h^2 and 1e-16 / h: 1e-8 leaves room for the constants. */
static void test_reference_gradients(void)
{
    double dx[FD_M * FD_H], dgamma[FD_H], dbeta[FD_H], loss[FD_M], lse[FD_M], y[FD_M * FD_M], dw[FD_M * FD_H];

    memcpy(fd.x, kt_random(FD_M * FD_H, -1, 1), sizeof fd.x);
    memcpy(fd.gamma, kt_random(FD_H, 0.5, 1.5), sizeof fd.gamma);
    memcpy(fd.beta, kt_random(FD_H, -1, 1), sizeof fd.beta);
    memcpy(fd.w, kt_random(FD_M * FD_H, -1, 1), sizeof fd.w);
    memcpy(fd.target, kt_random_ids(FD_M, 0, FD_H), sizeof fd.target);

    ref_layernorm_back(dx, dgamma, dbeta, fd.w, fd.x, fd.gamma, FD_M, FD_H, eps);
    assert_true(ref_gradient_error(fd_norm, NULL, fd.x, FD_M * FD_H, dx) < 1e-8);
    assert_true(ref_gradient_error(fd_norm, NULL, fd.gamma, FD_H, dgamma) < 1e-8);
    assert_true(ref_gradient_error(fd_norm, NULL, fd.beta, FD_H, dbeta) < 1e-8);
    ref_xent(loss, lse, dx, fd.x, fd.target, fd.w, FD_M, FD_H);
    assert_true(ref_gradient_error(fd_xent, NULL, fd.x, FD_M * FD_H, dx) < 1e-8);
    ref_linear(y, fd.x, fd.w, fd.gamma, FD_M, FD_M, FD_H);
    ref_linear_back(dx, dw, dbeta, y, fd.x, fd.w, FD_M, FD_M, FD_H);
    assert_true(ref_gradient_error(fd_linear, NULL, fd.x, FD_M * FD_H, dx) < 1e-8);
    assert_true(ref_gradient_error(fd_linear, NULL, fd.w, FD_M * FD_H, dw) < 1e-8);
    assert_true(ref_gradient_error(fd_linear, NULL, fd.gamma, FD_M, dbeta) < 1e-8);
    for (int i = 0; i < 60; i++) {
        double slope = ref_gelu_slope(fd.x[0] = (i - 30) * 0.2);

        assert_true(ref_gradient_error(fd_gelu, NULL, fd.x, 1, &slope) < 1e-8 / fabs(slope));
    }
}

int main(void)
{
    static const struct kt_case cases[] = {
        KT_CASE(test_layernorm), KT_CASE(test_layernorm_back), KT_CASE(test_residual), KT_CASE(test_dropout_back),
        KT_CASE(test_embed), KT_CASE(test_embed_finish), KT_CASE(test_xent), KT_CASE(test_xent_nan),
        KT_CASE(test_reference_gradients),
    };

    return kt_run_all(cases, sizeof cases / sizeof *cases);
}
