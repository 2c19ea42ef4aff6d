/* test_crc.c - CRC-32 compared with zlib's, and the identity that allows pieces in any order */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <zlib.h>

#include "libcommon/base/crc.h"

enum { N = 300000 };
static unsigned char data[N], copy[N + 64];

/* Sizes around the edges of one folding step (256), of the start of folding (1024) and of cache blocks. */
static const size_t sizes[] = { 0, 1, 63, 64, 255, 256, 257, 1023, 1024, 1025, 1087, 1088, 1279, 1280, 1281,
                                4095, 4096, 4097, 32768, 32769, 65536 + 511, N - 64 };

static void fill(void)
{
    uint32_t x = 12345;

    for (int i = 0; i < N; i++) {
        x = x * 1664525 + 1013904223;
        data[i] = (unsigned char)(x >> 24);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        size_t n = sizes[s], half = n / 3;
        uint32_t want = (uint32_t)crc32(0, data, (uInt)n);

        assert_int_equal(crc_bytes(0, data, n), want);
        assert_int_equal(crc_bytes(crc_bytes(0, data, half), data + half, n - half), want);
    }
}

/* Test every alignment of both sides. The bytes around the copy must not change. */
static void test_copy(void **state)
{
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t d = 0; d < 64; d += s % 3 ? 1 : 13) {
            size_t n = sizes[s], from = (d * 7 + s) % 64;
            uint32_t begin = (uint32_t)(s * 0x9e3779b9u);

            memset(copy, 0xee, sizeof copy);
            if (crc_copy(begin, copy + d, data + from, n) != (uint32_t)crc32(begin, data + from, (uInt)n) ||
                memcmp(copy + d, data + from, n) != 0)
                fail_msg("n=%zu, source +%zu, destination +%zu", n, from, d);
            for (size_t i = 0; i < d; i++)
                assert_int_equal(copy[i], 0xee);
            for (size_t i = d + n; i < d + n + 64 && i < sizeof copy; i++)
                assert_int_equal(copy[i], 0xee);
        }
}

static void test_shift(void **state)
{
    static const uint8_t zeros[67];
    static const uint64_t after[] = { 0, 1, 2, 255, 256, 4096, 1ull << 20, (1ull << 31) + 7, 0xfffffffe, 0xffffffff,
                                      0x100000000, (1ull << 40) + 12345, 1ull << 61, INT64_MAX };
    uint32_t crc = 0xdeadbeef;

    (void)state;
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        assert_int_equal(crc_shift(crc, after[i]), crc32_combine(crc, 0, (z_off_t)after[i]));
        assert_int_equal(crc_times(crc, crc_factor(after[i])), crc_shift(crc, after[i]));
        /* x^(8(a+b)) = x^8a x^8b */
        assert_int_equal(crc_shift(crc_shift(crc, after[i] / 2), after[i] - after[i] / 2), crc_shift(crc, after[i]));
    }
    /* 2^32 - 1 zero bytes are a full period, so 2^63 of them equal 2^31. */
    assert_int_equal(crc_shift(crc, 1ull << 63), crc_shift(crc, 1ull << 31));
    for (size_t n = 0; n <= sizeof zeros; n++)
        assert_int_equal(crc_zeros(n), crc_bytes(0, zeros, n));
}

static void test_sum_in_any_order(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed < 50; seed++) {
        struct crc_sum s = {0};
        size_t cut[9] = {0}, order[8];
        uint64_t seen = 0;

        srand(seed);
        for (int i = 1; i < 8; i++)
            cut[i] = (size_t)rand() % N;
        cut[8] = N;
        for (int i = 0; i < 9; i++)             /* sort */
            for (int j = i + 1; j < 9; j++)
                if (cut[j] < cut[i]) {
                    size_t t = cut[i];

                    cut[i] = cut[j];
                    cut[j] = t;
                }
        if (seed % 2)
            cut[4] = cut[3];                    /* an empty piece */
        for (size_t i = 0; i < 8; i++)
            order[i] = (i * 5 + seed) % 8;
        for (int i = 0; i < 8; i++) {
            size_t at = cut[order[i]], len = cut[order[i] + 1] - at;

            assert_true(s.seen == seen);
            crc_sum_add(&s, N, at, len, crc_bytes(0, data + at, len));
            seen += len;
        }
        assert_int_equal(s.seen, N);
        assert_int_equal(s.acc, crc32(0, data, N));
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_copy),
        cmocka_unit_test(test_shift), cmocka_unit_test(test_sum_in_any_order),
    };

    fill();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
