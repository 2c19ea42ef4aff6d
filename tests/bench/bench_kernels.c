/*
 * bench_kernels.c - measure the speed of the CPU kernels and of memcpy in the same run
 *
 * Usage: bench_kernels [THREADS [memory|half|attention]]. Each figure is the best of several runs on random data.
 * bench_gemm measures matrix products.
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

static const struct kernels *k;

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Return random numbers around 0, of dtype t, in device memory. */
static void *numbers(int64_t n, enum dtype t)
{
    static const uint32_t key[2] = { 1, 2 };
    struct err e = {0};
    float *x = k->dev->alloc((uint64_t)n * 4, &e);
    void *y = k->dev->alloc((uint64_t)n * 4, &e);

    if (!x || !y) {
        fprintf(stderr, "bench_kernels: %s\n", e.msg);
        exit(1);
    }
    k->normal(x, 0, n, 0.5f, key, NULL);
    k->cast(y, t, x, DTYPE_F32, n, NULL);
    k->dev->free(x);
    return y;
}

/* Return the seconds of the fastest of several calls of f(arg). */
static double best(void (*f)(void *arg), void *arg)
{
    double least = 1e30, start = now();

    f(arg);
    for (int i = 0; i < 100 && (i < 3 || now() - start < 0.4); i++) {
        double t0 = now(), t;

        f(arg);
        t = now() - t0;
        least = t < least ? t : least;
    }
    return least;
}

/* ---- memory ---- */

struct flat {
    int64_t m, h;
    enum dtype t;
    void *a, *b, *c, *d;
    float *mean, *rstd, *gamma_grad;
    void *scratch;
    struct kernel_adamw step;
    struct kernel_runs *runs;           /* one run of all elements */
    struct kernel_dropout drop;
};

static void run_copy(void *arg)
{
    struct flat *f = arg;
    int64_t bytes = f->m * f->h * 4, part = bytes / omp_get_max_threads();

    #pragma omp parallel for schedule(static)
    for (int i = 0; i < omp_get_max_threads(); i++)
        memcpy((char *)f->a + i * part, (char *)f->b + i * part, (size_t)part);
}

static void run_layernorm(void *arg)
{
    struct flat *f = arg;

    k->layernorm(&(struct kernel_layernorm){
        .m = f->m, .h = f->h, .x = f->b, .gamma = f->c, .beta = f->c, .eps = 1e-5f, .y = f->a, .mean = f->mean,
        .rstd = f->rstd,
    }, f->t, NULL);
}

static void run_layernorm_back(void *arg)
{
    struct flat *f = arg;

    k->layernorm_back(&(struct kernel_layernorm_back){
        .m = f->m, .h = f->h, .dy = f->b, .x = f->d, .gamma = f->c, .mean = f->mean, .rstd = f->rstd, .dx = f->a,
        .dgamma = f->gamma_grad, .dbeta = f->gamma_grad + f->h, .add = true, .scratch = f->scratch,
    }, f->t, NULL);
}

static void run_residual(void *arg)
{
    struct flat *f = arg;

    k->residual_norm(&(struct kernel_residual_norm){
        .a = f->b, .bias = f->c, .residual = f->a, .drop = f->drop, .z = f->a,
        .norm = {
            .m = f->m, .h = f->h, .gamma = f->c, .beta = f->c, .eps = 1e-5f, .y = f->d, .mean = f->mean,
            .rstd = f->rstd,
        },
    }, f->t, NULL);
}

static void run_gelu(void *arg)
{
    struct flat *f = arg;

    k->gelu(f->a, f->b, f->m * f->h, f->t, NULL);
}

static void run_adamw(void *arg)
{
    struct flat *f = arg;
    const int64_t n = f->m * f->h;

    /* fp32 whatever T is, since two numbers of T read as one of fp32 would be tiny, and slow. */
    k->adamw(&(struct kernel_adamw_buffers){
        .p = f->mean, .m = f->mean + n, .v = f->mean + 2 * n, .g = f->rstd, .w = f->scratch,
    }, f->runs, &f->step, f->t, NULL);
}

static void run_sumsq(void *arg)
{
    struct flat *f = arg;
    double out;

    k->sumsq(&out, f->a, f->m * f->h, f->scratch, NULL);
}

static void run_xent(void *arg)
{
    struct flat *f = arg;
    static int32_t target[4096];

    k->xent_stat(f->mean, &(struct kernel_xent){ .m = f->m, .v = f->h, .target = target, .logits = f->a }, f->t, NULL);
    k->xent_back(&(struct kernel_xent){
        .m = f->m, .v = f->h, .target = target, .logits = f->a,
    }, f->mean, f->mean + f->m, f->t, NULL);
}

static const struct kind {
    const char *name;
    void (*run)(void *);
    double two, f32;                /* for a two-byte T, and for fp32: bytes per element that must move */
} kinds[] = {
    { "layernorm", run_layernorm, 4, 8 }, { "layernorm_back", run_layernorm_back, 6, 12 },
    { "residual_norm, p 0.1", run_residual, 8, 16 }, { "gelu", run_gelu, 4, 8 },
    { "adamw", run_adamw, 30, 32 }, { "sumsq", run_sumsq, 4, 4 }, { "xent stat + back", run_xent, 6, 12 },
};

enum { N_KINDS = sizeof kinds / sizeof *kinds };

static struct flat flat_new(int64_t m, int64_t h, enum dtype t)
{
    const int64_t n = m * h;
    struct flat f = { m, h, t, numbers(n, t), numbers(n, t), numbers(n, t), numbers(n, t), numbers(3 * n, DTYPE_F32),
                      numbers(n, DTYPE_F32), numbers(n, DTYPE_F32), numbers(n, DTYPE_F32),
                      { 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 1 }, NULL, { 0.1f, { 1, 2 }, 0 } };

