/*
 * test_kernels_attention.c - attention forward and backward on every device, compared with whole matrices in fp64,
 * and those with finite differences
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/kernels/kernel_test.h"
#include "tests/lib/kernels/ref_kernels.h"

static const struct shape {
    int b, s, heads, hd;
    bool alibi;
    float p;
    int head0;
} shapes[] = {
    { 1, 1, 1, 1, false, 0, 0 },
    { 2, 5, 3, 7, true, 0, 0 },
    { 1, 95, 2, 16, true, 0.25f, 2 },
    { 2, 97, 1, 64, false, 0, 1 },
    { 1, 192, 2, 80, true, 0, 0 },
    { 1, 200, 1, 96, false, 0.1f, 3 },
    { 1, 130, 1, 128, true, 0.5f, 0 },
    { 3, 33, 2, 20, true, 0.1f, 0 },
    { 2, 113, 2, 8, false, 0.999f, 7 },
};

/* All of q, k, v in Megatron's packing [b, s, heads, 3, hd], and apart for the reference */
struct qkv {
    double *packed, *q, *k, *v;
};

static struct qkv split(const struct shape *z, double *packed)
{
    int64_t n = (int64_t)z->b * z->s * z->heads * z->hd;
    struct qkv x = { packed, kt_zeros(n), kt_zeros(n), kt_zeros(n) };

    for (int64_t i = 0; i < n; i++) {
        const double *from = packed + i / z->hd * 3 * z->hd + i % z->hd;

        x.q[i] = from[0];
        x.k[i] = from[z->hd];
        x.v[i] = from[2 * z->hd];
    }
    return x;
}

static double *alibi(const struct shape *z)
{
    double *bias = kt_zeros((int64_t)z->heads * z->s);

    for (int i = 0; i < z->heads * z->s; i++)
        bias[i] = pow(2, -(i / z->s + 1)) * (i % z->s);
    return bias;
}

/*
 * Everything is a sum of at most s or hd terms. u = 2^-24:
 * a score of |q|, |k| <= 1 is off by ds = (hd u) * hd * scale, and by u times its size for the bias;
 * a probability then by 2 ds relative, and o, an average of |v| <= 1 (times 1 / (1 - p)), by
 * (2 ds + s u) * keep. dP, of |dO| <= 1, reaches hd * keep and is off by hd u of that; dS like p dP.
 */
struct slack {
    double lse, o, grad;
};

/* A kernel of Hopper's own: scores stay fp32 with any round_unit, and left sides of products are of T. */
static bool is_fast(int hd, enum dtype t)
{
    return strcmp(kt->dev->name, "cuda") == 0 && t != DTYPE_F32 && (hd == 64 || hd == 80 || hd == 96 || hd == 128);
}

/*
 * The error of rounded left sides: probabilities for o, whose rows add up to 1, and for dv, whose columns add up to at
 * most s; dS for dq and dk, up to p (|dP| + |D|) <= 2 hd keep p each.
 */
struct left_slack {
    double o, dv, dq, dk;
};

static struct left_slack left_slack_of(int s, int hd, double p, enum dtype t)
{
    double keep = kt_eps(t) / (1 - p), ds = 2 * sqrt(hd) * keep;

    return is_fast(hd, t) ? (struct left_slack){ keep, s * keep, ds, s * ds } : (struct left_slack){ 0 };
}

static struct slack slack_of(const struct shape *z)
{
    double u = EPS_F32, keep = 1 / (1 - (double)z->p), scale = 1 / sqrt(z->hd);
    double ds = (z->hd * scale + (z->alibi ? z->s : 0) + 8) * (z->hd + 4) * u;
    double rel = 2 * ds + (z->s + 16) * u;

    return (struct slack){ ds + 8 * u, rel * keep, rel * 4 * z->hd * keep };
}

