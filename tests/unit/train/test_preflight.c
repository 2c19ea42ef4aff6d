/* test_preflight.c - --preflight: which rank is named, by which figures, and the report on a broken device */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/lib/ranks.h"
#include "tools/train/health/preflight_impl.h"

enum { N = 8 };

/* Eight GPUs on two hosts, in a ring: two links leave their host, and are ten times slower. */
static void good_job(struct preflight_rank *r)
{
    memset(r, 0, N * sizeof *r);
    for (int i = 0; i < N; i++) {
        r[i] = (struct preflight_rank){
            .rank = i, .node = i / 4, .next = (i + 1) % N, .next_node = (i + 1) % N / 4, .memory = UINT64_C(125) << 30,
            .rate = { 690e12 + i * 1e12, 4.2e12, 55e9, 54e9, i % 4 == 3 ? 45e9 : 380e9 },
        };
        snprintf(r[i].host, sizeof r[i].host, "node%d", i / 4);
        snprintf(r[i].who.model, sizeof r[i].who.model, "NVIDIA H200");
        snprintf(r[i].who.uuid, sizeof r[i].who.uuid, "GPU-%d", i);
        snprintf(r[i].who.pci, sizeof r[i].who.pci, "0000:%02d:00.0", i % 4);
    }
}

static void expect(const struct preflight_rank *r, int n, int named, const char *words)
{
    struct strbuf sb = {0};

    assert_int_equal(preflight_verdict(r, n, &sb), named);
    assert_string_equal(sb.len ? sb.buf : "", words);
    strbuf_free(&sb);
}

static void test_good(void **state)
{
    struct preflight_rank r[N];

    (void)state;
    good_job(r);
    expect(r, N, 0, "");
    /* 10% below the median is the limit, and still well. */
    for (int i = 0; i < N; i++)
        r[i].rate[RATE_COPY] = i == 3 ? 900 : 1000;
    expect(r, N, 0, "");
    /* One rank is its own median; what was not measured is not slow. */
    r[0].rate[RATE_LINK] = 0;
    r[0].next = r[0].next_node = -1;
    expect(r, 1, 0, "");
}

static void test_slow(void **state)
{
    struct preflight_rank r[N];

    (void)state;
    good_job(r);
    r[5].rate[RATE_GEMM] = 612e12;
    expect(r, N, 1,
           "slow: rank 5 (host node1, GPU-5 at 0000:01:00.0): matrix products 612.0 TFLOP/s, 88% of the median "
           "692.5 TFLOP/s\n");
    good_job(r);
    r[2].rate[RATE_TO_DEVICE] = 13.7e9;
    r[2].rate[RATE_FROM_DEVICE] = 13e9;
    r[6].rate[RATE_COPY] = 2.1e12;
    expect(r, N, 2,
           "slow: rank 2 (host node0, GPU-2 at 0000:02:00.0): copies to the device 13.7 GB/s, 25% of the median "
           "55.0 GB/s\n"
           "slow: rank 2 (host node0, GPU-2 at 0000:02:00.0): copies from the device 13.0 GB/s, 24% of the median "
           "54.0 GB/s\n"
           "slow: rank 6 (host node1, GPU-6 at 0000:02:00.0): copies on the device 2100.0 GB/s, 50% of the median "
           "4200.0 GB/s\n");
    /* Half of all being slow moves the median, not all of it. */
    good_job(r);
    for (int i = 0; i < 3; i++)
        r[i].rate[RATE_GEMM] = 400e12;
    {
        struct strbuf sb = {0};

        assert_int_equal(preflight_verdict(r, N, &sb), 3);
        strbuf_free(&sb);
    }
    good_job(r);
    r[1].rate[RATE_GEMM] = 500e12;
    expect(r, 2, 1,
           "slow: rank 1 (host node0, GPU-1 at 0000:01:00.0): matrix products 500.0 TFLOP/s, 84% of the median "
           "595.0 TFLOP/s\n");
}

/* Links within a host are compared with their like, those between hosts with theirs. */
static void test_links(void **state)
{
    struct preflight_rank r[N];

    (void)state;
    good_job(r);
    r[1].rate[RATE_LINK] = 190e9;
    expect(r, N, 1,
           "slow: rank 1 (host node0, GPU-1 at 0000:01:00.0): the link to rank 2 190.0 GB/s, 50% of the median "
           "380.0 GB/s\n");
    good_job(r);
    r[7].rate[RATE_LINK] = 20e9;
    expect(r, N, 1, "slow: rank 7 (host node1, GPU-7 at 0000:03:00.0): the link to rank 0 20.0 GB/s, 62% of the median "
                    "32.5 GB/s\n");
}

static void test_wrong(void **state)
{
    struct preflight_rank r[N];

    (void)state;
    good_job(r);
    snprintf(r[4].wrong, sizeof r[4].wrong, "the same product twice: 3 of 8 bytes differ");
    r[4].rate[RATE_GEMM] = 100e12;
    snprintf(r[0].wrong, sizeof r[0].wrong, "cannot allocate");
    memset(r[0].rate, 0, sizeof r[0].rate);
    r[0].who = (struct dev_who){ .model = "a processor" };
    expect(r, N, 2,
           "wrong: rank 0 (host node0): cannot allocate\n"
           "wrong: rank 4 (host node1, GPU-4 at 0000:00:00.0): the same product twice: 3 of 8 bytes differ\n"
           "slow: rank 4 (host node1, GPU-4 at 0000:00:00.0): matrix products 100.0 TFLOP/s, 14% of the median "
           "693.0 TFLOP/s\n");
}

