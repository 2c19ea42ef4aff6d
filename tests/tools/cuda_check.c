/*
 * cuda_check - compare every GPU kernel with the CPU kernel
 *
 * cuda_check [small] [SEED] uses new random inputs, with sizes around the edges of packs, tiles and chunks and
 * sizes as large as those of real models. Outputs are poisoned with NaNs and followed by a border that must not
 * change. Each GPU kernel runs twice and must give the same bits. The exit status is 1 if anything differs. "small"
 * leaves out the sizes that take long under compute-sanitizer; every kernel still runs, on sizes that are no
 * multiple of a tile.
 *
 * Tolerances: inputs of sums are multiples of 1/4 in -1 .. 1, so that fp32 sums are exact in any order and both
 * devices must give the same bits (tolerance 0). Where a root, an exponential or a quotient is involved, both sides
 * are accurate to a few roundings of 2^-24 (U); each case states its own bound.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"

#define U      0x1p-24
#define SLOTS  16
#define BORDER 64

typedef void (*call_fn)(const struct kernels *k, void **p);

static const struct kernels *kernels[2];        /* CPU, GPU */
static struct slot {
    void *start;                        /* the initial contents on the host: input, or poison */
    uint64_t bytes;
    int64_t n;
    enum dtype t;
    void *got[3];                       /* CPU, GPU, GPU again */
} slots[SLOTS];
static uint64_t state;
static int failures, checks;
static int64_t largest = INT64_MAX;     /* elements of a case's largest tensor */
static const char *what;
static char sizes[120];