/* With `unit`, numbers whose scores fp32 holds exactly: both sides then round alike. */
static void check_attention(const struct shape *z, enum dtype t, float unit)
{
    int64_t ld = (int64_t)z->heads * z->hd, n = (int64_t)z->b * z->s * ld, n_lse = (int64_t)z->b * z->heads * z->s;
    double *packed = kt_random(3 * n, -1, 1), *bias = alibi(z), *d_o = kt_random(n, -1, 1);

    for (int64_t i = 0; unit > 0 && i < 3 * n; i++)
        packed[i] = rint(packed[i] * 8) / 8;
    void *d_qkv = kt_in(packed, 3 * n, t), *d_bias = kt_in(bias, (int64_t)z->heads * z->s, DTYPE_F32);
    void *dd_o = kt_in(d_o, n, t), *d_grad = kt_out(3 * n, t);
    struct qkv x = split(z, packed), got;
    double *o = kt_zeros(n), *lse = kt_zeros(n_lse), *dq = kt_zeros(n), *dk = kt_zeros(n), *dv = kt_zeros(n);
    size_t size = (size_t)dtype_size(t);
    struct kernel_dropout drop = { z->p, { 77, 99 }, (1ll << 31) * z->s };
    struct kernel_attention a = {
        .b = z->b, .s = z->s, .heads = z->heads, .hd = z->hd, .head0 = z->head0,
        .q = d_qkv, .k = (char *)d_qkv + (size_t)z->hd * size, .v = (char *)d_qkv + 2 * (size_t)z->hd * size,
        .token_stride = 3 * ld, .head_stride = 3 * z->hd, .o = kt_out(n, t), .lse = kt_out(n_lse, DTYPE_F32),
        .scale = (float)(1 / sqrt(z->hd)), .bias = z->alibi ? d_bias : NULL, .round_unit = unit, .drop = drop,
    };
    struct kernel_attention_back g = {
        dd_o, d_grad, (char *)d_grad + (size_t)z->hd * size, (char *)d_grad + 2 * (size_t)z->hd * size,
        kt_scratch(kt->attention_scratch(&a)),
    };
    struct ref_attention r = {
        z->b, z->s, z->heads, z->hd, z->head0, x.q, x.k, x.v, z->alibi ? bias : NULL, a.scale,
        t == DTYPE_F32 || is_fast(z->hd, t) ? 0 : unit, drop, t,
    };
    struct slack tol = slack_of(z);
    struct left_slack left = left_slack_of(z->s, z->hd, z->p, t);

    ref_attention(o, lse, &r);
    ref_attention_back(dq, dk, dv, d_o, &r);
    kt->attention(&a, t, NULL);
    double *got_o = kt_get(a.o, n, t);
    kt_close("o", got_o, o, n, tol.o + left.o, kt_eps(t));
    kt_close("lse", kt_get(a.lse, n_lse, DTYPE_F32), lse, n_lse, tol.lse, EPS_F32);

    kt->attention_back(&a, &g, t, NULL);
    got = split(z, kt_get(d_grad, 3 * n, t));
    /* D is taken from the rounded o: its hd terms of |o| <= keep are off by T's rounding each. */
    double of_o = t == DTYPE_F32 ? 0 : kt_eps(t) * z->hd / (1 - z->p) * a.scale;

    kt_close("dv", got.v, dv, n, tol.grad + left.dv, kt_eps(t));
    kt_close("dk", got.k, dk, n, tol.grad + of_o + left.dk, kt_eps(t));
    kt_close("dq", got.q, dq, n, tol.grad + of_o + left.dq, kt_eps(t));
}

static void test_attention(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_attention(&shapes[i], DTYPE_F32, 0);
        check_attention(&shapes[i], DTYPE_BF16, 0);
        check_attention(&shapes[i], DTYPE_F16, 0);
    }
}

/* Scores with hd 16: multiples of 2^-8 below 4, plus a bias that is exact too */
static void test_rounded_scores(void)
{
    static const struct shape z[] = {
        { 1, 97, 3, 16, true, 0, 0 }, { 2, 40, 1, 4, false, 0.25f, 0 }, { 1, 150, 1, 64, true, 0.1f, 0 },
    };

    for (int i = 0; i < 3; i++) {
        check_attention(&z[i], DTYPE_BF16, i == 1 ? 1 : 3);
        check_attention(&z[i], DTYPE_F16, i == 1 ? 1 : 3);
        check_attention(&z[i], DTYPE_F32, 1);
    }
}

