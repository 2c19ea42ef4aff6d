/*
 * bench_attention.cu - attention on the GPU: is it right, and how fast is it?
 *
 * Usage: bench_attention check | small | time | long
 * check: every path against fp64 on the CPU, from the same inputs: awkward sizes, strides, bias, dropout,
 *        outputs poisoned first, two runs compared bit by bit. Exit 1 if anything is off.
 * small: the same without the long sequences, for compute-sanitizer.
 * time:  batch 8, s 2048, causal; JSON lines with the median of 20 calls. A product of a [s, hd] and a
 *        [hd, s] counts s * s * hd flops (half, being causal): forward 2, back 5, whatever is really computed.
 * long:  16384 tokens, head dimension 128, 16 heads, s from 2048 to 16384, with and without ALiBi, from random inputs
 *        and from zeros; the clock rate and the power while the backward pass repeats, read by nvidia-smi. Zeros need
 *        the same instructions and less power, so they show what the card's power limit costs.
 */
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/cuda_attention.h"

#define THREADS 16
#define GUARD   4096                    /* poisoned bytes behind each output */

static int failures;

static void must(cudaError_t status, const char *what)
{
    if (status == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

static void must_run(const char *what)
{
    struct err e = {};

    must(cudaDeviceSynchronize(), what);
    if (cuda_dev.check(&e) < 0) {
        fprintf(stderr, "%s: %s\n", what, e.msg);
        exit(1);
    }
}

/* ---- a case and its tensors ---- */

struct shape {
    int b, s, heads, hd;
    enum dtype t;
    bool packed, bias;                  /* packed: [b * s, heads, 3, hd]; else three [b * s, heads, hd] */
    float drop;
};

struct tensors {
    struct shape c;
    struct kernel_attention a;
    struct kernel_attention_back g;
    std::vector<float> q, k, v, d_o, bias;      /* [b, heads, s, hd]; bias [heads, s] */
    void *in, *grad, *o, *d_o_dev;      /* in and grad: q, k, v; three tensors in one buffer */
    float *lse, *bias_dev;
    size_t in_bytes, o_bytes, lse_bytes;
};

static uint64_t random_state = 88172645463325252ull;

static double uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (double)(random_state >> 11) / 9007199254740992.0;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform()));
}

static uint16_t to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
static float from_bf16(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;

    memcpy(&f, &u, 4);
    return f;
}

/* What T makes of a number, and its bits where T has two bytes */
static uint16_t to_bits(float x, enum dtype t)
{
    return t == DTYPE_F16 ? __half_as_ushort(__float2half_rn(x)) : to_bf16(x);
}
static float from_bits(uint16_t x, enum dtype t)
{
    return t == DTYPE_F16 ? __half2float(__ushort_as_half(x)) : from_bf16(x);
}
static size_t bytes_of(enum dtype t) { return t == DTYPE_F32 ? 4 : 2; }
static const char *name_of(enum dtype t) { return t == DTYPE_F32 ? "f32" : t == DTYPE_F16 ? "f16" : "bf16"; }

static int64_t in_index(const struct shape *c, int which, int64_t sample, int64_t head, int64_t token, int64_t d)
{
    int64_t row = sample * c->s + token;

    if (c->packed)
        return ((row * c->heads + head) * 3 + which) * c->hd + d;
    return ((which * (int64_t)c->b * c->s + row) * c->heads + head) * c->hd + d;
}

static void put(void *to, int64_t at, float x, enum dtype t)
{
    if (t == DTYPE_F32)
        ((float *)to)[at] = x;
    else
        ((uint16_t *)to)[at] = to_bits(x, t);
}
static float get(const void *from, int64_t at, enum dtype t)
{
    return t == DTYPE_F32 ? ((const float *)from)[at] : from_bits(((const uint16_t *)from)[at], t);
}

static void *dev_new(size_t bytes)
{
    void *p;

    must(cudaMalloc(&p, bytes + GUARD), "cudaMalloc");
    return p;
}

