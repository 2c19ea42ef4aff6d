/* test_tmap.c - pieces of tensor maps, compared with a byte-by-byte evaluation of their definition; combining
 * replicas */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/plan/tmap.h"

enum { MAX_SLICES = 4, MAX_EXTENTS = 9, RECORD_LEN = 20000, N_RECORDS = 3 };

struct made {
    struct tmap map;
    struct tmap_slice slice[MAX_SLICES];
    struct extent extent[MAX_SLICES][MAX_EXTENTS];
};

static unsigned char bytes[N_RECORDS][RECORD_LEN];

static uint64_t below(uint64_t n)
{
    return n ? (uint64_t)rand() % n : 0;
}

/* A slice of len bytes, cut into extents anywhere, some of them empty; now and then a window of wider rows. */
static void make_slice(struct made *m, int k, uint64_t len, uint64_t width)
{
    struct tmap_slice *s = &m->slice[k];
    int n = 0;

    s->window_row = 0;
    if (width && len % width == 0 && below(3) == 0) {
        s->window_len = width;
        s->window_at = below(40);
        s->window_row = s->window_at + width + below(40);
        if (len / width * s->window_row >= RECORD_LEN)
            s->window_row = 0;
    }
    m->map.slice = m->slice;
    m->slice[k].len = len;
    m->slice[k].extent = m->extent[k];
    if (s->window_row)
        len = len / width * s->window_row;
    for (uint64_t left = len; left || n == 0;) {
        uint64_t part = n == MAX_EXTENTS - 1 || below(3) == 0 ? left : below(left + 1);

        m->extent[k][n++] = (struct extent){ (int)below(N_RECORDS), below(RECORD_LEN - part), part };
        left -= part;
    }
    m->slice[k].n_extents = n;
}

static void make_map(struct made *m)
{
    uint64_t rows = 1 + below(20);

    m->map = (struct tmap){ .op = (enum tmap_op)below(3), .dtype = DTYPE_U8, .n_slices = 1 + (int)below(MAX_SLICES) };
    for (int k = 0; k < m->map.n_slices; k++) {
        uint64_t part = below(10) ? 1 + below(200) : 0;

        if (m->map.op == TMAP_INTERLEAVE)
            m->map.row += m->slice[k].row_part = part;
        /* Windows of a concatenation are of any width that divides it. */
        uint64_t len = m->map.op == TMAP_CONCAT ? below(100) * 30 : m->map.op == TMAP_INTERLEAVE ? rows * part : 2000;

        make_slice(m, k, len, m->map.op == TMAP_INTERLEAVE ? part : 1 + below(2) * 9);
        m->map.len += m->slice[k].len;
    }
    if (m->map.op == TMAP_REPLICAS)
        m->map.len = 2000;
}

static unsigned char slice_byte(const struct tmap_slice *s, uint64_t at)
{
    const struct extent *x = s->extent;

    if (s->window_row)
        at = at / s->window_len * s->window_row + s->window_at + at % s->window_len;
    for (; at >= x->len; x++)
        at -= x->len;
    return bytes[x->record][x->at + at];
}

/* Find the byte of a slice that is logical byte b, by the definition in tmap.h. */
static unsigned char logical_byte(const struct tmap *m, uint64_t b, int replica)
{
    int k = 0;

    if (m->op == TMAP_REPLICAS)
        return slice_byte(&m->slice[replica], b);
    if (m->op == TMAP_CONCAT) {
        for (; b >= m->slice[k].len; k++)
            b -= m->slice[k].len;
        return slice_byte(&m->slice[k], b);
    }
    uint64_t row = b / m->row, col = b % m->row;

    for (; col >= m->slice[k].row_part; k++)
        col -= m->slice[k].row_part;
    return slice_byte(&m->slice[k], row * m->slice[k].row_part + col);
}

