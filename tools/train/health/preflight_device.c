/*
 * preflight_device.c - test one rank's device: memory, copies, matrix products
 *
 * Each rate is the median of several rounds. A round is long compared with the resolution of the clock, and so short
 * that a disturbance affects only a few rounds.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/progress.h"
#include "tools/train/health/preflight_impl.h"
#include "tools/train/run/memory_plan.h"

enum { ROUNDS = 9 };

void preflight_wrong(struct preflight *p, const char *fmt, ...)
{
    va_list ap;

    if (p->mine->wrong[0])
        return;
    va_start(ap, fmt);
    vsnprintf(p->mine->wrong, sizeof p->mine->wrong, fmt, ap);
    va_end(ap);
}

void preflight_sync_device(struct preflight *p)
{
    struct err e = {0};

    watch_outside(p->watch, "the device", -1, NULL);
    p->dev->stream_sync(NULL);
    watch_outside_end(p->watch);
    if (p->dev->check(&e) < 0)
        preflight_wrong(p, "%s", e.msg);
}

void *preflight_alloc_device(struct preflight *p, uint64_t bytes)
{
    struct err e = {0};
    void *x = p->dev->alloc(bytes, &e);

    if (!x)
        preflight_wrong(p, "%s", e.msg);
    return x;
}

void *preflight_alloc_host(struct preflight *p, uint64_t bytes)
{
    struct err e = {0};
    void *x = p->dev->alloc_host(bytes, &e);

    if (!x)
        preflight_wrong(p, "%s", e.msg);
    return x;
}

/* ---- timing ---- */