/* Random values that T holds exactly, drawn from a million normal ones: fresh ones would take longer than all else. */
static void random_fill(std::vector<float> &x, size_t n, enum dtype t)
{
    static std::vector<float> pool;

    for (size_t i = pool.size(); i < 1 << 20; i++)
        pool.push_back(normal());
    x.resize(n);
    for (float &f : x) {
        float drawn = pool[(size_t)(uniform() * (1 << 20))];

        f = t == DTYPE_F32 ? drawn : from_bits(to_bits(drawn, t), t);
    }
}

static void describe(struct tensors *x)
{
    const struct shape *c = &x->c;
    size_t esize = bytes_of(c->t);
    int64_t third = c->packed ? c->hd : (int64_t)c->b * c->s * c->heads * c->hd;
    struct kernel_attention *a = &x->a;

    a->b = c->b;
    a->s = c->s;
    a->heads = c->heads;
    a->hd = c->hd;
    a->head0 = 2;
    a->token_stride = (int64_t)c->heads * c->hd * (c->packed ? 3 : 1);
    a->head_stride = c->hd * (c->packed ? 3 : 1);
    a->q = x->in;
    a->k = (char *)x->in + third * esize;
    a->v = (char *)x->in + 2 * third * esize;
    a->o = x->o;
    a->lse = x->lse;
    a->scale = 1 / sqrtf((float)c->hd);
    a->bias = c->bias ? x->bias_dev : NULL;
    a->drop.p = c->drop;
    a->drop.key[0] = 0x12345678;
    a->drop.key[1] = 0x9ABCDEF0;
    a->drop.row0 = 3 * (int64_t)c->s;
    x->g.d_o = x->d_o_dev;
    x->g.dq = x->grad;
    x->g.dk = (char *)x->grad + third * esize;
    x->g.dv = (char *)x->grad + 2 * third * esize;
    x->g.scratch = dev_new(cuda_attention_scratch(a));
}

static void tensors_new(struct tensors *x, const struct shape *c)
{
    size_t esize = bytes_of(c->t), rows = (size_t)c->b * c->heads * c->s, n = rows * c->hd;
    std::vector<char> host(3 * n * esize);

    x->c = *c;
    random_fill(x->q, n, c->t);
    random_fill(x->k, n, c->t);
    random_fill(x->v, n, c->t);
    random_fill(x->d_o, n, c->t);
    x->bias.resize((size_t)c->heads * c->s);
    for (int h = 0; h < c->heads; h++)
        for (int j = 0; j < c->s; j++)
            x->bias[(size_t)h * c->s + j] = from_bf16(to_bf16((float)(exp2(-8.0 * (h + 1) / c->heads) * j)));
    x->in_bytes = 3 * n * esize;
    x->o_bytes = n * esize;
    x->lse_bytes = rows * 4;
    x->in = dev_new(x->in_bytes);
    x->grad = dev_new(x->in_bytes);
    x->o = dev_new(x->o_bytes);
    x->d_o_dev = dev_new(x->o_bytes);
    x->lse = (float *)dev_new(x->lse_bytes);
    x->bias_dev = (float *)dev_new(x->bias.size() * 4);
    describe(x);

    const std::vector<float> *part[3] = { &x->q, &x->k, &x->v };
    for (int w = 0; w < 3; w++)
        for (size_t i = 0; i < n; i++) {
            int64_t d = i % c->hd, token = i / c->hd % c->s, row = i / c->hd / c->s;

            put(host.data(), in_index(c, w, row / c->heads, row % c->heads, token, d), (*part[w])[i], c->t);
        }
    must(cudaMemcpy(x->in, host.data(), x->in_bytes, cudaMemcpyHostToDevice), "copy");
    for (size_t i = 0; i < n; i++) {
        size_t d = i % c->hd, token = i / c->hd % c->s, row = i / c->hd / c->s;

        put(host.data(), (int64_t)(((row / c->heads * c->s + token) * c->heads + row % c->heads) * c->hd + d),
            x->d_o[i], c->t);
    }
    must(cudaMemcpy(x->d_o_dev, host.data(), x->o_bytes, cudaMemcpyHostToDevice), "copy");
    must(cudaMemcpy(x->bias_dev, x->bias.data(), x->bias.size() * 4, cudaMemcpyHostToDevice), "copy");
}

