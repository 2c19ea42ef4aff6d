/*
 * test_kernels_amx.c - products of bf16 by tiles, bit for bit
 *
 * AMX, where the machine has it, and a model of AMX on every machine are compared with the order of additions of
 * docs/training.md, section 1.11. So packing, edges and divisions are tested on machines without AMX, and the model
 * on machines with it. Any number of threads, and rows computed alone, must give the same bits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "libcommon/base/mem.h"

static const struct kernels *k;

/* ---- the instruction, by its definition ---- */

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}

/* A sum of len products: a[0] b[0] + a[a_step] b[b_step] + .. */
static float tile_sum(const uint16_t *a, int64_t a_step, const uint16_t *b, int64_t b_step, int64_t len)
{
    float sum = 0;

    for (int64_t at = 0; at < len; at += 32) {
        float half[2] = { 0, 0 };

        for (int64_t i = at; i < at + 32 && i < len; i++)
            half[i % 2] = flushed(fmaf(flushed(bf16_to_f32(a[i * a_step])), flushed(bf16_to_f32(b[i * b_step])),
                                       half[i % 2]));
        sum = flushed(sum + flushed(half[0] + half[1]));
    }
    return sum;
}

/* ---- operands ---- */

/* Of all sizes, so that the order of additions shows, some so small that they or their products count as zeros. */
static uint16_t *numbers(int64_t n)
{
    static uint32_t state = 1;
    uint16_t *x = xmalloc(2 * (size_t)n + 2);

    for (int64_t i = 0; i < n; i++) {
        float f;

        state = state * 1664525 + 1013904223;
        f = ldexpf((float)(int32_t)state * 0x1p-31f, (int)(state >> 8 & 7));
        if ((state & 0xf0000) == 0)
            f = ldexpf(f, -60 - (int)(state >> 12 & 1) * 75);
        x[i] = f32_to_bf16(f);
    }
    return x;
}

static void expect(const char *what, int64_t i, float got, float want)
{
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("%s: element %lld is %a, expected %a", what, (long long)i, (double)got, (double)want);
}

static float bf16_of(float x)
{
    return bf16_to_f32(f32_to_bf16(x));
}

/* ---- the three products of a layer ---- */

static void check_products(int64_t m, int64_t n, int64_t len)
{
    uint16_t *x = numbers(m * len), *w = numbers(n * len), *dy = numbers(m * n);
    uint16_t *y = xmalloc(2 * (size_t)(m * n)), *dx = xmalloc(2 * (size_t)(m * len)), *last = xmalloc(2 * (size_t)n);
    float *dw = xmalloc(4 * (size_t)(n * len));

    k->linear(&(struct kernel_linear){ .m = m, .n = n, .k = len, .x = x, .w = w, .y = y }, DTYPE_BF16, NULL);
    for (int64_t i = 0; i < m * n; i++)
        expect("y", i, bf16_to_f32(y[i]), bf16_of(tile_sum(x + i / n * len, 1, w + i % n * len, 1, len)));
    k->linear(&(struct kernel_linear){
        .m = 1, .n = n, .k = len, .x = x + (m - 1) * len, .w = w, .y = last,
    }, DTYPE_BF16, NULL);
    assert_memory_equal(last, y + (m - 1) * n, 2 * (size_t)n);
    k->linear_dx(&(struct kernel_linear_dx){ .m = m, .n = n, .k = len, .dy = dy, .w = w, .dx = dx }, DTYPE_BF16, NULL);
    for (int64_t i = 0; i < m * len; i++)
        expect("dx", i, bf16_to_f32(dx[i]), bf16_of(tile_sum(dy + i / len * n, 1, w + i % len, len, n)));
    k->linear_dw(&(struct kernel_linear_dw){ .m = m, .n = n, .k = len, .dy = dy, .x = x, .dw = dw }, DTYPE_BF16, NULL);
    for (int64_t i = 0; i < n * len; i++)
        expect("dw", i, dw[i], tile_sum(dy + i / len, n, x + i % len, len, m));
    free(x);
    free(w);
    free(dy);
    free(y);
    free(dx);
    free(last);
    free(dw);
}

/* Around the edges of tiles (16, 32), of cuts of the sum (512), chunks of rows (192) and blocks of columns (1024) */
static void check_sizes(const char *isa)
{
    static const struct { int64_t m, n, k; } sizes[] = {
        { 1, 1, 1 }, { 5, 7, 3 }, { 32, 32, 32 }, { 33, 65, 17 }, { 16, 48, 64 }, { 97, 130, 259 }, { 3, 20, 1037 },
        { 530, 33, 40 }, { 9, 1030, 31 },
    };
    static const int threads[] = { 1, 3, 8 };

    setenv("SHARDKIT_CPU_ISA", isa, 1);
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct kernel_opts o = { .threads = threads[t] };
        struct err e = {0};

        k = kernels_cpu_open(&o, &e);
        if (!k) {
            printf("%s: not on this machine\n", isa);
            return;
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            check_products(sizes[i].m, sizes[i].n, sizes[i].k);
        kernels_close(k);
    }
}

static void test_tiles(void **state)
{
    (void)state;
    check_sizes("amx");
}

static void test_model(void **state)
{
    (void)state;
    check_sizes("amx-model");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_tiles), cmocka_unit_test(test_model) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
