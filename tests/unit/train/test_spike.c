/* test_spike.c - losses that jump, and losses that do not */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tools/train/guard/outlier.h"

static uint64_t word = 1;

/* Uniform in -1 .. 1. */
static double noise(void)
{
    word = word * 6364136223846793005u + 1442695040888963407u;
    return (double)(word >> 11) * 0x1p-52 - 1;
}

/* As a run's: falls, and scatters. */
static double loss_at(int i) { return 2 + 9 * exp(-i / 300.0) + 0.04 * noise(); }

static void test_calm(void **state)
{
    struct spike s = {0};

    (void)state;
    for (int i = 0; i < 10000; i++)
        if (spike_add_loss(&s, loss_at(i)))
            fail_msg("iteration %d of a calm run is a spike", i);
}

/* Two incidents of several iterations, each reported once, at its beginning. */
static void test_jumps(void **state)
{
    struct spike s = {0};

    (void)state;
    for (int i = 0; i < 3000; i++) {
        const double jump = (i >= 1700 && i < 1712) || (i >= 2500 && i < 2503) ? 0.6 : 0;

        if (spike_add_loss(&s, loss_at(i) + jump) != (i == 1700 || i == 2500))
            fail_msg("iteration %d", i);
    }
}

/* Noise that is larger than 5 % is no spike, what stands out of it is; a new level is one incident. */
static void test_scatter(void **state)
{
    struct spike s = {0};
    int told = 0;

    (void)state;
    for (int i = 0; i < 2000; i++)
        assert_false(spike_add_loss(&s, 3 + 0.5 * noise()));
    assert_true(spike_add_loss(&s, 3 + 5));
    for (int i = 0; i < 2000; i++)
        told += spike_add_loss(&s, 9 + 0.01 * noise());
    assert_int_equal(told, 0);
    assert_true(spike_add_loss(&s, 12));
}

/* Too few values for a decision. */
static void test_young(void **state)
{
    struct spike s = {0};

    (void)state;
    for (int i = 0; i < SPIKE_LEAST; i++)
        assert_false(spike_add_loss(&s, i % 2 ? 3 : 300));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calm), cmocka_unit_test(test_jumps), cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_young),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