static void tensors_free(struct tensors *x)
{
    void *all[] = { x->in, x->grad, x->o, x->d_o_dev, x->lse, x->bias_dev, x->g.scratch };

    for (void *p : all)
        must(cudaFree(p), "cudaFree");
}

/* ---- reference: one head in fp64 ---- */

struct reference {
    const struct tensors *x;
    int64_t sample, head;
    std::vector<double> p, ds, o, lse, dq, dk, dv;      /* p and ds [s, s] */
    std::vector<float> mask;            /* [s, s] when there is dropout */
    int phase;
};

static void philox7(uint32_t c[4], const uint32_t key[2])
{
    for (uint32_t round = 0; round < 7; round++) {
        uint64_t a = 0xD2511F53ull * c[0], b = 0xCD9E8D57ull * c[2];
        uint32_t n[4] = { (uint32_t)(b >> 32) ^ c[1] ^ (key[0] + round * 0x9E3779B9u), (uint32_t)b,
                          (uint32_t)(a >> 32) ^ c[3] ^ (key[1] + round * 0xBB67AE85u), (uint32_t)a };

        memcpy(c, n, 4 * sizeof *c);
    }
}

/* 16 bits of the words that 2 queries and 16 keys share, one for each power of two. */
static float keep_factor(const struct kernel_dropout *d, int64_t sample, int64_t head, int64_t query, int64_t key)
{
    uint32_t u = 0, limit = (uint32_t)floor(d->p * 65536.0 + 0.5);

    for (int i = 0; i < 16; i += 4) {
        uint32_t c[4] = { (uint32_t)(key / 16 * 4 + i / 4), (uint32_t)(query / 2), (uint32_t)head, (uint32_t)sample };

        philox7(c, d->key);
        for (int w = 0; w < 4; w++)
            u |= (c[w] >> (query % 2 * 16 + key % 16) & 1) << (i + w);
    }
    return u >= limit ? (float)(1 / (1 - limit / 65536.0)) : 0;
}

static double dot(const float *x, const float *y, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)x[i] * y[i];
    return sum;
}

/* Row i: probabilities, output, dS, dQ. */
static void reference_query(struct reference *r, int64_t i)
{
    const struct tensors *x = r->x;
    const struct kernel_attention *a = &x->a;
    int64_t s = a->s, hd = a->hd, base = (r->sample * a->heads + r->head) * s;
    const float *q = &x->q[(base + i) * hd], *d_o = &x->d_o[(base + i) * hd];
    double *p = &r->p[i * s], *ds = &r->ds[i * s], *o = &r->o[i * hd], *dq = &r->dq[i * hd], top = -INFINITY, sum = 0;
    int64_t sample = a->drop.row0 / s + r->sample, head = a->head0 + r->head;
    double d = 0;

    for (int64_t j = 0; j <= i; j++) {
        p[j] = dot(q, &x->k[(base + j) * hd], (int)hd) * a->scale + (a->bias ? x->bias[r->head * s + j] : 0);
        top = fmax(top, p[j]);
    }
    for (int64_t j = 0; j <= i; j++)
        sum += p[j] = exp(p[j] - top);
    r->lse[i] = top + log(sum);
    for (int64_t e = 0; e < hd; e++)
        o[e] = dq[e] = 0;
    for (int64_t j = 0; j <= i; j++) {
        double m = a->drop.p > 0 ? keep_factor(&a->drop, sample, head, i, j) : 1;

        p[j] /= sum;
        ds[j] = dot(d_o, &x->v[(base + j) * hd], (int)hd) * m;
        d += p[j] * ds[j];
        if (a->drop.p > 0)
            r->mask[i * s + j] = (float)m;
        for (int64_t e = 0; e < hd; e++)
            o[e] += p[j] * m * x->v[(base + j) * hd + e];
    }
    for (int64_t j = 0; j <= i; j++) {
        ds[j] = p[j] * (ds[j] - d);
        for (int64_t e = 0; e < hd; e++)
            dq[e] += ds[j] * a->scale * x->k[(base + j) * hd + e];
    }
}

