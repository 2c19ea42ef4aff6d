/* test_throughput.c - runs that become slower, and runs that do not */
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

/* Noise of 2 %, and each twentieth iteration takes twice as long, as during a save or an evaluation. */
static double took(int i) { return (1 + 0.02 * noise()) * (i % 20 ? 1 : 2); }

static void test_steady(void **state)
{
    struct throughput t = {0};

    (void)state;
    for (int i = 0; i < 10000; i++)
        if (throughput_add_step(&t, took(i)))
            fail_msg("iteration %d", i);
}

/* 5 % slower from 1000 on, as with one slow GPU: reported once, within THROUGHPUT_NOW iterations; and again later. */
static void test_slower(void **state)
{
    struct throughput t = {0};
    int told = 0, first = 0;

    (void)state;
    for (int i = 0; i < 4000; i++) {
        const bool slow = (i >= 1000 && i < 1100) || i >= 3000;
        const bool now = throughput_add_step(&t, took(i) * (slow ? 1.05 : 1));

        told += now;
        first = now && !first ? i : first;
    }
    assert_int_equal(told, 2);
    assert_in_range(first, 1000, 1000 + THROUGHPUT_NOW);
}

int main(void)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(test_steady), cmocka_unit_test(test_slower) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
