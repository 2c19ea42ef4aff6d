#include "tests/lib/kernels/kernel_test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/mem.h"

const struct kernels *kt;
const char *kt_name;

#define BORDER 64                       /* bytes after an output that must not change */

static struct { void *p; bool dev; } *kept;
static size_t n_kept, cap_kept;
static uint64_t state, digest;

static void *keep(void *p, bool dev)
{
    ARRAY_ROOM(kept, cap_kept, n_kept + 1);
    kept[n_kept].p = p;
    kept[n_kept++].dev = dev;
    return p;
}

static void *dev_alloc(uint64_t bytes)
{
    struct err e = {0};
    void *p = kt->dev->alloc(bytes + BORDER, &e);

    if (!p)
        fail_msg("%s", e.msg);
    return keep(p, true);
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t random_word(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

double *kt_random(int64_t n, double lo, double hi)
{
    double *x = kt_zeros(n);

    for (int64_t i = 0; i < n; i++)
        x[i] = lo + (hi - lo) * (double)(random_word() >> 11) * 0x1p-53;
    return x;
}

double *kt_zeros(int64_t n)
{
    return keep(xcalloc((size_t)n + 1, sizeof(double)), false);
}

int32_t *kt_random_ids(int64_t n, int32_t lo, int32_t hi)
{
    int32_t *x = keep(xcalloc((size_t)n + 1, sizeof *x), false);

    for (int64_t i = 0; i < n; i++)
        x[i] = lo + (int32_t)(random_word() % (uint64_t)(hi - lo));
    return x;
}

void *kt_in(double *x, int64_t n, enum dtype t)
{
    int size = dtype_size(t);
    char *host = xmalloc((size_t)(n * size));

    for (int64_t i = 0; i < n; i++) {
        float f = (float)x[i];
        uint16_t half = t == DTYPE_BF16 ? f32_to_bf16(f) : f32_to_f16(f);

        memcpy(host + i * size, t == DTYPE_F32 ? (void *)&f : (void *)&half, (size_t)size);
        x[i] = dtype_value(t, host + i * size);
    }
    void *p = kt_bytes(host, (uint64_t)(n * size));

    free(host);
    return p;
}

void *kt_bytes(const void *x, uint64_t bytes)
{
    void *p = kt_scratch(bytes);

    kt->dev->copy(p, x, bytes, NULL);
    kt->dev->stream_sync(NULL);
    return p;
}

void *kt_out(int64_t n, enum dtype t)
{
    return kt_scratch((uint64_t)(n * dtype_size(t)));
}

void *kt_scratch(uint64_t bytes)
{
    char *host = xmalloc(bytes + BORDER);
    void *p = dev_alloc(bytes);

    memset(host, 0xff, bytes + BORDER);
    kt->dev->copy(p, host, bytes + BORDER, NULL);
    kt->dev->stream_sync(NULL);
    free(host);
    return p;
}

double *kt_get(const void *dev, int64_t n, enum dtype t)
{
    struct err e = {0};
    int size = dtype_size(t);
    uint64_t bytes = (uint64_t)(n * size);
    unsigned char *host = xmalloc(bytes + BORDER);
    double *x = kt_zeros(n);

    kt->dev->copy(host, dev, bytes + BORDER, NULL);
    kt->dev->stream_sync(NULL);
    if (kt->dev->check(&e) < 0)
        fail_msg("%s: %s", kt_name, e.msg);
    for (int i = 0; i < BORDER; i++)
        if (host[bytes + (uint64_t)i] != 0xff)
            fail_msg("%s: wrote %d bytes behind the end of %lld elements", kt_name, i + 1, (long long)n);
    for (uint64_t i = 0; i < bytes; i++)
        digest = (digest ^ host[i]) * 0x100000001b3;     /* FNV-1a */
    for (int64_t i = 0; i < n; i++)
        x[i] = dtype_value(t, host + i * size);
    free(host);
    return x;
}

double kt_eps(enum dtype t)
{
    return t == DTYPE_BF16 ? EPS_BF16 : t == DTYPE_F16 ? EPS_F16 : EPS_F32;
}

const struct kt_types kt_types[KT_TYPES] = {
    { DTYPE_F32, false }, { DTYPE_BF16, false }, { DTYPE_F16, false }, { DTYPE_F16, true },
};

enum dtype kt_grad(struct kt_types x)
{
    return x.grad_t ? x.t : DTYPE_F32;
}

static double allowed(double want, double tol, double rel)
{
    double size = fabs(want);

    if (rel >= EPS_F16 && rel < EPS_BF16)
        size = fmax(size, 0x1p-14);
    return tol + rel * size;
}

void kt_close(const char *what, const double *got, const double *want, int64_t n, double tol, double rel)
{
    /* The condition is written so that a NaN fails. */
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= allowed(want[i], tol, rel)))
            fail_msg("%s: %s: element %lld of %lld: got %.9g, want %.9g, may be off by %.3g", kt_name, what,
                     (long long)i, (long long)n, got[i], want[i], allowed(want[i], tol, rel));
}