static void reference_key(struct reference *r, int64_t j)
{
    const struct tensors *x = r->x;
    int64_t s = x->a.s, hd = x->a.hd, base = (r->sample * x->a.heads + r->head) * s;
    double *dk = &r->dk[j * hd], *dv = &r->dv[j * hd];

    for (int64_t e = 0; e < hd; e++)
        dk[e] = dv[e] = 0;
    for (int64_t i = j; i < s; i++) {
        double p = r->p[i * s + j] * (x->a.drop.p > 0 ? r->mask[i * s + j] : 1), ds = r->ds[i * s + j] * x->a.scale;

        for (int64_t e = 0; e < hd; e++) {
            dk[e] += ds * x->q[(base + i) * hd + e];
            dv[e] += p * x->d_o[(base + i) * hd + e];
        }
    }
}

struct share {
    struct reference *r;
    int64_t first;
};

static void *reference_share(void *arg)
{
    struct share *t = (struct share *)arg;

    for (int64_t i = t->first; i < t->r->x->a.s; i += THREADS)
        t->r->phase ? reference_key(t->r, i) : reference_query(t->r, i);
    return NULL;
}

static void reference_run(struct reference *r)
{
    size_t s = r->x->a.s, n = s * r->x->a.hd;

    r->p.resize(s * s);
    r->ds.resize(s * s);
    r->lse.resize(s);
    if (r->x->a.drop.p > 0)
        r->mask.resize(s * s);
    r->o.resize(n);
    r->dq.resize(n);
    r->dk.resize(n);
    r->dv.resize(n);
    for (r->phase = 0; r->phase < 2; r->phase++) {
        pthread_t thread[THREADS];
        struct share share[THREADS];

        for (int i = 0; i < THREADS; i++) {
            share[i] = { r, i };
            pthread_create(&thread[i], NULL, reference_share, &share[i]);
        }
        for (int i = 0; i < THREADS; i++)
            pthread_join(thread[i], NULL);
    }
}

/* ---- check ---- */

/*
 * ||got - want|| / ||want|| over a head, and the worst row's, relative to its own norm and the mean
 * row's: a row of dQ may cancel (one key: it is 0), but the rounding of O, by which D is off, stays.
 * Limits in bf16: inputs are exact, P or dS and the result are rounded, 2^-9 each, and O for D: under 3 * 2^-9. In
 * fp16 an eighth of that.
 * Written so that a NaN fails.
 */
static void compare(const struct shape *c, const char *what, const std::vector<double> &want,
                    const std::vector<double> &got, int row, double *worst)
{
    double all = 0, off = 0, bad = 0, limit = c->t == DTYPE_BF16 ? 6e-3 : c->t == DTYPE_F16 ? 7.5e-4 : 1e-5;
    size_t rows = want.size() / row, bad_row = 0;

    for (size_t i = 0; i < want.size(); i++)
        all += want[i] * want[i];
    for (size_t i = 0; i < rows; i++) {
        double a = 0, d = 0, rel;

        for (size_t e = i * row; e < (i + 1) * row; e++) {
            a += want[e] * want[e];
            d += (got[e] - want[e]) * (got[e] - want[e]);
        }
        off += d;
        rel = sqrt(d) / (sqrt(a) + sqrt(all / rows) + 1e-30);
        if (!(rel <= bad)) {
            bad = rel;
            bad_row = i;
        }
    }
    off = sqrt(off) / (sqrt(all) + 1e-30);
    if (!(off <= *worst))
        *worst = off;
    if (!(off <= limit && bad <= 5 * limit)) {
        printf("FAIL hd=%d s=%d %s: error %.3g, worst row %zu %.3g\n", c->hd, c->s, what, off, bad_row, bad);
        failures++;
    }
}

