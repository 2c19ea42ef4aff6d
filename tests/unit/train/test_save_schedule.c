/* test_save_schedule.c - which iterations are saved: tr1-13B's three rounds in one, the rest by --save-interval,
 * and every invalid schedule */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tools/train/options/save_schedule.h"

static struct save_schedule read_schedule(const char *text, int64_t rest)
{
    struct save_schedule s = { .rest = rest };
    struct err e = {0};

    if (save_schedule_parse(&s, text, "--save-schedule", &e) < 0)
        fail_msg("%s", e.msg);
    return s;
}

/* The rounds as they were: three jobs, each with one interval; the reference saves at its multiples. */
static bool round_saves(int64_t i)
{
    const int64_t interval = i <= 100 ? 10 : i <= 1000 ? 18 : 1500;

    return i % interval == 0;
}

static void test_rounds(void **state)
{
    static const int64_t limits[] = { 100, 1000, 150000 };
    struct save_schedule s = read_schedule("1-100:10,101-1000:18,1001-:1500", 0);
    int64_t i = 1;
    int saved[3] = {0};

    (void)state;
    for (int round = 0; round < 3; round++)
        for (; i <= limits[round]; i++) {
            if (save_schedule_due(&s, i) != round_saves(i))
                fail_msg("iteration %ld: %d", (long)i, save_schedule_due(&s, i));
            saved[round] += save_schedule_due(&s, i);
        }
    /* "10 checkpoints", "50 checkpoints", "100+ checkpoints" */
    assert_int_equal(saved[0], 10);
    assert_int_equal(saved[1], 50);
    assert_int_equal(saved[2], 100);
    assert_true(save_schedule_due(&s, 108) && save_schedule_due(&s, 990) && !save_schedule_due(&s, 1000));
    assert_true(save_schedule_due(&s, (int64_t)1500 * 1000000000));
    assert_true(save_schedule_lists(&s, 1) && save_schedule_lists(&s, 101) && !save_schedule_lists(&s, 0));
    save_schedule_free(&s);
}

/* The same saved steps by other words; the end of a round as a stretch of its own. */
static void test_rest(void **state)
{
    struct save_schedule rest = read_schedule("1-100:10, 101-1_000:18", 1500), none = read_schedule("5-9:1,20-29:7", 0);
    struct save_schedule plain = read_schedule(NULL, 4), end = read_schedule("1-100:10,101-999:18,1000-1000:1", 1500);

    (void)state;
    for (int64_t i = 1; i <= 9000; i++) {
        if (save_schedule_due(&rest, i) != round_saves(i))
            fail_msg("iteration %ld of the rest", (long)i);
        if (save_schedule_due(&end, i) != (round_saves(i) || i == 1000))
            fail_msg("iteration %ld with the round's end", (long)i);
        if (save_schedule_due(&none, i) != ((i >= 5 && i <= 9) || i == 21 || i == 28))
            fail_msg("iteration %ld between", (long)i);
        if (save_schedule_due(&plain, i) != (i % 4 == 0))
            fail_msg("iteration %ld of an interval", (long)i);
    }
    save_schedule_free(&rest);
    save_schedule_free(&none);
    save_schedule_free(&plain);
    save_schedule_free(&end);
}

static void test_wrong(void **state)
{
    static const struct { const char *text, *message; } wrong[] = {
        { "", "column 1: expected an iteration from 1 on, found the end" },
        { "often", "column 1: expected an iteration from 1 on, found 'o'" },
        { "100", "column 4: expected '-' after the first iteration, found the end" },
        { "1:10", "column 2: expected '-' after the first iteration, found ':'" },
        { "1-100", "column 6: expected ':' and an interval, found the end" },
        { "1-x:10", "column 3: expected the last iteration, or ':', found 'x'" },
        { "1-100:", "column 7: expected an interval of 1 or more iterations, found the end" },
        { "1-100:0", "column 7: expected an interval of 1 or more iterations, found '0'" },
        { "1-100:-5", "column 7: expected an interval of 1 or more iterations, found '-'" },
        { "0-100:10", "column 1: expected an iteration from 1 on, found '0'" },
        { "1-0:10", "column 3: expected the last iteration, or ':', found '0'" },
        { "1-100:10;101-:5", "column 9: expected ',' or the end, found ';'" },
        { "1-100:10,", "column 10: expected an iteration from 1 on, found the end" },
        { "1-100:1.5", "column 8: expected ',' or the end, found '.'" },
        { "100-1:10", "column 1: iterations 100-1 end before they begin" },
        { "1-100:10,100-200:5", "column 10: iteration 100 is not after 1-100" },
        { "101-200:10, 1-100:5", "column 13: iteration 1 is not after 101-200" },
        { "1-:10,101-200:5", "column 7: nothing can follow 1-, which has no end" },
        { "1-100:10,101-105:18", "column 18: no multiple of 18 lies in 101-105: nothing would be saved" },
        { "1-9_:3", "column 3: expected the last iteration, or ':', found '9_'" },
        { "1-99999999999999999999:3", "column 3: expected the last iteration, or ':', found '99999999999999999999'" },
        { "1-1000000000000001:3", "column 3: expected the last iteration, or ':', found '1000000000000001'" },
        { "1-99999999999999999999999999:3",
          "column 3: expected the last iteration, or ':', found '99999999999999999999999'" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct save_schedule s = {0};
        struct err e = {0};
        char want[400];

        snprintf(want, sizeof want, "--save-schedule '%s': %s", wrong[i].text, wrong[i].message);
        if (save_schedule_parse(&s, wrong[i].text, "--save-schedule", &e) == 0)
            fail_msg("'%s' was taken", wrong[i].text);
        assert_int_equal(e.kind, ERR_USAGE);
        assert_string_equal(e.msg, want);
        save_schedule_free(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounds),
        cmocka_unit_test(test_rest),
        cmocka_unit_test(test_wrong),
    };

    return cmocka_run_group_tests_name("save_schedule", tests, NULL, NULL);
}