void kt_within(const char *what, const double *got, const double *want, const double *slack, int64_t n, double rel)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= allowed(want[i], slack[i], rel)))
            fail_msg("%s: %s: element %lld of %lld: got %.9g, want %.9g, may be off by %.3g", kt_name, what,
                     (long long)i, (long long)n, got[i], want[i], allowed(want[i], slack[i], rel));
}

void kt_begin(void)
{
    state = 12345;
    digest = 0xcbf29ce484222325;
}

uint64_t kt_end(void)
{
    for (size_t i = 0; i < n_kept; i++)
        if (kept[i].dev)
            kt->dev->free(kept[i].p);
        else
            free(kept[i].p);
    n_kept = 0;
    return digest;
}

/* ---- all devices ---- */

/* The digests of the tests of one device with the first number of threads. */
static uint64_t *expected;
static bool first_run;

static void run_case(void **arg)
{
    void **pair = *arg;
    const struct kt_case *c = pair[0];
    uint64_t *want = pair[1], got;

    kt_begin();
    c->run();
    got = kt_end();
    if (first_run)
        *want = got;
    else if (got != *want)
        fail_msg("%s: %s: other bytes than with another number of threads", kt_name, c->name);
}

static int run_cases(const struct kt_case *cases, int n)
{
    struct CMUnitTest *tests = xcalloc((size_t)n, sizeof *tests);
    void *(*args)[2] = xcalloc((size_t)n, sizeof *args);
    int failed;

    for (int i = 0; i < n; i++) {
        args[i][0] = (void *)&cases[i];
        args[i][1] = &expected[i];
        tests[i] = (struct CMUnitTest){ .name = cases[i].name, .test_func = run_case, .initial_state = args[i] };
    }
    failed = _cmocka_run_group_tests(kt_name, tests, (size_t)n, NULL, NULL);
    free(tests);
    free(args);
    return failed;
}

static int run_cpu(const char *isa, const struct kt_case *cases, int n)
{
    static const int threads[] = { 1, 2, 8 };
    int failed = 0;

    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        struct kernel_opts o = { .threads = threads[i] };
        struct err e = {0};
        char name[64];

        setenv("SHARDKIT_CPU_ISA", isa, 1);
        kt = kernels_cpu_open(&o, &e);
        if (!kt)
            return failed;                      /* this machine lacks these instructions */
        snprintf(name, sizeof name, "cpu %s, %d threads", isa, threads[i]);
        kt_name = name;
        first_run = i == 0;
        failed += run_cases(cases, n);
        kernels_close(kt);
    }
    return failed;
}

/* Make waiting threads sleep, because the tests run eight threads on two processors. libgomp reads the variable
 * only when it is loaded. */
static void wait_passively(void)
{
    char *argv[] = { (char *)"test_kernels", NULL };

    if (getenv("OMP_WAIT_POLICY"))
        return;
    setenv("OMP_WAIT_POLICY", "passive", 1);
    execv("/proc/self/exe", argv);              /* if execv fails, the tests only run longer */
}

static int run_cuda(const struct kt_case *cases, int n, bool must)
{
    struct kernel_opts o = {0};
    struct err e = {0};
    int failed = 0;

    kt = kernels_cuda_open(&o, &e);
    if (!kt) {
        printf("cuda: not tested: %s\n", e.msg);
        return must;
    }
    for (int again = 0; again < 2; again++) {
        kt_name = "cuda";
        first_run = !again;
        failed += run_cases(cases, n);
    }
    kernels_close(kt);
    return failed;
}

int kt_run_all(const struct kt_case *cases, int n)
{
    static const char *const isas[] = { "base", "avx2", "avx512", "avx512bf16", "amx" };
    const char *only = getenv("SHARDKIT_TEST_DEVICE");
    int failed = 0;

    wait_passively();
    expected = xcalloc((size_t)n, sizeof *expected);
    for (size_t i = 0; i < sizeof isas / sizeof *isas && (!only || strcmp(only, "cuda") != 0); i++)
        failed += run_cpu(isas[i], cases, n);
    if (!only || strcmp(only, "cpu") != 0)
        failed += run_cuda(cases, n, only != NULL);
    free(expected);
    free(kept);
    return failed;
}