static void check_head(const struct tensors *x, int sample, int head, const std::vector<char> &grad,
                       const std::vector<char> &o, const std::vector<float> &lse, double *worst)
{
    const struct shape *c = &x->c;
    struct reference r = {};
    std::vector<double> got[4], got_lse(c->s);

    r.x = x;
    r.sample = sample;
    r.head = head;
    reference_run(&r);
    for (int w = 0; w < 4; w++) {
        got[w].resize((size_t)c->s * c->hd);
        for (int64_t i = 0; i < c->s; i++)
            for (int64_t d = 0; d < c->hd; d++)
                got[w][i * c->hd + d] =
                    w < 3 ? get(grad.data(), in_index(c, w, sample, head, i, d), c->t)
                          : get(o.data(), (((int64_t)sample * c->s + i) * c->heads + head) * c->hd + d, c->t);
    }
    for (int i = 0; i < c->s; i++) {
        got_lse[i] = lse[((size_t)sample * c->heads + head) * c->s + i];
        if (!(fabs(got_lse[i] - r.lse[i]) <= 2e-5 * fmax(1, fabs(r.lse[i])) + 1e-4)) {
            printf("FAIL hd=%d s=%d lse[%d]: %.9g, not %.9g\n", c->hd, c->s, i, got_lse[i], r.lse[i]);
            failures++;
            break;
        }
    }
    compare(c, "o", r.o, got[3], c->hd, worst);
    /* One key: dS is 0 but for rounding, and so are dQ and dK. */
    if (c->s > 1) {
        compare(c, "dq", r.dq, got[0], c->hd, worst);
        compare(c, "dk", r.dk, got[1], c->hd, worst);
    }
    compare(c, "dv", r.dv, got[2], c->hd, worst);
}

static void run_poisoned(struct tensors *x, int poison, std::vector<char> &grad, std::vector<char> &o,
                         std::vector<char> &lse)
{
    grad.resize(x->in_bytes + GUARD);
    o.resize(x->o_bytes + GUARD);
    lse.resize(x->lse_bytes + GUARD);
    must(cudaMemset(x->grad, poison, grad.size()), "poison");
    must(cudaMemset(x->o, poison, o.size()), "poison");
    must(cudaMemset(x->lse, poison, lse.size()), "poison");
    must(cudaMemset(x->g.scratch, poison, cuda_attention_scratch(&x->a)), "poison");
    cuda_attention(&x->a, x->c.t, NULL);
    must_run("attention");
    cuda_attention_back(&x->a, &x->g, x->c.t, NULL);
    must_run("attention_back");
    must(cudaMemcpy(grad.data(), x->grad, grad.size(), cudaMemcpyDeviceToHost), "copy");
    must(cudaMemcpy(o.data(), x->o, o.size(), cudaMemcpyDeviceToHost), "copy");
    must(cudaMemcpy(lse.data(), x->lse, lse.size(), cudaMemcpyDeviceToHost), "copy");
}

static void guard(const struct shape *c, const std::vector<char> &x, size_t bytes, int poison, const char *what)
{
    for (size_t i = bytes; i < x.size(); i++)
        if ((unsigned char)x[i] != poison) {
            printf("FAIL hd=%d s=%d: written beyond the end of %s\n", c->hd, c->s, what);
            failures++;
            return;
        }
}

/* `heads`: how many of the heads are compared, spread over all. */
static void check(const struct shape *c, int heads)
{
    struct tensors x = {};
    std::vector<char> grad, o, lse_bytes, grad2, o2, lse2;
    std::vector<float> lse;
    int all = c->b * c->heads;
    double worst = 0;

    tensors_new(&x, c);
    run_poisoned(&x, 0xFF, grad, o, lse_bytes);
    run_poisoned(&x, 0x7F, grad2, o2, lse2);
    guard(c, grad, x.in_bytes, 0xFF, "gradients");
    guard(c, o, x.o_bytes, 0xFF, "o");
    guard(c, lse_bytes, x.lse_bytes, 0xFF, "lse");
    if (memcmp(grad.data(), grad2.data(), x.in_bytes) || memcmp(o.data(), o2.data(), x.o_bytes) ||
        memcmp(lse_bytes.data(), lse2.data(), x.lse_bytes)) {
        printf("FAIL hd=%d s=%d: two runs differ\n", c->hd, c->s);
        failures++;
    }
    lse.resize(x.lse_bytes / 4);
    memcpy(lse.data(), lse_bytes.data(), x.lse_bytes);
    for (int i = 0; i < std::min(heads, all); i++) {
        int row = heads < all && heads > 1 ? (int)((int64_t)i * (all - 1) / (heads - 1)) : i;

        check_head(&x, row / c->heads, row % c->heads, grad, o, lse, &worst);
    }
    printf("hd %d s %d b %d heads %d %s%s%s%s: error %.2g\n", c->hd, c->s, c->b, c->heads,
           name_of(c->t), c->packed ? " packed" : "", c->bias ? " bias" : "",
           c->drop > 0 ? " dropout" : "", worst);
    fflush(stdout);
    tensors_free(&x);
}