/* Scores too large for exp() alone: only the difference to the largest counts. */
static void test_large_scores(void)
{
    enum { S = 100, HD = 8 };
    double *packed = kt_random(S * 3 * HD, -1, 1), *o = kt_zeros(S * HD), *lse = kt_zeros(S), *bias = kt_zeros(S);
    struct shape z = { 1, S, 1, HD, true, 0, 0 };

    for (int i = 0; i < S; i++)
        bias[i] = i % 2 ? 3000 - i : -3000 - i;
    void *d = kt_in(packed, S * 3 * HD, DTYPE_F32), *d_bias = kt_in(bias, S, DTYPE_F32);
    struct qkv x = split(&z, packed);
    struct kernel_attention a = {
        .b = 1, .s = S, .heads = 1, .hd = HD, .q = d, .k = (float *)d + HD, .v = (float *)d + 2 * HD,
        .token_stride = 3 * HD, .head_stride = 3 * HD, .o = kt_out(S * HD, DTYPE_F32), .lse = kt_out(S, DTYPE_F32),
        .scale = 0.5f, .bias = d_bias,
    };
    struct ref_attention r = { .b = 1, .s = S, .heads = 1, .hd = HD, .q = x.q, .k = x.k, .v = x.v,
                               .bias = bias, .scale = 0.5 };

    ref_attention(o, lse, &r);
    kt->attention(&a, DTYPE_F32, NULL);
    /* A score near 3000 has a last place of 2^-12, which is the error of its exponential. */
    kt_close("o", kt_get(a.o, S * HD, DTYPE_F32), o, S * HD, 4 * 0x1p-12, 0);
    kt_close("lse", kt_get(a.lse, S, DTYPE_F32), lse, S, 4 * 0x1p-12, EPS_F32);
}

/* A NaN in one sample's k reaches every later query of that head, and no other head, sample or earlier query. */
static void check_nan(int hd, enum dtype t)
{
    enum { B = 2, S = 120, H = 2 };
    const int n = B * S * H * hd;
    double *packed = kt_random(3 * n, -1, 1), *o;

    packed[((S + 50) * H + 1) * 3 * hd + hd + 3] = NAN;         /* sample 1, token 50, head 1 */
    char *d = kt_in(packed, 3 * n, t);
    struct kernel_attention a = {
        .b = B, .s = S, .heads = H, .hd = hd, .q = d, .k = d + hd * dtype_size(t), .v = d + 2 * hd * dtype_size(t),
        .token_stride = 3 * H * hd, .head_stride = 3 * hd, .o = kt_out(n, t), .lse = kt_out(B * H * S, DTYPE_F32),
        .scale = 0.25f,
    };

    kt->attention(&a, t, NULL);
    o = kt_get(a.o, n, t);
    for (int i = 0; i < n; i++) {
        int head = i / hd % H, token = i / hd / H % S, sample = i / hd / H / S;
        bool touched = sample == 1 && head == 1 && token >= 50;

        if (isnan(o[i]) != touched)
            fail_msg("%s: o of sample %d, token %d, head %d is %g", kt_name, sample, token, head, o[i]);
    }
}

static void test_nan(void)
{
    check_nan(16, DTYPE_F32);
    check_nan(64, DTYPE_BF16);
    check_nan(64, DTYPE_F16);
}

/*
 * What is too large for fp16 on the way back is not lost: of the query it belongs to, dq is infinite or NaN somewhere,
 * of all others finite, and so is some dk of the keys it sees, and of no other.
 */
