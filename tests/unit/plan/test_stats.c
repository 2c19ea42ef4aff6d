/*
 * test_stats.c - statistics and distances of tensors
 *
 * Values are small integers and halves, so that every sum is exact and comparisons are for equality. Sizes are near
 * the edges of lanes, blocks and chunks.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/plan/stats.h"

enum { CHUNK_ELEMS = STATS_CHUNK / 4 };
static const uint64_t sizes[] = {
    0, 1, 3, 4, 5, 1023, 1024, 1025, 4096, CHUNK_ELEMS - 1, CHUNK_ELEMS, CHUNK_ELEMS + 1, 3 * CHUNK_ELEMS + 7,
};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* A map of n fp32 elements at p, over one memory file. */
struct one {
    struct files *files;
    struct extent extent;
    struct tmap_slice slice;
    struct tmap map;
};

static void one_open(struct one *o, const float *p, uint64_t n)
{
    int file;

    memset(o, 0, sizeof *o);
    o->files = files_new();
    file = files_add_mem(o->files, p, n * 4, "memory");
    o->extent.record = files_add_record(o->files, &(struct record){ .file = file, .len = n * 4, .name = "r" });
    o->extent.len = n * 4;
    o->slice = (struct tmap_slice){ .len = n * 4, .n_extents = 1, .extent = &o->extent };
    o->map = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_F32, .len = n * 4, .n_slices = 1, .slice = &o->slice };
}

/* -4, -3.5 .. 3.5, and so on again. */
static float *steps(uint64_t n)
{
    float *x = xmalloc(n * sizeof *x + 1);

    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)(i % 16) / 2 - 4;
    return x;
}

static struct stats run_stats(const float *x, uint64_t n, int threads)
{
    struct stats_opts so = { .threads = threads };
    struct stats_job job = {0};
    struct err e = {0};
    struct one o;

    one_open(&o, x, n);
    job = (struct stats_job){ .a = &o.map, .a_files = o.files, .len = n * 4 };
    if (stats_run(&job, 1, &so, &e) < 0)
        fail_msg("%s", e.msg);
    files_free(o.files);
    return job.stats;
}

static void sums_are_exact(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++) {
        uint64_t n = sizes[s], zeros = 0, negative = 0;
        float *x = steps(n);
        struct stats got = run_stats(x, n, 3);
        double sum = 0, sq = 0;

        for (uint64_t i = 0; i < n; i++) {
            sum += x[i];
            sq += (double)x[i] * x[i];
            zeros += x[i] == 0;
            negative += x[i] < 0;
        }
        if (!(got.sum == sum && got.sum_sq == sq && got.n == n && got.n_zero == zeros && got.n_negative == negative))
            fail_msg("n=%llu: sum %.17g, want %.17g; squares %.17g, want %.17g; %llu elements, %llu zero",
                     (unsigned long long)n, got.sum, sum, got.sum_sq, sq, (unsigned long long)got.n,
                     (unsigned long long)got.n_zero);
        if (n >= 16 && !(got.min == -4 && got.max == 3.5))
            fail_msg("n=%llu: %g .. %g, want -4 .. 3.5", (unsigned long long)n, got.min, got.max);
        free(x);
    }
}

/* Sums of values that round: the same bits on any number of threads. */
static void threads_do_not_matter(void **state)
{
    uint64_t n = 40 * (uint64_t)CHUNK_ELEMS + 333;
    float *x = xmalloc(n * sizeof *x);
    struct stats one, many;

    (void)state;
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)(uint32_t)(i * 2654435761u) / (i % 9 < 4 ? 1e3f : 3e9f);
    one = run_stats(x, n, 1);
    for (int threads = 2; threads < 9; threads += 3) {
        many = run_stats(x, n, threads);
        assert_memory_equal(&one, &many, sizeof one);
    }
    free(x);
}