/* Hopper's own kernels */
static void check_fast(int hd, enum dtype t, bool small)
{
    static const int sizes[] = { 128, 1, 17, 129, 330, 1000 };
    struct shape c;

    for (int s : sizes) {
        if (small && s > 200)
            continue;
        c = { 2, s, 3, hd, t, true, true, 0 };
        check(&c, 6);
    }
    c = { 3, 257, 2, hd, t, false, false, 0 };
    check(&c, 6);
    c = { 2, 300, 2, hd, t, true, true, 0.125f };
    check(&c, 4);
    c = { 1, 131, 2, hd, t, true, false, 0.5f };
    check(&c, 2);
    c = { 3, 77, 2, hd, t, true, true, 0.1f };
    check(&c, 6);
    c = { 8, 2048, 16, hd, t, true, true, 0 };
    if (!small)
        check(&c, 4);
}

static void check_all(bool small)
{
    struct shape c;

    for (int hd : { 128, 64, 96, 80 }) {
        check_fast(hd, DTYPE_BF16, small);
        check_fast(hd, DTYPE_F16, small);
    }
    for (int hd : { 16, 40, 128 })
        for (enum dtype t : { DTYPE_F32, DTYPE_BF16, DTYPE_F16 })
            for (int s : { 1, 33, 200 }) {
                c = { 2, s, 3, hd, t, s != 33, s != 1, s == 200 ? 0.25f : 0 };
                check(&c, 6);
            }
    printf("%s: %d failures\n", failures ? "FAILED" : "ok", failures);
}

/* ---- time ---- */

template <typename F> static double median_ms(F call)
{
    cudaEvent_t from, to;
    std::vector<float> ms(20);

    must(cudaEventCreate(&from), "event");
    must(cudaEventCreate(&to), "event");
    for (int i = 0; i < 5; i++)
        call();
    for (float &t : ms) {
        must(cudaEventRecord(from), "event");
        call();
        must(cudaEventRecord(to), "event");
        must(cudaEventSynchronize(to), "event");
        must(cudaEventElapsedTime(&t, from, to), "event");
    }
    must_run("timing");
    std::sort(ms.begin(), ms.end());
    return ms[ms.size() / 2];
}

static void time_shape(int heads, int hd, enum dtype t, bool bias, float drop)
{
    struct shape c = { 8, 2048, heads, hd, t, true, bias, drop };
    struct tensors x = {};
    double flops = 2.0 * c.b * c.heads * c.s * c.s * c.hd;

    tensors_new(&x, &c);
    double fwd = median_ms([&] { cuda_attention(&x.a, c.t, NULL); });
    double back = median_ms([&] { cuda_attention_back(&x.a, &x.g, c.t, NULL); });
    double dq = median_ms([&] { attention_back_q_fast(&x.a, &x.g, (float *)x.g.scratch, t, NULL); });
    double dkv = median_ms([&] { attention_back_kv_fast(&x.a, &x.g, (float *)x.g.scratch, t, NULL); });
    printf("{\"op\": \"attention\", \"impl\": \"shardkit\", \"t\": \"%s\", \"hd\": %d, \"heads\": %d, \"alibi\": %s, "
           "\"dropout\": %.2g, \"fwd_tflops\": %.0f, \"bwd_tflops\": %.0f, \"fwd_ms\": %.3f, \"bwd_ms\": %.3f, "
           "\"dq_ms\": %.3f, \"dkv_ms\": %.3f}\n",
           name_of(t), hd, heads, bias ? "true" : "false", drop, flops / fwd / 1e9, 2.5 * flops / back / 1e9, fwd,
           back, dq, dkv);
    fflush(stdout);
    tensors_free(&x);
}