static void test_shown(void **state)
{
    struct preflight_rank r[N];
    struct strbuf sb = {0};

    (void)state;
    good_job(r);
    r[1].rate[RATE_TO_DEVICE] = 0;
    preflight_table(r, 2, &sb);
    assert_string_equal(sb.buf,
        "rank  host    device       UUID    PCI id           memory        products          copies       to device"
        "     from device            link\n"
        "   0  node0   NVIDIA H200  GPU-0   0000:00:00.0   134.2 GB   690.0 TFLOP/s     4200.0 GB/s       55.0 GB/s"
        "       54.0 GB/s      380.0 GB/s to 1\n"
        "   1  node0   NVIDIA H200  GPU-1   0000:01:00.0   134.2 GB   691.0 TFLOP/s     4200.0 GB/s               -"
        "       54.0 GB/s      380.0 GB/s to 2\n");
    strbuf_free(&sb);
    r[0].who.uuid[0] = '\0';
    preflight_json(r, 1, &sb);
    assert_non_null(strstr(sb.buf, "{\"rank\":0,\"host\":\"node0\",\"device\":\"NVIDIA H200\",\"uuid\":null,"));
    assert_non_null(strstr(sb.buf, "\"link_to_rank\":1,\"wrong\":null}\n"));
    strbuf_free(&sb);
}

/* ---- broken devices ---- */

static struct {
    struct kernels k;
    struct dev_ops dev;
    const struct kernels *sound;
    int n, bad_one;             /* calls so far, and from which on they are bad */
} broken;

static void *alloc_none(uint64_t bytes, struct err *e)
{
    if (++broken.n < broken.bad_one)
        return broken.sound->dev->alloc(bytes, e);
    err_usage(e, "no room for %llu bytes", (unsigned long long)bytes);
    return NULL;
}

/* One bit of one copy. */
static void copy_badly(void *dst, const void *src, uint64_t bytes, struct dev_stream *s)
{
    broken.sound->dev->copy(dst, src, bytes, s);
    if (++broken.n == broken.bad_one)
        ((unsigned char *)dst)[bytes / 2] ^= 1;
}

/* The last bit of one element, in every other call; or a wrong element in every call. */
static void linear_unsteadily(const struct kernel_linear *l, enum dtype t, struct dev_stream *s)
{
    broken.sound->linear(l, t, s);
    ((uint16_t *)l->y)[l->m * l->n / 2] ^= (uint16_t)(++broken.n % 2);
}

static void linear_wrongly(const struct kernel_linear *l, enum dtype t, struct dev_stream *s)
{
    broken.sound->linear(l, t, s);
    ((uint16_t *)l->y)[7] = 0x4348;     /* 200 */
}

static void expect_wrong(void (*test)(struct preflight *), const char *words)
{
    static struct trainer t;
    const struct comm_options o = {0};
    struct comm_world *world;
    struct preflight_rank mine = {0};
    struct err e = {0};

    ranks_clear_env();
    if (comm_world_open(&o, &world, &e) < 0)
        fail_msg("%s", e.msg);
    {
        struct preflight p = {
            .t = &t, .k = &broken.k, .dev = &broken.dev, .watch = comm_watch(world), .all = comm_world_group(world),
            .z = { 1 << 20, 1 << 20, 0.0001, 64, 64, 64, 1 }, .mine = &mine,
        };

        broken.n = 0;
        test(&p);
    }
    assert_string_equal(mine.wrong, words);
    comm_world_close(world);
}

static void mend(void)
{
    broken.k = *broken.sound;
    broken.dev = *broken.sound->dev;
    broken.k.dev = &broken.dev;
}

static void test_broken(void **state)
{
    const struct kernel_opts o = { .threads = 1 };
    struct err e = {0};

    (void)state;
    broken.sound = kernels_cpu_open(&o, &e);
    if (!broken.sound)
        fail_msg("%s", e.msg);
    mend();
    expect_wrong(preflight_memory, "");
    expect_wrong(preflight_copies, "");
    expect_wrong(preflight_products, "");
    /* The 16 blocks are written first. */
    broken.dev.copy = copy_badly;
    broken.bad_one = 5;
    expect_wrong(preflight_memory, "memory at 4194304 of 16777216 bytes does not hold what was written");
    broken.bad_one = 1;
    mend();
    broken.dev.alloc = alloc_none;
    expect_wrong(preflight_memory, "no room for 16777216 bytes");
    broken.bad_one = 3;
    expect_wrong(preflight_products, "no room for 8192 bytes");
    mend();
    broken.k.linear = linear_unsteadily;
    expect_wrong(preflight_products, "the same product of [64, 64] and [64, 64] twice: 1 of 8192 bytes differ");
    broken.k.linear = linear_wrongly;
    expect_wrong(preflight_products, "a product of integers has 1 wrong elements of 3072");
    kernels_close(broken.sound);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good), cmocka_unit_test(test_slow), cmocka_unit_test(test_links),
        cmocka_unit_test(test_wrong), cmocka_unit_test(test_shown), cmocka_unit_test(test_broken),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