/* Lay the pieces down; every byte is written once. */
static void lay_pieces(const struct tmap *m, uint64_t from, uint64_t len, int only, uint64_t most, int16_t *out)
{
    struct tmap_cursor c;
    struct tmap_piece p;

    for (uint64_t i = 0; i < len; i++)
        out[i] = -1;
    tmap_begin(&c, m, from, len, only);
    while (tmap_next(&c, most, &p)) {
        assert_true(p.src.len > 0 && p.src.len <= most && p.src.len == p.n * p.run);
        assert_true(p.n == 1 || p.run == m->slice[p.slice].row_part);
        for (uint64_t i = 0; i < p.src.len; i++) {
            uint64_t dst = p.dst + i / p.run * p.stride + i % p.run;

            assert_true(dst < len && out[dst] == -1);
            out[dst] = bytes[p.src.record][p.src.at + i];
            assert_int_equal(out[dst], slice_byte(&m->slice[p.slice], p.at + i));
        }
    }
}

static void test_pieces(void **state)
{
    static int16_t out[MAX_SLICES * 4000];
    struct made m = {0};

    (void)state;
    for (int round = 0; round < 4000; round++) {
        srand((unsigned)round);
        make_map(&m);
        uint64_t from = below(m.map.len + 1), len = below(m.map.len - from + 1);
        uint64_t most = below(2) ? UINT64_MAX : 1 + below(500);
        int only = m.map.op == TMAP_REPLICAS ? (int)below((uint64_t)m.map.n_slices) : -1;

        if (round % 3 == 0) {
            from = 0;
            len = m.map.len;
        }
        lay_pieces(&m.map, from, len, only, most, out);
        for (uint64_t i = 0; i < len; i++)
            if (out[i] != logical_byte(&m.map, from + i, only))
                fail_msg("round %d: op %d, byte %llu of [%llu, +%llu)", round, m.map.op, (unsigned long long)i,
                         (unsigned long long)from, (unsigned long long)len);
    }
}

/* One slice's pieces alone are the ones that all slices' gave for it. */
static void test_single_slice(void **state)
{
    static int16_t all[MAX_SLICES * 4000], one[MAX_SLICES * 4000];
    struct made m = {0};

    (void)state;
    for (int round = 0; round < 500; round++) {
        uint64_t seen = 0;

        srand((unsigned)round);
        do
            make_map(&m);
        while (m.map.op == TMAP_REPLICAS);
        lay_pieces(&m.map, 0, m.map.len, -1, UINT64_MAX, all);
        for (int k = 0; k < m.map.n_slices; k++) {
            lay_pieces(&m.map, 0, m.map.len, k, UINT64_MAX, one);
            for (uint64_t i = 0; i < m.map.len; i++)
                if (one[i] >= 0) {
                    assert_int_equal(one[i], all[i]);
                    seen++;
                }
        }
        assert_int_equal(seen, m.map.len);
    }
}

static int count_two(void *ctx, const struct tmap_piece *p)
{
    (void)p;
    return ++*(int *)ctx == 2 ? 7 : 0;
}

static void test_gather_stops(void **state)
{
    struct extent x[3] = { {0, 0, 10}, {1, 0, 10}, {2, 0, 10} };
    struct tmap_slice s = { .len = 30, .n_extents = 3, .extent = x };
    struct tmap m = { .op = TMAP_CONCAT, .len = 30, .n_slices = 1, .slice = &s };
    int n = 0;

    (void)state;
    assert_int_equal(tmap_gather(&m, 0, 30, -1, count_two, &n), 7);
    assert_int_equal(n, 2);
}

static void test_read(void **state)
{
    static unsigned char buf[MAX_SLICES * 4000];
    struct files *f = files_new();
    struct made m = {0};
    struct err e = {0};

    (void)state;
    for (int i = 0; i < N_RECORDS; i++)
        files_add_record(f, &(struct record){ .file = files_add_mem(f, bytes[i], RECORD_LEN, "memory"),
                                              .len = RECORD_LEN, .name = "r" });
    for (int round = 0; round < 1000; round++) {
        srand((unsigned)round + 77);
        make_map(&m);
        uint64_t from = below(m.map.len + 1), len = below(m.map.len - from + 1);
        int k = (int)below((uint64_t)m.map.n_slices);

        assert_int_equal(tmap_read(&m.map, f, (struct tmap_range){ k, from, len }, buf, &e), 0);
        for (uint64_t i = 0; i < len; i++)
            assert_int_equal(buf[i], logical_byte(&m.map, from + i, k));
    }
    files_free(f);
}