static int by_round_rate(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the median time in seconds that one call of work() takes. */
static double seconds_of(struct preflight *p, void (*work)(struct preflight *p, void *arg), void *arg)
{
    double round[ROUNDS], begin;
    int times = 1;

    work(p, arg);                       /* the first call also loads code and chooses algorithms */
    preflight_sync_device(p);
    begin = clock_s();
    work(p, arg);
    preflight_sync_device(p);
    times += (int)(p->z.round_s / (clock_s() - begin + 1e-6));
    for (int i = 0; i < ROUNDS; i++) {
        begin = clock_s();
        for (int k = 0; k < times; k++)
            work(p, arg);
        preflight_sync_device(p);
        round[i] = (clock_s() - begin) / times;
    }
    qsort(round, ROUNDS, sizeof *round, by_round_rate);
    return round[ROUNDS / 2];
}

/* ---- memory ---- */

void preflight_random(struct preflight *p, float *x, int64_t n, uint32_t key)
{
    const uint32_t keys[2] = { key, 0x9f1e };

    p->k->normal(x, 0, n, 1, keys, NULL);
}

/*
 * Fill `pool` with copies of one block of random numbers, and compute the sum of squares of each copy. Each sum must
 * have the same bits as the sum of the block. A memory bit that cannot be written changes the sum.
 */
static void check_memory_pool(struct preflight *p, char *pool, uint64_t bytes)
{
    const uint64_t block = p->z.block, n = bytes / block;
    const int64_t elems = (int64_t)(block / 4);
    double *sums = preflight_alloc_device(p, (n + 1) * 8), *got = preflight_alloc_host(p, (n + 1) * 8);
    double *tmp = preflight_alloc_device(p, (uint64_t)p->k->sumsq_scratch(elems) * 8);
    float *source = preflight_alloc_device(p, block);

    if (sums && got && tmp && source) {
        preflight_random(p, source, elems, 1);
        p->k->sumsq(sums, source, elems, tmp, NULL);
        for (uint64_t i = 0; i < n; i++)
            p->dev->copy(pool + i * block, source, block, NULL);
        for (uint64_t i = 0; i < n; i++)
            p->k->sumsq(sums + 1 + i, (float *)(void *)(pool + i * block), elems, tmp, NULL);
        p->dev->copy(got, sums, (n + 1) * 8, NULL);
        preflight_sync_device(p);
        for (uint64_t i = 1; i <= n; i++)
            if (memcmp(&got[i], &got[0], 8) != 0)
                preflight_wrong(p, "memory at %llu of %llu bytes does not hold what was written",
                                (unsigned long long)((i - 1) * block), (unsigned long long)bytes);
        p->mine->memory = n * block;
    }
    p->dev->free(source);
    p->dev->free(tmp);
    p->dev->free_host(got);
    p->dev->free(sums);
}

/*
 * Returns the number of bytes of memory to test, which is as many as the memory plan needs. If there is no model, this
 * is most of a GPU's memory, but only a small part of a CPU's, because other processes use a CPU's memory as well.
 */
static uint64_t memory_wanted(const struct preflight *p)
{
    uint64_t total, left;
    struct memory_plan plan;

    if (p->t->network.stage) {
        memory_plan_stage(p->t, p->t->ranks.rank_pp, &plan);
        return plan.total;
    }
    if (dev_on_host(p->dev))
        return 16 * p->z.block;
    p->dev->memory(&total, &left);
    return left / 10 * 9;
}

void preflight_memory(struct preflight *p)
{
    const uint64_t bytes = align_up(memory_wanted(p), p->z.block);
    char *pool, need[16], have[16];
    uint64_t total, left;

    watch_phase(p->watch, "preflight: memory", -1, -1);
    p->dev->memory(&total, &left);
    /*
     * The operating system grants more host memory than there is. If memory runs out while it is written, the system
     * kills processes, and not necessarily this one.
     */
    if (bytes > left) {
        preflight_wrong(p, "%s of memory are needed, %s are free", bytes_text(bytes, need), bytes_text(left, have));
        return;
    }
    pool = preflight_alloc_device(p, bytes);
    if (pool)
        check_memory_pool(p, pool, bytes);
    p->dev->free(pool);
}

/* ---- copies ---- */

struct copy {
    void *to, *from;
};

static void do_copy(struct preflight *p, void *arg)
{
    const struct copy *c = arg;

    p->dev->copy(c->to, c->from, p->z.block, NULL);
}

void preflight_copies(struct preflight *p)
{
    const double bytes = (double)p->z.block;
    void *a = preflight_alloc_device(p, p->z.block), *b = preflight_alloc_device(p, p->z.block);
    void *host = preflight_alloc_host(p, p->z.block);

    watch_phase(p->watch, "preflight: copies", -1, -1);
    if (a && b && host) {
        double to, within, from;

        memset(host, 0x5a, p->z.block);
        to = seconds_of(p, do_copy, &(struct copy){ a, host });
        within = seconds_of(p, do_copy, &(struct copy){ b, a });
        memset(host, 0, p->z.block);
        from = seconds_of(p, do_copy, &(struct copy){ host, b });
        p->mine->rate[RATE_COPY] = 2 * bytes / within;
        /* 0 on a CPU, whose memory is the host's */
        p->mine->rate[RATE_TO_DEVICE] = !dev_on_host(p->dev) ? bytes / to : 0;
        p->mine->rate[RATE_FROM_DEVICE] = !dev_on_host(p->dev) ? bytes / from : 0;
        for (uint64_t i = 0; i < p->z.block; i++)
            if (((unsigned char *)host)[i] != 0x5a) {
                preflight_wrong(p, "a copy to the device and back changed byte %llu", (unsigned long long)i);
                break;
            }
    }
    p->dev->free_host(host);
    p->dev->free(b);
    p->dev->free(a);
}

/* ---- matrix products ---- */

enum { SHAPES = 4 };
struct product {
    int n_shapes;
    int64_t m, n[SHAPES], k[SHAPES];
    enum dtype t;
    void *x, *w, *y;            /* x is [m, largest k], w is [largest n * k], y is [m, largest n] */
    int64_t x_n, w_n, y_n;      /* number of elements */
};

static void shapes_of(const struct preflight *p, struct product *q)
{
    const struct trainer *t = p->t;
    const int64_t h = t->shape.config.hidden, f = t->shape.config.ffn_hidden;
    const int64_t tp = t->network.stage ? t->ranks.topo.tp : 1;

    *q = (struct product){ .n_shapes = 1, .m = p->z.m, .n = { p->z.n }, .k = { p->z.k }, .t = DTYPE_BF16 };
    if (t->network.stage)
        *q = (struct product){
            .n_shapes = SHAPES, .m = (int64_t)t->network.model_opts.b * t->network.model_opts.s, .t = t->shape.weights,
            .n = { 3 * h / tp, h, f / tp, h }, .k = { h, h / tp, h, f / tp },
        };
    if (dev_on_host(p->dev) && q->m > p->z.m)
        q->m = p->z.m;
    for (int i = 0; i < q->n_shapes; i++) {
        q->x_n = q->m * q->k[i] > q->x_n ? q->m * q->k[i] : q->x_n;
        q->w_n = q->n[i] * q->k[i] > q->w_n ? q->n[i] * q->k[i] : q->w_n;
        q->y_n = q->m * q->n[i] > q->y_n ? q->m * q->n[i] : q->y_n;
    }
}

static void run_matrix_products(struct preflight *p, void *arg)
{
    const struct product *q = arg;

    for (int i = 0; i < q->n_shapes; i++)
        p->k->linear(&(struct kernel_linear){
            .m = q->m, .n = q->n[i], .k = q->k[i], .x = q->x, .w = q->w, .y = q->y,
        }, q->t, NULL);
}

static double flops_of(const struct product *q)
{
    double sum = 0;

    for (int i = 0; i < q->n_shapes; i++)
        sum += 2.0 * (double)q->m * (double)q->n[i] * (double)q->k[i];
    return sum;
}

/* Fill x, of dtype t, with random numbers, one block of fp32 at a time. */
static void fill_random(struct preflight *p, void *x, int64_t n, enum dtype t, float *block, uint32_t key)
{
    const int64_t most = (int64_t)(p->z.block / 4);

    for (int64_t at = 0; at < n; at += most) {
        int64_t m = n - at < most ? n - at : most;

        preflight_random(p, block, m, key + (uint32_t)(at / most));
        p->k->cast((char *)x + at * dtype_size(t), t, block, DTYPE_F32, m, NULL);
    }
}

/* Compute the product *q once more, and check that the result has the same bits. */
static void try_again(struct preflight *p, const struct product *q)
{
    const int last = q->n_shapes - 1;
    const uint64_t bytes = (uint64_t)(q->m * q->n[last]) * (uint64_t)dtype_size(q->t);
    char *a = preflight_alloc_host(p, bytes), *b = preflight_alloc_host(p, bytes);
    uint64_t differ = 0;

    for (int i = 0; i < 2 && a && b; i++) {
        p->dev->zero(q->y, bytes, NULL);
        p->k->linear(&(struct kernel_linear){
            .m = q->m, .n = q->n[last], .k = q->k[last], .x = q->x, .w = q->w, .y = q->y,
        }, q->t, NULL);
        p->dev->copy(i ? b : a, q->y, bytes, NULL);
        preflight_sync_device(p);
    }
    for (uint64_t i = 0; a && b && i < bytes; i++)
        differ += a[i] != b[i];
    if (differ)
        preflight_wrong(p, "the same product of [%lld, %lld] and [%lld, %lld] twice: %llu of %llu bytes differ",
                        (long long)q->m, (long long)q->k[last], (long long)q->n[last], (long long)q->k[last],
                        (unsigned long long)differ, (unsigned long long)bytes);
    p->dev->free_host(a);
    p->dev->free_host(b);
}

/*
 * Check a product whose result is known. Its operands are small integers, which bf16 represents exactly: the absolute
 * value of each sum is at most 4 * 32.
 */
static void try_known(struct preflight *p)
{
    enum { M = 64, N = 48, K = 32, ALL = M * K + N * K + M * N };
    uint16_t *host = preflight_alloc_host(p, ALL * 2), *dev = preflight_alloc_device(p, ALL * 2);
    uint16_t *x = host, *w = x + M * K, *y = w + N * K;
    int bad = 0;

    if (host && dev) {
        for (int i = 0; i < M * K; i++)
            x[i] = f32_to_bf16((float)(i * 7 % 5 - 2));
        for (int i = 0; i < N * K; i++)
            w[i] = f32_to_bf16((float)(i * 11 % 5 - 2));
        p->dev->copy(dev, host, (M * K + N * K) * 2, NULL);
        p->k->linear(&(struct kernel_linear){
            .m = M, .n = N, .k = K, .x = dev, .w = dev + M * K, .y = dev + M * K + N * K,
        }, DTYPE_BF16, NULL);
        p->dev->copy(y, dev + M * K + N * K, M * N * 2, NULL);
        preflight_sync_device(p);
        for (int i = 0; i < M; i++)
            for (int j = 0; j < N; j++) {
                float sum = 0;

                for (int k = 0; k < K; k++)
                    sum += bf16_to_f32(x[i * K + k]) * bf16_to_f32(w[j * K + k]);
                bad += !(bf16_to_f32(y[i * N + j]) == sum);
            }
        if (bad)
            preflight_wrong(p, "a product of integers has %d wrong elements of %d", bad, M * N);
    }
    p->dev->free(dev);
    p->dev->free_host(host);
}

void preflight_products(struct preflight *p)
{
    float *block = preflight_alloc_device(p, p->z.block);
    struct product q;
    int size;

    watch_phase(p->watch, "preflight: matrix products", -1, -1);
    shapes_of(p, &q);
    size = dtype_size(q.t);
    q.x = preflight_alloc_device(p, (uint64_t)(q.x_n * size));
    q.w = preflight_alloc_device(p, (uint64_t)(q.w_n * size));
    q.y = preflight_alloc_device(p, (uint64_t)(q.y_n * size));
    if (block && q.x && q.w && q.y) {
        fill_random(p, q.x, q.x_n, q.t, block, 100);
        fill_random(p, q.w, q.w_n, q.t, block, 200);
        p->mine->rate[RATE_GEMM] = flops_of(&q) / seconds_of(p, run_matrix_products, &q);
        try_again(p, &q);
        try_known(p);
    }
    p->dev->free(q.y);
    p->dev->free(q.w);
    p->dev->free(q.x);
    p->dev->free(block);
}