static void odd_values_are_counted(void **state)
{
    float x[] = { 1, NAN, -INFINITY, -0.0f, 0, -2, INFINITY, 3e38f };
    struct stats s = {0};

    (void)state;
    stats_add(&s, DTYPE_F32, x, 8);
    assert_int_equal(s.n, 8);
    assert_int_equal(s.n_nan, 1);
    assert_int_equal(s.n_inf, 2);
    assert_int_equal(s.n_zero, 2);
    assert_int_equal(s.n_negative, 1);
    assert_int_equal(stats_n_finite(&s), 5);
    assert_true(s.min == -2 && s.max == 3e38f);
    assert_true(isfinite(stats_norm(&s)));          /* squares are summed as doubles */
}

static void nothing_finite(void **state)
{
    float x[] = { NAN, INFINITY };
    struct stats s = {0}, more = {0};

    (void)state;
    stats_add(&s, DTYPE_F32, x, 2);
    assert_int_equal(stats_n_finite(&s), 0);
    assert_true(stats_mean(&s) == 0 && stats_norm(&s) == 0);
    /* The extremes of a part without finite values must not leak into the whole. */
    stats_add(&more, DTYPE_F32, (float[]){ 5 }, 1);
    stats_join(&s, &more);
    assert_true(s.min == 5 && s.max == 5);
    stats_join(&more, &(struct stats){0});
    assert_true(more.min == 5 && more.max == 5);
}

static void every_type_is_read(void **state)
{
    uint16_t bf16[] = { 0x3f80, 0xc000 }, f16[] = { 0x3c00, 0xc000 };
    double f64[] = { 1, -2 };
    int64_t i64[] = { 1, -2 };
    int8_t i8[] = { 1, -2 };
    const struct { enum dtype t; const void *p; } in[] = {
        { DTYPE_BF16, bf16 }, { DTYPE_F16, f16 }, { DTYPE_F64, f64 }, { DTYPE_I64, i64 }, { DTYPE_I8, i8 },
    };

    (void)state;
    for (size_t k = 0; k < sizeof in / sizeof *in; k++) {
        struct stats s = {0};

        stats_add(&s, in[k].t, in[k].p, 2);
        if (!(s.sum == -1 && s.sum_sq == 5 && s.min == -2 && s.max == 1))
            fail_msg("%s: sum %g, squares %g", dtype_name(in[k].t), s.sum, s.sum_sq);
    }
}

static uint64_t ulps_f32(float a, float b)
{
    return ulp_distance(DTYPE_F32, &a, &b);
}

static uint64_t ulps_bf16(uint16_t a, uint16_t b)
{
    return ulp_distance(DTYPE_BF16, &a, &b);
}

static void ulps_are_steps(void **state)
{
    (void)state;
    assert_int_equal(ulps_f32(1, 1), 0);
    assert_int_equal(ulps_f32(1, nextafterf(1, 2)), 1);
    assert_int_equal(ulps_f32(nextafterf(1, 0), nextafterf(1, 2)), 2);
    assert_int_equal(ulps_f32(0.0f, -0.0f), 0);
    assert_int_equal(ulps_f32(nextafterf(0, 1), nextafterf(0, -1)), 2);
    assert_int_equal(ulps_f32(1, 2), 1 << 23);
    assert_int_equal(ulps_f32(-1, 1), 2ull * 0x3f800000);
    assert_int_equal(ulps_f32(-INFINITY, INFINITY), 2ull * 0x7f800000);
    assert_true(ulps_f32(NAN, 1) == STATS_NO_ULPS);
    assert_int_equal(ulps_f32(NAN, -NAN), 0);
    assert_int_equal(ulps_bf16(0x3f80, 0x3f81), 1);
    assert_int_equal(ulps_bf16(0x0001, 0x8001), 2);
    assert_true(ulps_bf16(0x7fc0, 0x7f80) == STATS_NO_ULPS);
    assert_int_equal(ulp_distance(DTYPE_F64, &(double){ 1 }, &(double){ nextafter(1, 2) }), 1);
    assert_int_equal(ulp_distance(DTYPE_I64, &(int64_t){ INT64_MIN }, &(int64_t){ INT64_MAX }), UINT64_MAX);
    assert_int_equal(ulp_distance(DTYPE_I8, &(int8_t){ -1 }, &(int8_t){ 1 }), 2);
    assert_int_equal(ulp_distance(DTYPE_U8, &(uint8_t){ 255 }, &(uint8_t){ 1 }), 254);
}