/* ---- replicas ---- */

static void check_f32(const float *a, const float *b, const float *c, int n, enum replica_policy policy,
                      uint64_t want_differ, const float *want)
{
    const void *copy[3] = { a, b, c };
    float out[8];

    memset(out, 0x55, sizeof out);
    assert_int_equal(replicas_combine(copy, c ? 3 : 2, (uint64_t)n * 4, DTYPE_F32, policy, out), want_differ);
    assert_memory_equal(out, want, (size_t)n * 4);
}

static void test_replicas_f32(void **state)
{
    /* -0.0 is not +0.0, a NaN equals itself bit for bit, 3 x 0.1 / 3 is not 0.1 in fp32 everywhere. */
    float a[4] = { 1, -0.0f, NAN, 0.1f }, b[4] = { 1, 0.0f, NAN, 0.1f }, c[4] = { 2, 0.0f, NAN, 0.1f };
    float first[4] = { 1, -0.0f, NAN, 0.1f }, majority[4] = { 1, 0.0f, NAN, 0.1f };
    float average[4] = { 4 / 3.0f, 0.0f, NAN, 0.1f }, untouched[4];
    float tie_a[1] = { 3 }, tie_b[1] = { 2 }, minus[1] = { -0.0f };

    (void)state;
    memset(untouched, 0x55, sizeof untouched);
    check_f32(a, b, c, 4, REPLICAS_FIRST, 2, first);
    check_f32(a, b, c, 4, REPLICAS_MAJORITY, 2, majority);
    check_f32(a, b, c, 4, REPLICAS_AVERAGE, 2, average);
    check_f32(a, b, c, 4, REPLICAS_FAIL, 2, untouched);
    check_f32(tie_a, tie_b, NULL, 1, REPLICAS_MAJORITY, 1, tie_a);
    /* All agree: the bytes, -0.0 too, whatever the policy. */
    check_f32(minus, minus, minus, 1, REPLICAS_AVERAGE, 0, minus);
    check_f32(minus, minus, minus, 1, REPLICAS_FAIL, 0, minus);
}

static void test_replicas_order_of_additions(void **state)
{
    /* ((0 + 1) + 1e8) - 1e8 = 0 in fp32, not 1: left to right, then one division. */
    float a[1] = { 1 }, b[1] = { 1e8f }, c[1] = { -1e8f }, want[1] = { 0 };

    (void)state;
    check_f32(a, b, c, 1, REPLICAS_AVERAGE, 1, want);
    /* A division by 3 is not a product with 1/3. */
    a[0] = 1;
    b[0] = c[0] = 2;
    want[0] = 5 / 3.0f;
    check_f32(a, b, c, 1, REPLICAS_AVERAGE, 1, want);
}

static void check_16(enum dtype t, uint16_t a, uint16_t b, uint16_t want)
{
    const void *copy[2] = { &a, &b };
    uint16_t out = 0;

    assert_int_equal(replicas_combine(copy, 2, 2, t, REPLICAS_AVERAGE, &out), a != b);
    if (out != want)
        fail_msg("average of %04x and %04x: got %04x, want %04x", a, b, out, want);
}