static void *must(void *p)
{
    if (!p) {
        fprintf(stderr, "cuda_check: out of memory\n");
        exit(1);
    }
    return p;
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t random_word(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static struct slot *slot_for(int i, int64_t n, enum dtype t)
{
    struct slot *s = &slots[i];

    *s = (struct slot){ .bytes = (uint64_t)(n * dtype_size(t)), .n = n, .t = t };
    s->start = must(malloc(s->bytes + BORDER));
    memset(s->start, 0xff, s->bytes + BORDER);
    return s;
}

static void put(struct slot *s, int64_t i, double x)
{
    if (s->t == DTYPE_BF16)
        ((uint16_t *)s->start)[i] = f32_to_bf16((float)x);
    else if (s->t == DTYPE_F16)
        ((uint16_t *)s->start)[i] = f32_to_f16((float)x);
    else if (s->t == DTYPE_F64)
        ((double *)s->start)[i] = x;
    else if (s->t == DTYPE_I32)
        ((int32_t *)s->start)[i] = (int32_t)x;
    else
        ((float *)s->start)[i] = (float)x;
}

/* Prepare an output filled with NaNs. */
static void out(int i, int64_t n, enum dtype t)
{
    slot_for(i, n, t);
}

static void in(int i, int64_t n, enum dtype t, double lo, double hi)
{
    struct slot *s = slot_for(i, n, t);

    for (int64_t j = 0; j < n; j++)
        put(s, j, lo + (hi - lo) * (double)(random_word() >> 11) * 0x1p-53);
}

/* Fill with multiples of 1/4 in -1 .. 1. A sum of fewer than 2^20 products of two such numbers is exact in fp32. */
static void exact(int i, int64_t n, enum dtype t)
{
    struct slot *s = slot_for(i, n, t);

    for (int64_t j = 0; j < n; j++)
        put(s, j, ((int)(random_word() % 9) - 4) / 4.0);
}

static void ids(int i, int64_t n, int64_t lo, int64_t hi)
{
    struct slot *s = slot_for(i, n, DTYPE_I32);

    for (int64_t j = 0; j < n; j++)
        put(s, j, (double)(lo + (int64_t)(random_word() % (uint64_t)(hi - lo))));
}

/* ---- running ---- */

static void run_on(const struct kernels *k, call_fn call, int which)
{
    void *p[SLOTS] = { 0 };
    struct err e = {0};

    for (int i = 0; i < SLOTS; i++)
        if (slots[i].start) {
            p[i] = k->dev->alloc(slots[i].bytes + BORDER, &e);
            if (!p[i]) {
                fprintf(stderr, "cuda_check: %s\n", e.msg);
                exit(1);
            }
            k->dev->copy(p[i], slots[i].start, slots[i].bytes + BORDER, NULL);
        }
    call(k, p);
    k->dev->stream_sync(NULL);
    if (k->dev->check(&e) < 0) {
        printf("%s: %s\n", what, e.msg);
        exit(1);                        /* later results would be meaningless */
    }
    for (int i = 0; i < SLOTS; i++)
        if (slots[i].start) {
            slots[i].got[which] = must(malloc(slots[i].bytes + BORDER));
            k->dev->copy(slots[i].got[which], p[i], slots[i].bytes + BORDER, NULL);
            k->dev->stream_sync(NULL);
            k->dev->free(p[i]);
        }
}

static void fail(const char *name, const char *why)
{
    printf("%s: %s: %s: %s\n", what, sizes, name, why);
    failures++;
}

static void run(const char *name, call_fn call)
{
    what = name;
    run_on(kernels[0], call, 0);
    run_on(kernels[1], call, 1);
    run_on(kernels[1], call, 2);
}

/* Compare slot i of both devices: |difference| <= tol + rel * |the CPU's|, and with `rel` one step of fp16's
 * smallest number. NaN fails. */
static void same(const char *name, int i, double tol, double rel)
{
    struct slot *s = &slots[i];
    int size = dtype_size(s->t);
    char why[200];

    checks++;
    if (s->t == DTYPE_F16 && rel > 0)
        tol += 0x1p-24;
    if (memcmp(s->got[1], s->got[2], s->bytes) != 0)
        fail(name, "not the same bits on a second run");
    for (int j = 0; j < BORDER; j++)
        if (((unsigned char *)s->got[1])[s->bytes + (uint64_t)j] != 0xff) {
            fail(name, "wrote behind its end");
            break;
        }
    for (int64_t j = 0; j < s->n; j++) {
        double cpu = dtype_value(s->t, (char *)s->got[0] + j * size),
               gpu = dtype_value(s->t, (char *)s->got[1] + j * size);

        if (!(fabs(gpu - cpu) <= tol + rel * fabs(cpu))) {
            snprintf(why, sizeof why, "element %lld of %lld: GPU %.9g, CPU %.9g, may differ by %.3g", (long long)j,
                     (long long)s->n, gpu, cpu, tol + rel * fabs(cpu));
            fail(name, why);
            return;
        }
    }
}

/* Compare norms: || difference || <= rel * || the CPU's ||, for values that either side rounds in between. */
static void near(const char *name, int i, double rel)
{
    struct slot *s = &slots[i];
    int size = dtype_size(s->t);
    double apart = 0, norm = 0;
    char why[200];

    checks++;
    if (memcmp(s->got[1], s->got[2], s->bytes) != 0)
        fail(name, "not the same bits on a second run");
    for (int64_t j = 0; j < s->n; j++) {
        double cpu = dtype_value(s->t, (char *)s->got[0] + j * size),
               gpu = dtype_value(s->t, (char *)s->got[1] + j * size);

        apart += (gpu - cpu) * (gpu - cpu);
        norm += cpu * cpu;
    }
    if (!(sqrt(apart) <= rel * sqrt(norm))) {
        snprintf(why, sizeof why, "differs by %.3g of its norm, may by %.3g", sqrt(apart / norm), rel);
        fail(name, why);
    }
}

static void done(void)
{
    for (int i = 0; i < SLOTS; i++) {
        free(slots[i].start);
        for (int j = 0; j < 3; j++)
            free(slots[i].got[j]);
        slots[i] = (struct slot){0};
    }
}

/* ---- inputs of the calls: sizes of the current case ---- */

static struct {
    int64_t m, n, k, h, v, first, rows;
    bool add, bias, grad_t;
    enum dtype t, g;                    /* g: type of gradients */
    struct kernel_dropout drop;
    struct kernel_attention a;
} c;

static double rounding(enum dtype t)
{
    return t == DTYPE_BF16 ? 0x1p-8 : t == DTYPE_F16 ? 0x1p-11 : U;
}

static double eps(void)
{
    return 2 * rounding(c.t);        /* one rounding on each side */
}

#define CALL(name, body) static void name(const struct kernels *k, void **p) { body; }

/* ---- linear layers ---- */

CALL(call_linear, k->linear(&(struct kernel_linear){
    .m = c.m, .n = c.n, .k = c.k, .x = p[0], .w = p[1], .bias = c.bias ? p[3] : NULL, .y = p[2],
}, c.t, NULL))
CALL(call_gelu, k->linear_gelu(&(struct kernel_linear){
    .m = c.m, .n = c.n, .k = c.k, .x = p[0], .w = p[1], .bias = c.bias ? p[3] : NULL, .y = p[2], .pre = p[4],
}, c.t, NULL))
CALL(call_gelu_only, k->linear_gelu(&(struct kernel_linear){
    .m = c.m, .n = c.n, .k = c.k, .x = p[0], .w = p[1], .bias = p[3], .y = p[2],
}, c.t, NULL))
CALL(call_dx, k->linear_dx(&(struct kernel_linear_dx){
    .m = c.m, .n = c.n, .k = c.k, .dy = p[2], .w = p[1], .dx = p[0], .add = c.add,
}, c.t, NULL))
CALL(call_dx_gelu, k->linear_dx_gelu(&(struct kernel_linear_dx){
    .m = c.m, .n = c.n, .k = c.k, .dy = p[2], .w = p[1], .pre = p[4], .dx = p[0],
}, c.t, NULL))
CALL(call_dw, k->linear_dw(&(struct kernel_linear_dw){
    .m = c.m, .n = c.n, .k = c.k, .dy = p[2], .x = p[0], .dw = p[1], .dbias = p[3], .add = c.add,
    .grad_t = c.grad_t,
}, c.t, NULL))

static void linear_case(int64_t m, int64_t n, int64_t k, enum dtype t)
{
    double reach = sqrt((double)k);                     /* typical size of a sum; used with small factors */

    if (m * n > largest || n * k > largest)
        return;
    c.m = m, c.n = n, c.k = k, c.t = t;
    for (int i = 0; i < 2; i++) {
        c.add = c.bias = i;
        snprintf(sizes, sizeof sizes, "m %lld n %lld k %lld %s%s", (long long)m, (long long)n, (long long)k,
                 dtype_name(t), i ? ", bias, add" : "");
        exact(0, m * k, t), exact(1, n * k, t), exact(3, n, t), out(2, m * n, t);
        run("linear", call_linear);
        same("y", 2, 0, 0);
        done();

        /* The result is gelu of pre, or of the value that pre was rounded from: half an ulp of pre times a slope of
         * at most 1.13. */
        exact(0, m * k, t), exact(1, n * k, t), exact(3, n, t), out(2, m * n, t), out(4, m * n, t);
        run("linear_gelu", call_gelu);
        same("pre", 4, 0, 0);
        same("y", 2, t == DTYPE_F32 ? 8 * U : 0.6 * rounding(t) * 4 * reach, eps() + 3 * 87 * U);
        done();

        exact(2, m * n, t), exact(1, n * k, t), exact(0, m * k, t);
        run("linear_dx", call_dx);
        same("dx", 0, 0, 0);
        done();

        exact(2, m * n, t), exact(0, m * k, t), exact(1, n * k, c.g), exact(3, n, c.g);
        run("linear_dw", call_dw);
        same("dw", 1, 0, 0);
        same("dbias", 3, 0, 0);
        done();
    }
    exact(0, m * k, t), exact(1, n * k, t), exact(3, n, t), out(2, m * n, t);
    run("linear_gelu, no pre", call_gelu_only);
    same("y", 2, t == DTYPE_F32 ? 8 * U : 0.6 * rounding(t) * 4 * reach, eps() + 3 * 87 * U);
    done();

    /* The slope is accurate to about 64 U on the CPU. That of cuBLASLt comes from tanh.approx, with 2^-11. */
    exact(2, m * n, t), exact(1, n * k, t), in(4, m * k, t, -4, 4), out(0, m * k, t);
    run("linear_dx_gelu", call_dx_gelu);
    same("dx", 0, t == DTYPE_F32 ? 512 * U * sqrt((double)n) : 0x1p-10 * 4 * sqrt((double)n), eps());
    done();
}

/* ---- rows ---- */

#define EPS 1e-5f
CALL(call_norm, k->layernorm(&(struct kernel_layernorm){
    .m = c.m, .h = c.h, .x = p[0], .gamma = p[1], .beta = p[2], .eps = EPS, .y = p[3], .mean = p[4], .rstd = p[5],
}, c.t, NULL))
CALL(call_residual, k->residual_norm(&(struct kernel_residual_norm){
    .a = p[0], .bias = p[7], .residual = p[8], .drop = c.drop, .z = p[6],
    .norm = { .m = c.m, .h = c.h, .gamma = p[1], .beta = p[2], .eps = EPS, .y = p[3], .mean = p[4], .rstd = p[5] },
}, c.t, NULL))
static void call_norm_back(const struct kernels *k, void **p)
{
    struct err e = {0};
    void *scratch = k->dev->alloc(k->layernorm_scratch(c.m, c.h), &e);

    k->layernorm(&(struct kernel_layernorm){
        .m = c.m, .h = c.h, .x = p[0], .gamma = p[1], .beta = p[2], .eps = EPS, .y = p[3], .mean = p[4], .rstd = p[5],
    }, c.t, NULL);
    k->layernorm_back(&(struct kernel_layernorm_back){
        .m = c.m, .h = c.h, .dy = p[7], .x = p[0], .gamma = p[1], .mean = p[4], .rstd = p[5],
        .add_dx = c.bias ? p[8] : NULL, .dx = p[9], .dgamma = p[10], .dbeta = p[11], .add = c.add,
        .grad_t = c.grad_t, .scratch = scratch,
    }, c.t, NULL);
    k->dev->stream_sync(NULL);
    k->dev->free(scratch);
}

static void call_drop_back(const struct kernels *k, void **p)
{
    struct err e = {0};
    void *scratch = k->dev->alloc(k->layernorm_scratch(c.m, c.h), &e);

    k->dropout_back(&(struct kernel_dropout_back){
        .m = c.m, .h = c.h, .dz = p[0], .drop = c.drop, .da = p[1], .dbias = p[2], .add = c.add,
        .grad_t = c.grad_t, .scratch = scratch,
    }, c.t, NULL);
    k->dev->stream_sync(NULL);
    k->dev->free(scratch);
}

static void norm_case(int64_t m, int64_t h, enum dtype t)
{
    /* Values are 2 .. 4, so rstd is at most 4 unless rows are tiny. Statistics are accurate to 64 U * 4. */
    double rstd = h < 16 ? 316 : 4, xhat = 64 * U * 4 * rstd * (h < 16 ? 4 : 1);

    if (m * h > largest)
        return;
    c.m = m, c.h = h, c.t = t, c.drop = (struct kernel_dropout){ 0.1f, { 7, 9 }, 3 };
    snprintf(sizes, sizeof sizes, "m %lld h %lld %s", (long long)m, (long long)h, dtype_name(t));
    in(0, m * h, t, 2, 4), in(1, h, t, 0.5, 1.5), in(2, h, t, -1, 1), out(3, m * h, t), out(4, m, DTYPE_F32);
    out(5, m, DTYPE_F32);
    run("layernorm", call_norm);
    same("y", 3, 2 * xhat, eps());
    same("mean", 4, 0, 64 * U);
    same("rstd", 5, 0, 256 * U + xhat * rstd);
    done();

    /* Both sides do the same roundings in the same order, so the bits must be equal. */
    in(0, m * h, t, 2, 4), in(1, h, t, 0.5, 1.5), in(2, h, t, -1, 1), out(3, m * h, t), out(4, m, DTYPE_F32);
    out(5, m, DTYPE_F32), out(6, m * h, t), in(7, h, t, -1, 1), in(8, m * h, t, -1, 1);
    run("residual_norm", call_residual);
    same("z", 6, 0, 0);
    same("y", 3, 4 * xhat, eps());
    done();

    for (int i = 0; i < 2; i++) {
        c.add = c.bias = i;
        in(0, m * h, t, 2, 4), in(1, h, t, 0.5, 1.5), in(2, h, t, -1, 1), out(3, m * h, t), out(4, m, DTYPE_F32);
        out(5, m, DTYPE_F32), exact(7, m * h, t), exact(8, m * h, t), out(9, m * h, t);
        exact(10, h, c.g), exact(11, h, c.g);
        run(i ? "layernorm_back, added" : "layernorm_back", call_norm_back);
        same("dx", 9, 16 * rstd * xhat + 64 * U * rstd, eps());
        same("dgamma", 10, (double)m * 8 * xhat + (double)m * (double)m * 4 * U, 4 * rounding(c.g));
        same("dbeta", 11, 0, 0);
        done();

        /* p = 1/2 doubles the kept values exactly. */
        c.drop.p = i ? 0.5f : 0;
        exact(0, m * h, t), out(1, m * h, t), exact(2, h, c.g);
        run("dropout_back", call_drop_back);
        same("da", 1, 0, 0);
        same("dbias", 2, 0, 0);
        done();
    }
}

/* ---- embedding ---- */

CALL(call_embed, k->embed(&(struct kernel_embed){
    .m = c.m, .h = c.h, .first = c.first, .rows = c.rows, .id = p[0], .table = p[1], .y = p[2],
}, c.t, NULL))
CALL(call_finish, k->embed_finish(&(struct kernel_embed_finish){
    .m = c.m, .h = c.h, .s = 48, .x = p[0], .position = p[1], .pos = c.bias ? p[3] : NULL, .drop = c.drop, .y = p[2],
}, c.t, NULL))
CALL(call_position, k->position_back(&(struct kernel_position_back){
    .m = c.m, .h = c.h, .s = 48, .n_pos = 48, .dx = p[0], .pos = c.bias ? p[3] : NULL, .dposition = p[1], .add = c.add,
    .grad_t = c.grad_t,
}, c.t, NULL))
static void call_embed_back(const struct kernels *k, void **p)
{
    struct err e = {0};
    void *scratch = k->dev->alloc(k->embed_scratch(c.m, c.rows), &e);

    k->embed_back(&(struct kernel_embed_back){
        .m = c.m, .h = c.h, .first = c.first, .rows = c.rows, .id = p[0], .dy = p[2], .dtable = p[1], .add = c.add,
        .grad_t = c.grad_t, .scratch = scratch,
    }, c.t, NULL);
    k->dev->stream_sync(NULL);
    k->dev->free(scratch);
}

/* Use ids of 0 .. vocab. Rows first .. first + rows belong to this rank. */
static void embed_case(int64_t m, int64_t h, int64_t vocab, int64_t first, int64_t rows, enum dtype t)
{
    c.m = m, c.h = h, c.first = first, c.rows = rows, c.t = t, c.drop = (struct kernel_dropout){ 0.3f, { 1, 2 }, 5 };
    snprintf(sizes, sizeof sizes, "m %lld h %lld vocabulary %lld, rows %lld from %lld %s", (long long)m, (long long)h,
             (long long)vocab, (long long)rows, (long long)first, dtype_name(t));
    ids(0, m, 0, vocab), in(1, rows * h, t, -1, 1), out(2, m * h, t);
    run("embed", call_embed);
    same("y", 2, 0, 0);
    done();
    for (int i = 0; i < 2; i++) {
        c.add = c.bias = i;
        ids(0, m, 0, vocab), exact(2, m * h, t), exact(1, rows * h, c.g);
        run("embed_back", call_embed_back);
        same("dtable", 1, 0, 0);
        done();
        in(0, m * h, t, -1, 1), in(1, 48 * h, t, -1, 1), out(2, m * h, t), ids(3, m, 0, 48);
        run("embed_finish", call_finish);
        same("y", 2, 0, 0);
        done();
        exact(0, m * h, t), exact(1, 48 * h, c.g), ids(3, m, 0, 48);
        run("position_back", call_position);
        same("dposition", 1, 0, 0);
        done();
    }
}

/* ---- loss ---- */

CALL(call_stat, k->xent_stat(p[2], &(struct kernel_xent){
    .m = c.m, .v = c.v, .first = c.first, .target = p[1], .logits = p[0],
}, c.t, NULL))
CALL(call_loss, k->xent_loss(p[1], p[2], p[0], 3, c.m, NULL))
CALL(call_xent_back, k->xent_back(&(struct kernel_xent){
    .m = c.m, .v = c.v, .first = c.first, .target = p[1], .logits = p[0],
}, p[2], p[3], c.t, NULL))

static void xent_case(int64_t m, int64_t v, int64_t first, enum dtype t)
{
    c.m = m, c.v = v, c.first = first, c.t = t;
    snprintf(sizes, sizeof sizes, "m %lld v %lld from %lld %s", (long long)m, (long long)v, (long long)first,
             dtype_name(t));
    /* Logits go up to 20. An exponent x log2 e is accurate to 30 U, and so is each term of the sum. */
    in(0, m * v, t, -20, 20), ids(1, m, 0, first + v + 5), out(2, 3 * m, DTYPE_F32);
    run("xent_stat", call_stat);
    same("stat", 2, 0, 128 * U);
    done();
    in(0, 9 * m, DTYPE_F32, 1, 20), out(1, m, DTYPE_F32), out(2, m, DTYPE_F32);
    run("xent_loss", call_loss);
    same("loss", 1, 64 * U, 4 * U);
    same("lse", 2, 0, 4 * U);
    done();
    in(0, m * v, t, -20, 20), ids(1, m, 0, first + v + 5), in(2, m, DTYPE_F32, 20, 25), in(3, m, DTYPE_F32, 0, 1e-3);
    run("xent_back", call_xent_back);
    same("dlogits", 0, 1e-3 * 128 * U, eps() + 256 * U);
    done();
}

/* ---- flat buffers ---- */

static struct kernel_adamw step = { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.19f, 0.0975f, 0.37f };

CALL(call_sum, k->weighted_sum(p[1], p[0], p[2], c.n, NULL); k->sum_doubles(p[3], p[4], c.n, NULL))
CALL(call_cast, k->cast(p[1], c.t, p[0], DTYPE_F32, c.n, NULL); k->cast(p[2], DTYPE_F32, p[1], c.t, c.n, NULL))
CALL(call_scale_add, k->scale(p[0], 0.7f, c.n, c.g, NULL); k->add(p[1], p[0], c.n, c.g, NULL))
CALL(call_normal, k->normal(p[0], 12345678901, c.n, 0.02f, c.drop.key, NULL))
CALL(call_gelu_flat, k->gelu(p[1], p[0], c.n, c.t, NULL))
/* Describe c.n elements as three runs of unequal sizes with gaps between them. */
static struct kernel_runs *runs_of(const struct kernels *k)
{
    const int64_t first = c.n / 3 / 8 * 8, second = c.n / 2 / 8 * 8;
    const struct kernel_run run[] = { { 0, first / 2, 0, 2, 0.1f }, { first, second - first, first, 0, 0 },
                                      { second, c.n - second, second, 1, 0.1f } };
    struct err e = {0};

    return must(k->runs_new(run, 3, &e));
}

static void call_adamw(const struct kernels *k, void **p)
{
    struct kernel_runs *r = runs_of(k);

    k->dev->zero(p[4], (uint64_t)(c.n * dtype_size(c.t)), NULL);
    k->dev->copy(p[5], &step, sizeof step, NULL);
    k->adamw(&(struct kernel_adamw_buffers){
        .p = p[0], .m = p[1], .v = p[2], .g = p[3], .w = p[4], .grad_t = c.grad_t,
    }, r, p[5], c.t, NULL);
    k->dev->stream_sync(NULL);
    k->runs_free(r);
}

static void call_sumsq_runs(const struct kernels *k, void **p)
{
    struct kernel_runs *r = runs_of(k);

    k->sumsq_runs(p[1], p[0], c.g, r, NULL);
    k->first_not_finite(p[2], p[0], c.g, r, NULL);
    k->dev->stream_sync(NULL);
    k->runs_free(r);
}

enum { DIGESTS = 12 };

static void call_digest(const struct kernels *k, void **p)
{
    const int64_t half = c.n / 2 / 8 * 8;
    const struct kernel_run run[] = { { .at = half, .n = c.n - half }, { .n = half, .out = 1 } };
    struct err e = {0};
    struct kernel_runs *r = runs_of(k), *none = must(k->runs_new(NULL, 0, &e)), *q = must(k->runs_new(run, 2, &e));
    /* The buffers have nothing in common. A digest of an empty range follows each buffer's digest. */
    const struct kernel_digests d = { {
        { p[0], c.t, r, 0 }, { p[0], c.t, none, 4 }, { p[2], DTYPE_F32, q, 5 }, { p[3], DTYPE_F32, r, 8 },
    }, KERNEL_DIGESTS };

    k->digest_runs(p[1], DIGESTS, &d, NULL);
    k->dev->stream_sync(NULL);
    k->runs_free(r);
    k->runs_free(none);
    k->runs_free(q);
}

static void call_sumsq(const struct kernels *k, void **p)
{
    struct err e = {0};
    void *tmp = k->dev->alloc((uint64_t)k->sumsq_scratch(c.n) * 8, &e);

    k->sumsq(p[1], p[0], c.n, tmp, NULL);
    k->dev->stream_sync(NULL);
    k->dev->free(tmp);
}

static void flat_case(int64_t n, enum dtype t)
{
    if (n > largest)
        return;
    c.n = n, c.t = t;
    snprintf(sizes, sizeof sizes, "n %lld %s", (long long)n, dtype_name(t));
    in(0, n, DTYPE_F32, -1, 1), out(1, 1, DTYPE_F64);
    run("sumsq", call_sumsq);
    same("sum", 1, 0, 1e-12);
    done();
    in(0, n, c.g, -1, 1), out(1, 3, DTYPE_F64), out(2, 1, DTYPE_I64);
    run("sumsq_runs, first_not_finite", call_sumsq_runs);
    same("sums", 1, 0, 1e-12), same("place", 2, 0, 0);
    done();
    in(0, n, t, -1, 1), out(1, DIGESTS * 8, DTYPE_U8), in(2, n, DTYPE_F32, -1, 1), in(3, n, DTYPE_F32, -1, 1);
    run("digest_runs", call_digest);
    same("digests", 1, 0, 0);
    done();
    in(0, n, c.g, -1, 1), out(1, 3, DTYPE_F64), out(2, 1, DTYPE_I64);
    put(&slots[0], n - 1 - n / 5, INFINITY), put(&slots[0], n - 1 - n / 9, NAN);
    run("first_not_finite", call_sumsq_runs);
    same("place", 2, 0, 0);
    done();
    in(0, n, DTYPE_F32, 0, 1), out(1, 1, DTYPE_F64), in(2, n, DTYPE_F32, 0, 1), in(3, n, DTYPE_F64, 0, 1);
    in(4, n, DTYPE_F64, 0, 1);
    run("weighted_sum, sum_doubles", call_sum);
    same("sum", 1, 0, 1e-12);
    same("doubles", 3, 0, 0);
    done();
    in(0, n, DTYPE_F32, -1, 1), in(1, n, DTYPE_F32, -0.1, 0.1), in(2, n, DTYPE_F32, 0, 0.01), in(3, n, c.g, -1, 1);
    out(4, n, t), out(5, sizeof step / 4, DTYPE_F32);
    run("adamw", call_adamw);
    same("p", 0, 0, 0), same("m", 1, 0, 0), same("v", 2, 0, 0), same("w", 4, 0, 0);
    done();
    in(0, n, DTYPE_F32, -1, 1), out(1, n, t), out(2, n, DTYPE_F32);
    run("cast", call_cast);
    same("T", 1, 0, 0), same("fp32", 2, 0, 0);
    done();
    in(0, n, c.g, -1, 1), in(1, n, c.g, -1, 1);
    run("scale, add", call_scale_add);
    same("x", 0, 0, 0), same("y", 1, 0, 0);
    done();
    out(0, n, DTYPE_F32);
    run("normal", call_normal);
    same("x", 0, 0, 2 * U);                     /* both sides round fp64 functions; the results rarely differ by one
                                                 * step */
    done();
    in(0, n, t, -9, 9), out(1, n, t);
    run("gelu", call_gelu_flat);
    same("y", 1, 1e-12, eps() + 3 * 87 * U);
    done();
}

/* ---- attention ---- */

static void call_attention(const struct kernels *k, void **p)
{
    struct kernel_attention a = c.a;
    struct err e = {0};
    int64_t size = dtype_size(c.t);
    char *qkv = p[0], *grad = p[5];
    struct kernel_attention_back g = { p[4], grad, grad + a.hd * size, grad + 2 * a.hd * size, NULL };

    a.q = qkv, a.k = qkv + a.hd * size, a.v = qkv + 2 * a.hd * size;
    a.o = p[1], a.lse = p[2], a.bias = c.bias ? p[3] : NULL;
    g.scratch = k->dev->alloc(k->attention_scratch(&a), &e);
    k->attention(&a, c.t, NULL);
    k->attention_back(&a, &g, c.t, NULL);
    k->dev->stream_sync(NULL);
    k->dev->free(g.scratch);
}

static void attention_case(int b, int s, int heads, int hd, float p, bool bias, enum dtype t)
{
    int64_t n = (int64_t)b * s * heads * hd;
    /* With two-byte types, probabilities and dS are rounded in between. */
    double rel = t == DTYPE_BF16 ? 1e-2 : t == DTYPE_F16 ? 1.25e-3 : 1e-5;

    c.t = t, c.bias = bias;
    c.a = (struct kernel_attention){ .b = b, .s = s, .heads = heads, .hd = hd, .head0 = 1,
                                     .token_stride = 3 * heads * hd, .head_stride = 3 * hd,
                                     .scale = 1 / sqrtf((float)hd), .drop = { p, { 3, 4 }, 2 * s } };
    snprintf(sizes, sizeof sizes, "b %d s %d heads %d hd %d p %.1f%s %s", b, s, heads, hd, p, bias ? ", bias" : "",
             dtype_name(t));
    in(0, 3 * n, t, -2, 2), out(1, n, t), out(2, (int64_t)b * heads * s, DTYPE_F32), in(3, heads * s, DTYPE_F32, -3, 3);
    in(4, n, t, -1, 1), out(5, 3 * n, t);
    run("attention", call_attention);
    near("o", 1, rel);
    near("lse", 2, t == DTYPE_F32 ? 1e-5 : 1e-4);
    near("dq, dk, dv", 5, rel);
    done();
}

/* Fill part `part` of a slot [b * s, heads, parts, hd]: f(token) in column token % hd or in all of them, else 0. A
 * NULL f gives 0. */
static void part_rows(int slot, int parts, int part, bool all, double (*f)(int64_t token))
{
    int64_t hd = c.a.hd, n = slots[slot].n / hd;

    for (int64_t r = part; r < n; r += parts)
        for (int64_t d = 0; d < hd; d++) {
            int64_t token = r / parts / c.a.heads % c.a.s;

            put(&slots[slot], r * hd + d, f && (all || d == token % hd) ? f(token) : 0);
        }
}

static double one(int64_t token) { (void)token; return 1; }
static double code(int64_t token) { return ldexp(1, -(int)(token / c.a.hd)); }
static double count(int64_t token) { return (double)token + 1; }
static double count_code(int64_t token) { return count(token) * code(token); }

/*
 * Check masks element by element. All scores are 0, so probabilities are 1 / (query + 1), and dO cancels that
 * factor. The other inputs make the binary digits of each result equal the mask of up to 4 keys or queries that are
 * hd apart. The last digit counts 1/8, and roundings to two bytes amount to less than half of that.
 */
static void mask_case(int s, int hd, float p, enum dtype t)
{
    const int b = 2, heads = 3;
    int64_t n = (int64_t)b * s * heads * hd;

    c.t = t, c.bias = false;
    c.a = (struct kernel_attention){ .b = b, .s = s, .heads = heads, .hd = hd, .head0 = 5,
                                     .token_stride = 3 * heads * hd, .head_stride = 3 * hd, .scale = 1,
                                     .drop = { p, { 5, 6 }, 7 * (int64_t)s } };
    snprintf(sizes, sizeof sizes, "s %d hd %d p %.2f %s", s, hd, p, dtype_name(t));
    for (int keys = 0; keys < 2; keys++) {
        out(0, 3 * n, t), out(1, n, t), out(2, (int64_t)b * heads * s, DTYPE_F32), out(4, n, t), out(5, 3 * n, t);
        if (keys) {                     /* q = 0: o [query, d] and dq [query, d] show keys d, d + hd, .. */
            part_rows(0, 3, 0, true, NULL), part_rows(0, 3, 1, false, one), part_rows(0, 3, 2, false, code);
            part_rows(4, 1, 0, true, count);
        } else {                        /* k = 0: dk [key, d] and dv [key, d] show queries d, d + hd, .. */
            part_rows(0, 3, 0, false, one), part_rows(0, 3, 1, true, NULL), part_rows(0, 3, 2, true, one);
            part_rows(4, 1, 0, false, count_code);
        }
        run(keys ? "attention, masks of keys" : "attention, masks of queries", call_attention);
        same("o", 1, 0, eps() + 64 * U);
        same("dq, dk, dv", 5, 1.0 / 16, eps());
        done();
    }
}

int main(int argc, char **argv)
{
    static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F16 };
    static const int64_t products[][3] = { { 1, 8, 8 },          { 5, 7, 3 },        { 77, 72, 264 },
                                           { 130, 200, 65 },     { 300, 1000, 520 }, { 513, 2056, 1032 },
                                           { 2048, 3072, 1024 }, { 129, 4104, 96 } };
    static const int64_t rows[][2] = { { 1, 1 }, { 3, 7 }, { 700, 64 }, { 65, 80 }, { 33, 1023 }, { 1030, 1024 },
                                       { 515, 2048 }, { 40, 2560 }, { 133, 4096 }, { 17, 14336 }, { 9, 16392 } };
    static const int64_t flats[] = { 1, 3, 4, 1023, 16384, 16385, 1000003 };
    static const int dims[] = { 16, 64, 80, 96, 128, 40 };
    struct kernel_opts o = {0};
    struct err e = {0};

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "small") == 0) {
        largest = 250000;
        argv++, argc--;
    }
    state = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    kernels[0] = kernels_cpu_open(&o, &e);
    kernels[1] = kernels[0] ? kernels_cuda_open(&o, &e) : NULL;
    if (!kernels[1]) {
        fprintf(stderr, "cuda_check: %s\n", e.msg);
        return 1;
    }
    for (int i = 0; i < 4; i++) {
        enum dtype t = types[i];

        c.grad_t = i == 3;
        c.g = c.grad_t ? t : DTYPE_F32;
        for (size_t j = 0; j < sizeof products / sizeof *products; j++)
            linear_case(products[j][0], products[j][1], products[j][2], t);
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++)
            norm_case(rows[j][0], rows[j][1], t);
        embed_case(500, 64, 90, 30, 40, t), embed_case(1, 7, 3, 0, 3, t), embed_case(4099, 33, 5, 0, 5, t);
        embed_case(2048, 1024, 50257, 20000, 30257, t);
        for (size_t j = 0; j < sizeof flats / sizeof *flats; j++)
            flat_case(flats[j], t);
        if (c.grad_t)
            break;                      /* the other types have no gradients of parameters */
        xent_case(3, 5, 0, t), xent_case(40, 1003, 100, t), xent_case(17, 50257, 0, t), xent_case(9, 125440, 125440, t);
        for (size_t j = 0; j < sizeof dims / sizeof *dims; j++) {
            attention_case(2, 77, 3, dims[j], 0, true, t), attention_case(1, 300, 2, dims[j], 0.2f, true, t);
            attention_case(2, 256, 2, dims[j], 0, false, t), attention_case(3, 77, 2, dims[j], 0.1f, false, t);
            mask_case(4 * dims[j] - 1, dims[j], 0.1f, t), mask_case(2 * dims[j] + 13, dims[j], 0.25f, t);
        }
    }
    printf("cuda_check: %d outputs compared, %d failures\n", checks, failures);
    kernels_close(kernels[1]);
    kernels_close(kernels[0]);
    return failures != 0;
}