/* One element differs, at every size's first, last and a middle place. */
static void one_difference_is_found(void **state)
{
    (void)state;
    for (int s = 0; s < N_SIZES; s++) {
        uint64_t n = sizes[s];
        uint64_t places[] = { 0, n / 2, n ? n - 1 : 0 };
        float *x = steps(n), *y = steps(n);
        struct stats_opts so = { .threads = 2 };
        struct one a, b;

        one_open(&a, x, n);
        one_open(&b, y, n);
        for (int k = 0; k < 3 && n > 0; k++) {
            struct stats_job job = { .a = &a.map, .a_files = a.files, .b = &b.map, .b_files = b.files, .len = n * 4 };
            struct err e = {0};
            float old = y[places[k]];

            y[places[k]] = old + 0.25f;
            assert_return_code(stats_run(&job, 1, &so, &e), 0);
            y[places[k]] = old;
            if (!(job.diff.n == n && job.diff.n_differ == 1 && job.diff.first == places[k] &&
                  job.diff.max_abs == 0.25 && job.diff.diff_sq == 0.0625))
                fail_msg("n=%llu, element %llu: %llu of %llu differ from %llu on, by %g", (unsigned long long)n,
                         (unsigned long long)places[k], (unsigned long long)job.diff.n_differ,
                         (unsigned long long)job.diff.n, (unsigned long long)job.diff.first, job.diff.max_abs);
            if (n >= 16 && !(job.diff.ref_sq == run_stats(x, n, 1).sum_sq))
                fail_msg("n=%llu: reference %.17g", (unsigned long long)n, job.diff.ref_sq);
        }
        files_free(a.files);
        files_free(b.files);
        free(x);
        free(y);
    }
}

static void equal_is_equal(void **state)
{
    float x[] = { 1, NAN, -0.0f }, y[] = { 1, NAN, 0.0f };
    struct stats_diff d = {0};

    (void)state;
    stats_diff_add(&d, DTYPE_F32, x, x, 3);
    assert_int_equal(d.n_differ, 0);
    assert_true(stats_diff_rel_l2(&d) == 0);
    /* The sign of a zero is a difference in bits, though not in value. */
    stats_diff_add(&d, DTYPE_F32, x, y, 3);
    assert_int_equal(d.n, 6);
    assert_int_equal(d.n_differ, 1);
    assert_int_equal(d.first, 5);
    assert_int_equal(d.max_ulps, 0);
    assert_true(d.max_abs == 0);
}

static void relative_distance(void **state)
{
    float a[] = { 3, 4 }, b[] = { 3, 3 }, zero[] = { 0, 0 };
    struct stats_diff d = {0}, from_zero = {0};

    (void)state;
    stats_diff_add(&d, DTYPE_F32, a, b, 2);
    assert_true(stats_diff_rel_l2(&d) == 0.2);
    stats_diff_add(&from_zero, DTYPE_F32, zero, a, 2);
    assert_true(stats_diff_rel_l2(&from_zero) == 5);
}

