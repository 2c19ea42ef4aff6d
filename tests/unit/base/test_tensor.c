/* test_tensor.c - numbers of elements and bytes at the edge of 64 bits, comparison and text of shapes */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/tensor.h"

#define TWO62 ((int64_t)1 << 62)

static const struct {
    int ndim;
    int64_t shape[4], count, bytes;         /* bytes: of bf16 */
    const char *text;
} cases[] = {
    { 0, { 0 }, 1, 2, "[]" },
    { 1, { 5 }, 5, 10, "[5]" },
    { 3, { 2, 3, 4 }, 24, 48, "[2, 3, 4]" },
    { 2, { 0, 7 }, 0, 0, "[0, 7]" },
    { 1, { -1 }, -1, -1, "[-1]" },
    { 2, { 0, -1 }, -1, -1, "[0, -1]" },    /* a negative length is wrong whatever the others are */
    { 1, { INT64_MAX }, INT64_MAX, -1, "[9223372036854775807]" },
    { 2, { TWO62, 1 }, TWO62, -1, "[4611686018427387904, 1]" },
    { 2, { TWO62, 2 }, -1, -1, "[4611686018427387904, 2]" },
    { 3, { TWO62, 2, 0 }, -1, -1, "[4611686018427387904, 2, 0]" },
    { 3, { 0, TWO62, 2 }, 0, 0, "[0, 4611686018427387904, 2]" },
    { 3, { 1 << 22, 1 << 22, 1 << 21 }, -1, -1, "[4194304, 4194304, 2097152]" },        /* wraps to a negative number */
    { 4, { 1 << 16, 1 << 16, 1 << 16, 1 << 16 }, -1, -1, "[65536, 65536, 65536, 65536]" },      /* wraps to 0 */
};

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[SHAPE_TEXT];
        const int64_t count = shape_count(cases[i].ndim, cases[i].shape);
        const int64_t bytes = shape_bytes(cases[i].ndim, cases[i].shape, DTYPE_BF16);

        if (count != cases[i].count || bytes != cases[i].bytes)
            fail_msg("%s: %lld elements, %lld bytes", cases[i].text, (long long)count, (long long)bytes);
        assert_string_equal(shape_text(cases[i].ndim, cases[i].shape, text), cases[i].text);
    }
}

/* The longest text that a shape can have fits in the buffer. */
static void test_longest_text(void **state)
{
    int64_t shape[TENSOR_MAX_DIM];
    char text[SHAPE_TEXT];

    (void)state;
    for (int d = 0; d < TENSOR_MAX_DIM; d++)
        shape[d] = INT64_MIN;
    assert_int_equal(strlen(shape_text(TENSOR_MAX_DIM, shape, text)), TENSOR_MAX_DIM * 22);
}

static void test_equal(void **state)
{
    const int64_t x[] = { 3, 4, 99 }, y[] = { 3, 4, 5 }, z[] = { 3, 5 };

    (void)state;
    assert_true(shape_equal(2, x, 2, y));       /* lengths after the last dimension are not compared */
    assert_false(shape_equal(3, x, 3, y));
    assert_false(shape_equal(2, x, 1, y));
    assert_false(shape_equal(2, x, 2, z));
    assert_true(shape_equal(0, NULL, 0, y));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes), cmocka_unit_test(test_longest_text), cmocka_unit_test(test_equal),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
