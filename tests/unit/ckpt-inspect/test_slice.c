/* test_slice.c - slices of ckpt-inspect cat: which elements they select, in order, and texts that are refused */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tools/ckpt-inspect/slice.h"

static const int64_t shape[] = { 3, 4, 5 };

/* The elements that NumPy selects of numpy.arange(60).reshape(3, 4, 5), and the shape of the result. */
static const struct {
    const char *text;
    int ndim;
    int64_t shape[3];
    int64_t n, first, last, sum;            /* of the elements */
} cases[] = {
    { NULL, 3, { 3, 4, 5 }, 60, 0, 59, 1770 },
    { "1", 2, { 4, 5 }, 20, 20, 39, 590 },
    { "-1,-1,-1", 0, { 0 }, 1, 59, 59, 59 },
    { "1:,2", 2, { 2, 5 }, 10, 30, 54, 420 },
    { ":,:,2", 2, { 3, 4 }, 12, 2, 57, 354 },
    { "::2,1:3,::3", 3, { 2, 2, 2 }, 8, 5, 53, 232 },
    { ":,1:99", 3, { 3, 3, 5 }, 45, 5, 59, 1440 },
    { "-2:,:1,-3:-1", 3, { 2, 1, 2 }, 4, 22, 43, 130 },
    { "2:1", 3, { 0, 4, 5 }, 0, 0, 0, 0 },
};

static const struct { const char *text, *message; } refused[] = {
    { "", "" }, { "x", "" }, { "1,", "" }, { "3", "" }, { "-4", "" }, { "::0", "" }, { "::-1", "" },
    { "0,0,0,0", "more indices than the tensor has dimensions (3)" },
};

static void test_selects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct view_slice s;
        struct err e = {0};
        int64_t n = 0, first = 0, last = 0, sum = 0;

        if (slice_parse(&s, cases[i].text, 3, shape, &e) < 0)
            fail_msg("%s: %s", cases[i].text, e.msg);
        assert_int_equal(s.out_ndim, cases[i].ndim);
        assert_memory_equal(s.out_shape, cases[i].shape, (size_t)cases[i].ndim * sizeof *shape);
        assert_int_equal(s.n_elems, cases[i].n);
        for (int64_t run = 0; s.n_elems && run < s.n_elems / s.run; run++)
            for (int64_t k = 0; k < s.run; k++, n++) {
                last = slice_run_at(&s, run) + k;
                first = n ? first : last;
                sum += last;
            }
        if (n != cases[i].n || first != cases[i].first || last != cases[i].last || sum != cases[i].sum)
            fail_msg("%s: %lld elements, %lld to %lld, sum %lld", cases[i].text ? cases[i].text : "all", (long long)n,
                     (long long)first, (long long)last, (long long)sum);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct view_slice s;
        struct err e = {0};

        if (slice_parse(&s, refused[i].text, 3, shape, &e) == 0)
            fail_msg("accepted: '%s'", refused[i].text);
        assert_int_equal(e.kind, ERR_USAGE);
        if (!strstr(e.msg, refused[i].message))
            fail_msg("'%s': %s", refused[i].text, e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_selects), cmocka_unit_test(test_refuses) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