    f.runs = k->runs_new(&(struct kernel_run){ .n = n, .decay = 0.1f }, 1, &(struct err){0});
    return f;
}

static void flat_free(struct flat *f)
{
    k->dev->free(f->a), k->dev->free(f->b), k->dev->free(f->c), k->dev->free(f->d), k->dev->free(f->mean);
    k->dev->free(f->rstd), k->dev->free(f->gamma_grad), k->dev->free(f->scratch);
    k->runs_free(f->runs);
}

static void bench_memory(void)
{
    int64_t m = 4096, h = 2048, n = m * h;
    double copy = 0;

    for (int i = 0; i < 3; i++) {
        enum dtype t = i == 2 ? DTYPE_F16 : i ? DTYPE_BF16 : DTYPE_F32;
        struct flat f = flat_new(m, h, t);

        if (!i)
            printf("memcpy %.1f GB/s (bytes read and written)\n", copy = 8e-9 * (double)n / best(run_copy, &f));
        for (size_t j = 0; j < N_KINDS; j++) {
            double rate = 1e-9 * (i ? kinds[j].two : kinds[j].f32) * (double)n / best(kinds[j].run, &f);

            printf("%-22s %-4s %6.1f GB/s  ratio to memcpy %.2f\n", kinds[j].name, dtype_name(t), rate, rate / copy);
        }
        flat_free(&f);
    }
}

/* Measure fp16 and bf16 in alternating calls, on data in the caches. The best of each can be compared even on a
 * busy machine. */
static void bench_half(void)
{
    struct flat f[2] = { flat_new(32, 2048, DTYPE_BF16), flat_new(32, 2048, DTYPE_F16) };

    for (size_t j = 0; j < N_KINDS; j++) {
        double least[2] = { 1e30, 1e30 };

        for (int i = 0; i < 2000; i++) {
            double t0 = now(), t;

            kinds[j].run(&f[i % 2]);
            t = now() - t0;
            least[i % 2] = t < least[i % 2] ? t : least[i % 2];
        }
        printf("%-22s bf16 %6.1f us  f16 %6.1f us  ratio %.2f\n", kinds[j].name, 1e6 * least[0], 1e6 * least[1],
               least[1] / least[0]);
    }
    flat_free(&f[0]);
    flat_free(&f[1]);
}

/* ---- attention ---- */

struct pair {
    struct kernel_attention a;
    struct kernel_attention_back g;
    enum dtype t;
};

static void run_attention(void *arg)
{
    struct pair *p = arg;

    k->attention(&p->a, p->t, NULL);
}

static void run_attention_back(void *arg)
{
    struct pair *p = arg;

    k->attention_back(&p->a, &p->g, p->t, NULL);
}

static void bench_attention(int b, int s, int heads, int hd, float p, enum dtype t)
{
    int64_t ld = (int64_t)heads * hd, n = (int64_t)b * s * ld, size = dtype_size(t);
    char *qkv = numbers(3 * n, t), *grad = numbers(3 * n, t);
    struct pair x = {
        .a = { .b = b, .s = s, .heads = heads, .hd = hd, .q = qkv, .k = qkv + hd * size,
               .v = qkv + 2 * hd * size, .token_stride = 3 * ld, .head_stride = 3 * hd, .o = numbers(n, t),
               .lse = numbers((int64_t)b * heads * s, DTYPE_F32), .scale = (float)(1 / sqrt(hd)),
               .drop = { p, { 1, 2 }, 0 } },
        .g = { .d_o = numbers(n, t), .dq = grad, .dk = grad + hd * size, .dv = grad + 2 * hd * size },
        .t = t,
    };
    /* Causal attention uses half of the s x s scores, with 2 products forward and 5 backward. */
    double flop = 2e-9 * b * heads * 0.5 * s * s * hd;

    x.g.scratch = numbers((int64_t)k->attention_scratch(&x.a) / 4 + 1, DTYPE_F32);
    printf("attention b %d s %4d heads %2d hd %3d p %.1f %-4s  forward %6.1f", b, s, heads, hd, p, dtype_name(t),
           2 * flop / best(run_attention, &x));
    printf("  back %6.1f GFLOP/s\n", 5 * flop / best(run_attention_back, &x));
    k->dev->free(qkv), k->dev->free(grad), k->dev->free(x.a.o), k->dev->free(x.a.lse);
    k->dev->free((void *)x.g.d_o), k->dev->free(x.g.scratch);
}

int main(int argc, char **argv)
{
    struct kernel_opts o = { .threads = argc > 1 ? atoi(argv[1]) : 0 };
    const char *only = argc > 2 ? argv[2] : NULL;
    struct err e = {0};

    k = kernels_cpu_open(&o, &e);
    if (!k) {
        fprintf(stderr, "bench_kernels: %s\n", e.msg);
        return 1;
    }
    if (o.threads)
        omp_set_num_threads(o.threads);
    if (!only || !strcmp(only, "memory"))
        bench_memory();
    if (!only || !strcmp(only, "half"))
        bench_half();
    if (!only || !strcmp(only, "attention")) {
        bench_attention(1, 2048, 16, 64, 0, DTYPE_F32);
        bench_attention(1, 2048, 16, 64, 0, DTYPE_BF16);
        bench_attention(1, 2048, 16, 64, 0, DTYPE_F16);
        bench_attention(1, 2048, 16, 64, 0.1f, DTYPE_BF16);
        bench_attention(1, 2048, 8, 128, 0, DTYPE_BF16);
        bench_attention(8, 256, 12, 64, 0, DTYPE_F32);
    }
    kernels_close(k);
    return 0;
}