/* Pairs of two tables, whose chunks are cut otherwise: one lies in one piece, the other in copies. */
static void pairs_meet(void **state)
{
    uint64_t n = 5 * (uint64_t)CHUNK_ELEMS + 21;
    float *x = steps(n), *y = steps(n);
    struct stats_diff one = {0};

    (void)state;
    y[7] += 1;
    y[n - 1] = NAN;
    for (int threads = 1; threads < 9; threads += 3) {
        struct stats_opts so = { .threads = threads, .replicas = REPLICAS_MAJORITY };
        struct stats_job job[3];
        struct tmap_slice slice[3];
        struct tmap copies;
        struct err e = {0};
        struct one a, b;

        one_open(&a, x, n);
        one_open(&b, y, n);
        copies = b.map;
        copies.op = TMAP_REPLICAS;
        copies.n_slices = 3;
        copies.slice = slice;
        for (int k = 0; k < 3; k++)
            slice[k] = b.slice;
        job[0] = (struct stats_job){ .a = &a.map, .a_files = a.files, .b = &copies, .b_files = b.files, .len = n * 4 };
        job[1] = (struct stats_job){ .a = &a.map, .a_files = a.files, .b = &b.map, .b_files = b.files };
        job[2] = (struct stats_job){ .a = &a.map, .a_files = a.files, .b = &b.map, .b_files = b.files, .len = 40 };
        if (stats_run(job, 3, &so, &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(job[0].diff.n, n);
        assert_int_equal(job[0].diff.n_differ, 2);
        assert_int_equal(job[0].diff.first, 7);
        assert_true(job[0].diff.max_ulps == STATS_NO_ULPS && job[0].diff.max_abs == 1 && job[0].diff.diff_sq == 1);
        assert_int_equal(job[1].diff.n, 0);
        assert_int_equal(job[2].diff.n_differ, 1);
        assert_int_equal(job[0].a_crc, crc_bytes(0, x, n * 4));
        assert_int_equal(job[0].b_crc, crc_bytes(0, y, n * 4));
        if (threads == 1)
            one = job[0].diff;
        assert_memory_equal(&one, &job[0].diff, sizeof one);
        files_free(a.files);
        files_free(b.files);
    }
    free(x);
    free(y);
}

/* A record that passes by whole is checked, of both sides; of one that does not, the rest is read when asked for. */
static void records_are_checked(void **state)
{
    float x[8] = { 1, 2, 3, 4, 5, 6, 7, 8 };
    struct files *f = files_new(), *g = files_new();
    int bad = files_add_record(f, &(struct record){ .file = files_add_mem(f, x, 32, "bad"), .len = 32, .has_crc = true,
                                                    .crc = 1, .name = "r" });
    int good = files_add_record(g, &(struct record){ .file = files_add_mem(g, x, 32, "good"), .len = 32,
                                                     .has_crc = true, .crc = crc_bytes(0, x, 32), .name = "r" });
    struct extent in_bad = { bad, 0, 32 }, in_good = { good, 0, 32 };
    struct tmap_slice sb = { .len = 32, .n_extents = 1, .extent = &in_bad }, sg = sb;
    struct tmap b = { .op = TMAP_CONCAT, .dtype = DTYPE_F32, .len = 32, .n_slices = 1, .slice = &sb }, a = b;
    struct stats_opts so = { .threads = 2 };
    struct stats_job job = { .a = &a, .a_files = g, .b = &b, .b_files = f, .len = 32, .name = "x" };
    struct err e = {0};

    (void)state;
    sg.extent = &in_good;
    a.slice = &sg;
    assert_int_equal(stats_run(&job, 1, &so, &e), -1);
    assert_non_null(strstr(e.msg, "bad: at byte 0: record r is corrupt"));
    job.len = 16;
    e = (struct err){0};
    assert_int_equal(stats_run(&job, 1, &so, &e), -1);        /* the half that no job reads is checked too */
    e = (struct err){0};
    so.report = report_new();
    assert_int_equal(stats_run(&job, 1, &so, &e), 0);
    assert_int_equal(report_count(so.report, SEV_ERROR), 1);
    assert_int_equal(job.diff.n_differ, 0);
    report_free(so.report);
    files_free(f);
    files_free(g);
}

static bool stop_now(void)
{
    return true;
}

static void stops_when_asked(void **state)
{
    float x[1] = { 1 };
    struct stats_opts so = { .threads = 1, .stopped = stop_now };
    struct stats_job job;
    struct err e = {0};
    struct one o;

    (void)state;
    one_open(&o, x, 1);
    job = (struct stats_job){ .a = &o.map, .a_files = o.files, .len = 4 };
    assert_int_equal(stats_run(&job, 1, &so, &e), -1);
    assert_int_equal(e.kind, ERR_STOP);
    files_free(o.files);
}

/* One odd value at every place of blocks of every length up to two lanes, at an odd address, is counted once. */
static void odd_values_are_found_anywhere(void **state)
{
    static const struct { enum dtype t; uint32_t bits; uint64_t nan, inf, negative; } odd[] = {
        { DTYPE_F32, 0x7fc00000, 1, 0, 0 }, { DTYPE_F32, 0xff800001, 1, 0, 0 }, { DTYPE_F32, 0xff800000, 0, 1, 1 },
        { DTYPE_F32, 0x80000001, 0, 0, 1 }, { DTYPE_F32, 0x80000000, 0, 0, 0 }, { DTYPE_F32, 0x7f7fffff, 0, 0, 0 },
        { DTYPE_BF16, 0x7f81, 1, 0, 0 }, { DTYPE_BF16, 0x7f80, 0, 1, 0 }, { DTYPE_BF16, 0xff7f, 0, 0, 1 },
        { DTYPE_F16, 0xfc01, 1, 0, 0 }, { DTYPE_F16, 0x7c00, 0, 1, 0 }, { DTYPE_F16, 0x7bff, 0, 0, 0 },
        { DTYPE_I32, 0x7fc00000, 0, 0, 0 }, { DTYPE_U8, 0xff, 0, 0, 0 }, { DTYPE_C32, 0x7c013c00, 1, 0, 0 },
        { DTYPE_F8_E4M3, 0x7f, 1, 0, 0 }, { DTYPE_F8_E4M3, 0xff, 1, 0, 0 }, { DTYPE_F8_E4M3, 0xfe, 0, 0, 1 },
        { DTYPE_F8_E4M3, 0x80, 0, 0, 0 }, { DTYPE_F8_E4M3, 0x7e, 0, 0, 0 }, { DTYPE_F8_E5M2, 0x7c, 0, 1, 0 },
        { DTYPE_F8_E5M2, 0xfc, 0, 1, 1 }, { DTYPE_F8_E5M2, 0x7d, 1, 0, 0 }, { DTYPE_F8_E5M2, 0x7b, 0, 0, 0 },
        { DTYPE_F8_E4M3FNUZ, 0x80, 1, 0, 0 }, { DTYPE_F8_E4M3FNUZ, 0xff, 0, 0, 1 },
        { DTYPE_F8_E5M2FNUZ, 0x80, 1, 0, 0 }, { DTYPE_F8_E5M2FNUZ, 0x7f, 0, 0, 0 },
        { DTYPE_F8_E8M0, 0xff, 1, 0, 0 }, { DTYPE_F8_E8M0, 0xfe, 0, 0, 0 }, { DTYPE_F8_E8M0, 0, 0, 0, 0 },
    };
    uint8_t bytes[1 + 80 * 4];

    (void)state;
    for (size_t k = 0; k < sizeof odd / sizeof *odd; k++)
        for (int n = 1; n <= 80; n++)
            for (int at = 0; at < n; at++) {
                const int size = dtype_size(odd[k].t);
                struct values v = {0}, plain = {0};

                memset(bytes, 0x11, sizeof bytes);
                memcpy(bytes + 1 + at * size, &odd[k].bits, (size_t)size);
                values_add(&v, odd[k].t, bytes + 1, (uint64_t)(n * size), true);
                values_add(&plain, odd[k].t, bytes + 1, (uint64_t)(n * size), false);
                if (v.n_nan != odd[k].nan || v.n_inf != odd[k].inf || v.n_negative != odd[k].negative ||
                    plain.n_nan != v.n_nan || plain.n_inf != v.n_inf || plain.n_negative)
                    fail_msg("%s %x at %d of %d: %d NaN, %d infinite, %d negative", dtype_name(odd[k].t), odd[k].bits,
                             at, n, (int)v.n_nan, (int)v.n_inf, (int)v.n_negative);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_exact), cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(odd_values_are_counted), cmocka_unit_test(nothing_finite),
        cmocka_unit_test(every_type_is_read), cmocka_unit_test(ulps_are_steps),
        cmocka_unit_test(one_difference_is_found), cmocka_unit_test(equal_is_equal),
        cmocka_unit_test(relative_distance), cmocka_unit_test(pairs_meet),
        cmocka_unit_test(records_are_checked), cmocka_unit_test(stops_when_asked),
        cmocka_unit_test(odd_values_are_found_anywhere),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
