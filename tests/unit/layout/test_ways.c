/*
 * test_ways.c - between layouts: what the source's own names and shapes must not turn into
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/layout/merge.h"

/* Slices without rows, or with rows of nothing, joined by columns. */
static void test_nothing(void **state)
{
    static const int64_t shapes[][2] = { { 0, 8 }, { 8, 0 } };
    struct arena *a = arena_new(0);
    struct tmap_slice slice[2] = { { .n_extents = 0 }, { .n_extents = 0 } };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct param p = { .name = "w", .ndim = 2, .merge = MERGE_CAT1 };
        struct tmap m = { .dtype = DTYPE_F32, .n_slices = 2, .slice = slice };

        memcpy(p.shape, shapes[i], sizeof shapes[i]);
        assert_true(merge_shape(&p, 2, "path", NULL));
        merge_map(a, &p, &m);
        assert_int_equal(m.len, 0);
        assert_int_equal(m.op, TMAP_CONCAT);
    }
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_nothing) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