static void test_replicas_16_bits(void **state)
{
    (void)state;
    check_16(DTYPE_BF16, 0x3f80, 0x4000, 0x3fc0);       /* 1, 2 -> 1.5 */
    check_16(DTYPE_BF16, 0x3f80, 0x3f81, 0x3f80);       /* half way: to even */
    check_16(DTYPE_BF16, 0x3f81, 0x3f82, 0x3f82);
    check_16(DTYPE_BF16, 0x8000, 0x0000, 0x0000);       /* -0, +0 -> +0 */
    check_16(DTYPE_BF16, 0x8000, 0x8000, 0x8000);       /* equal: the bytes */
    check_16(DTYPE_BF16, 0x7f7f, 0x7f7e, 0x7f80);       /* the sum overflows, as the reference's does */
    check_16(DTYPE_BF16, 0x7fc1, 0x3f80, 0x7fc1);       /* NaN stays NaN */
    check_16(DTYPE_F16, 0x3c00, 0x4000, 0x3e00);        /* 1, 2 -> 1.5 */
    check_16(DTYPE_F16, 0x3c00, 0x3c01, 0x3c00);        /* to even */
    check_16(DTYPE_F16, 0x3c01, 0x3c02, 0x3c02);
    check_16(DTYPE_F16, 0x7bff, 0x7bfe, 0x7bfe);        /* 65504, 65472 -> 65488: to even */
    check_16(DTYPE_F16, 0x0001, 0x0003, 0x0002);        /* subnormal */
    check_16(DTYPE_F16, 0x03ff, 0x0401, 0x0400);        /* the least normal number */
    check_16(DTYPE_F16, 0x7c00, 0x3c00, 0x7c00);        /* infinity */
    check_16(DTYPE_F16, 0xbc00, 0xc000, 0xbe00);
}

static void test_replicas_others(void **state)
{
    int64_t i0[2] = { 5, 6 }, i1[2] = { 5, 8 }, iout[2];
    double d0[1] = { 1 }, d1[1] = { 2 }, dout[1];
    float c0[2] = { 1, 2 }, c1[2] = { 3, 2 }, cout[2];
    const void *ints[2] = { i0, i1 }, *doubles[2] = { d0, d1 }, *complexes[2] = { c0, c1 };

    (void)state;
    assert_int_equal(replicas_combine(ints, 2, 16, DTYPE_I64, REPLICAS_AVERAGE, iout), 1);
    assert_int_equal(iout[1], 6);
    assert_int_equal(replicas_combine(doubles, 2, 8, DTYPE_F64, REPLICAS_AVERAGE, dout), 1);
    assert_true(dout[0] == 1.5);
    assert_int_equal(replicas_combine(complexes, 2, 8, DTYPE_C64, REPLICAS_AVERAGE, cout), 1);
    assert_true(cout[0] == 2 && cout[1] == 2);
}

/* In place, over several blocks of comparison, differences anywhere. */
static void test_replicas_blocks(void **state)
{
    enum { N = 5000 };
    static float copy[3][N], keep[N];
    const void *p[3] = { copy[0], copy[1], copy[2] };

    (void)state;
    for (int round = 0; round < 200; round++) {
        uint64_t n_differ = 0, first = UINT64_MAX;

        srand((unsigned)round);
        for (int i = 0; i < N; i++) {
            copy[0][i] = copy[1][i] = copy[2][i] = keep[i] = (float)rand();
            if (below(round % 2 ? 3000 : 40) == 0) {
                copy[1 + below(2)][i] += 1024;
                n_differ++;
                first = first == UINT64_MAX ? (uint64_t)i : first;
            }
        }
        assert_true(replicas_first_difference(p, 3, sizeof keep, DTYPE_F32) == first);
        assert_int_equal(replicas_combine(p, 3, sizeof keep, DTYPE_F32, REPLICAS_MAJORITY, copy[0]), n_differ);
        assert_memory_equal(copy[0], keep, sizeof keep);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces), cmocka_unit_test(test_single_slice), cmocka_unit_test(test_gather_stops),
        cmocka_unit_test(test_read), cmocka_unit_test(test_replicas_f32),
        cmocka_unit_test(test_replicas_order_of_additions), cmocka_unit_test(test_replicas_16_bits),
        cmocka_unit_test(test_replicas_others), cmocka_unit_test(test_replicas_blocks),
    };

    for (int r = 0; r < N_RECORDS; r++)
        for (int i = 0; i < RECORD_LEN; i++)
            bytes[r][i] = (unsigned char)((unsigned)(i * 7 + r * 131 + i / 251 * 13) & 0xff);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