static void check_overflow(int hd)
{
    enum { S = 100, AT = 50 };
    const int n = S * hd, size = 2;
    double *packed = kt_random(3 * n, -1, 1), *d_o = kt_random(n, -1, 1);
    bool lost = true;

    for (int d = 0; d < hd; d++)
        d_o[AT * hd + d] = d % 2 ? 60000 : -60000;
    for (int i = 0; i < n; i++)         /* dP of that query is up to 1e6 hd */
        packed[3 * (i / hd * hd) + 2 * hd + i % hd] = (i % 2 ? 16 : -16) * (i / hd % 3 - 1);
    char *d = kt_in(packed, 3 * n, DTYPE_F16), *grad = kt_out(3 * n, DTYPE_F16);
    struct kernel_attention a = {
        .b = 1, .s = S, .heads = 1, .hd = hd, .q = d, .k = d + hd * size, .v = d + 2 * hd * size,
        .token_stride = 3 * hd, .head_stride = 3 * hd, .o = kt_out(n, DTYPE_F16), .lse = kt_out(S, DTYPE_F32),
        .scale = (float)(1 / sqrt(hd)),
    };
    struct kernel_attention_back g = { kt_in(d_o, n, DTYPE_F16), grad, grad + hd * size, grad + 2 * hd * size,
                                       kt_scratch(kt->attention_scratch(&a)) };

    kt->attention(&a, DTYPE_F16, NULL);
    kt->attention_back(&a, &g, DTYPE_F16, NULL);
    double *got = kt_get(grad, 3 * n, DTYPE_F16);

    for (int token = 0; token < S; token++) {
        bool dq = true, dk = true;

        for (int i = 0; i < hd; i++) {
            dq = dq && isfinite(got[3 * token * hd + i]);
            dk = dk && isfinite(got[3 * token * hd + hd + i]);
        }
        lost = lost && dk;
        if (dq != (token != AT) || (!dk && token > AT))
            fail_msg("%s: hd %d, token %d: dq is %s, dk is %s", kt_name, hd, token, dq ? "finite" : "not",
                     dk ? "finite" : "not");
    }
    assert_false(lost);
}

static void test_overflow(void)
{
    check_overflow(16);
    check_overflow(64);
    check_overflow(128);
}

/* ---- the reference itself ---- */

enum { FD_N = 2 * 5 * 2 * 3 };
static struct {
    double q[FD_N], k[FD_N], v[FD_N], w[FD_N], bias[10];
    struct ref_attention a;
} fd;

static double fd_attention(const void *arg)
{
    double o[FD_N], lse[20], sum = 0;

    (void)arg;
    ref_attention(o, lse, &fd.a);
    for (int i = 0; i < FD_N; i++)
        sum += o[i] * fd.w[i];
    return sum;
}

static void test_reference_gradients(void)
{
    double dq[FD_N], dk[FD_N], dv[FD_N];

    memcpy(fd.q, kt_random(FD_N, -2, 2), sizeof fd.q);
    memcpy(fd.k, kt_random(FD_N, -2, 2), sizeof fd.k);
    memcpy(fd.v, kt_random(FD_N, -1, 1), sizeof fd.v);
    memcpy(fd.w, kt_random(FD_N, -1, 1), sizeof fd.w);
    memcpy(fd.bias, kt_random(10, -1, 1), sizeof fd.bias);
    for (int i = 0; i < 2; i++) {
        fd.a = (struct ref_attention){ 2, 5, 2, 3, 1, fd.q, fd.k, fd.v, i ? fd.bias : NULL, 0.6, 0,
                                       { i ? 0.3f : 0, { 5, 6 }, 35 }, DTYPE_F32 };
        ref_attention_back(dq, dk, dv, fd.w, &fd.a);
        assert_true(ref_gradient_error(fd_attention, NULL, fd.q, FD_N, dq) < 1e-8);
        assert_true(ref_gradient_error(fd_attention, NULL, fd.k, FD_N, dk) < 1e-8);
        assert_true(ref_gradient_error(fd_attention, NULL, fd.v, FD_N, dv) < 1e-8);
    }
}

int main(void)
{
    static const struct kt_case cases[] = {
        KT_CASE(test_attention), KT_CASE(test_rounded_scores), KT_CASE(test_large_scores), KT_CASE(test_nan),
        KT_CASE(test_overflow),
        KT_CASE(test_reference_gradients),
    };

    return kt_run_all(cases, sizeof cases / sizeof *cases);
}