/* Print the clock rate and the power of the GPU while it works. `busy` queues at least a second of work. */
template <typename F> static void print_clock(F busy)
{
    char line[128] = "";
    FILE *p;

    busy();
    usleep(300000);
    p = popen("nvidia-smi -i ${CUDA_VISIBLE_DEVICES:-0} --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits",
              "r");
    if (!p || !fgets(line, sizeof line, p))
        strcpy(line, "unknown, unknown");
    if (p)
        pclose(p);
    must_run("work");
    line[strcspn(line, "\n")] = '\0';
    printf("\"mhz_watt\": \"%s\"}\n", line);
    fflush(stdout);
}

static void time_long(int s, bool bias, bool zeros)
{
    struct shape c = { 16384 / s, s, 16, 128, DTYPE_BF16, true, bias, 0 };
    struct tensors x = {};
    double flops = 2.0 * c.b * c.heads * c.s * c.s * c.hd;

    tensors_new(&x, &c);
    if (zeros) {
        must(cudaMemset(x.in, 0, x.in_bytes), "zeros");
        must(cudaMemset(x.d_o_dev, 0, x.o_bytes), "zeros");
    }
    double fwd = median_ms([&] { cuda_attention(&x.a, c.t, NULL); });
    double back = median_ms([&] { cuda_attention_back(&x.a, &x.g, c.t, NULL); });
    double dq = median_ms([&] { attention_back_q_fast(&x.a, &x.g, (float *)x.g.scratch, c.t, NULL); });
    double dkv = median_ms([&] { attention_back_kv_fast(&x.a, &x.g, (float *)x.g.scratch, c.t, NULL); });
    printf("{\"op\": \"attention\", \"s\": %d, \"alibi\": %s, \"input\": \"%s\", \"fwd_tflops\": %.0f, "
           "\"bwd_tflops\": %.0f, \"dq_ms\": %.3f, \"dkv_ms\": %.3f, ", s, bias ? "true" : "false",
           zeros ? "zeros" : "random", flops / fwd / 1e9, 2.5 * flops / back / 1e9, dq, dkv);
    print_clock([&] {
        for (double ms = 0; ms < 1500; ms += back)
            cuda_attention_back(&x.a, &x.g, c.t, NULL);
    });
    tensors_free(&x);
}

int main(int argc, char **argv)
{
    struct err e = {};

    if (argc != 2 || (strcmp(argv[1], "check") && strcmp(argv[1], "small") && strcmp(argv[1], "time") &&
                      strcmp(argv[1], "long"))) {
        fprintf(stderr, "usage: bench_attention check | small | time | long\n");
        return 2;
    }
    if (cuda_device_open(0, &e) < 0) {
        fprintf(stderr, "bench_attention: %s\n", e.msg);
        return 1;
    }
    if (!strcmp(argv[1], "long")) {
        for (int s = 2048; s <= 16384; s *= 2)
            for (int kind = 0; kind < 4; kind++)
                time_long(s, kind & 1, kind & 2);
        return 0;
    }
    if (strcmp(argv[1], "time")) {
        check_all(!strcmp(argv[1], "small"));
        return failures > 0;
    }
    for (int hd : { 128, 64, 96, 80 }) {
        for (enum dtype t : { DTYPE_BF16, DTYPE_F16 }) {
            time_shape(16, hd, t, true, 0);
            time_shape(16, hd, t, false, 0);
            time_shape(16, hd, t, true, 0.1f);
        }
    }
    time_shape(32, 128, DTYPE_BF16, true, 0);
    return 0;
}
