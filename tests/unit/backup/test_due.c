/* test_due.c - apply backup rules to a run: the published backup schedule of a 176B run, step by step, and backups
 * that must never be removed */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/ckpt-backup/rules/due.h"

/* ---- helpers ---- */

static int read_rules(struct rules *r, const char *text, struct err *e)
{
    char path[] = "/tmp/shardkit-rules-XXXXXX";
    int fd = mkstemp(path), rc;
    FILE *f = fdopen(fd, "w");

    fputs(text, f);
    fclose(f);
    rc = rules_read(r, path, e);
    unlink(path);
    return rc;
}

static struct rules rules_of(const char *text)
{
    struct rules r;
    struct err e = {0};

    if (read_rules(&r, text, &e) < 0)
        fail_msg("%s", e.msg);
    return r;
}

/* Return the steps of one verb, place and form as text: "1000 2000 ". */
static char *steps_text(const struct due_action *a, int n, enum due_verb verb, int place, enum backup_form form)
{
    size_t len = 0;
    char *text = calloc(1, (size_t)n * 12 + 1);

    for (int i = 0; i < n; i++)
        if (a[i].verb == verb && a[i].place == place && a[i].form == form)
            len += (size_t)sprintf(text + len, "%lld ", (long long)a[i].step);
    return text;
}

static void expect_steps(const struct due_action *a, int n, enum due_verb verb, int place, const char *want)
{
    char *got = steps_text(a, n, verb, place, FORM_WHOLE);

    assert_string_equal(got, want);
    free(got);
}

static int run_of(int64_t *step, int64_t every, int64_t last)
{
    int n = 0;

    for (int64_t s = every; s <= last; s += every)
        step[n++] = s;
    return n;
}

/* ---- the schedule ---- */

static const char schedule[] =
    "keep-last 20\n"
    "place /store/tr11            # every 1000th, whole\n"
    "full-every 1000\n"
    "keep 31200,31259\n"
    "place /cloud/tr11\n"
    "full-every 10000\n"
    "full 3000, 95000\n"
    "full 31200,31259             # spikes\n"
    "weights-every 3000\n";

/* A run saves every 100 steps up to 120000, and around the spike. No place holds anything yet. */
static void test_published_schedule(void **state)
{
    static int64_t step[1300];
    int n_steps = run_of(step, 100, 120000), n;
    struct rules r = rules_of(schedule);
    struct due_place place[2] = { { .known = true }, { .known = true } };
    struct due_state st = { step, 0, 120000, place };
    struct due_action *a;
    char *got, want[4096] = "";

    (void)state;
    memmove(&step[313], &step[312], (size_t)(n_steps - 312) * sizeof *step);
    step[312] = 31259;                  /* 31200 is one of the hundreds */
    st.n_steps = ++n_steps;
    n = due_make(&r, &st, &a);

    got = steps_text(a, n, DUE_COPY, 1, FORM_WHOLE);
    assert_string_equal(got,
                        "3000 10000 20000 30000 31200 31259 40000 50000 60000 70000 80000 90000 95000 100000 110000 "
                        "120000 ");
    free(got);
    got = steps_text(a, n, DUE_COPY, 1, FORM_WEIGHTS);
    assert_string_equal(got,
                        "6000 9000 12000 15000 18000 21000 24000 27000 33000 36000 39000 42000 45000 48000 51000 "
                        "54000 57000 63000 66000 69000 72000 75000 78000 81000 84000 87000 93000 96000 99000 102000 "
                        "105000 108000 111000 114000 117000 ");
    free(got);
    for (int64_t s = 1000, k = 0; s <= 120000; s += 1000) {
        k += sprintf(want + k, "%lld ", (long long)s);
        if (s == 31000)
            k += sprintf(want + k, "31200 31259 ");
    }
    got = steps_text(a, n, DUE_COPY, 0, FORM_WHOLE);
    assert_string_equal(got, want);
    free(got);

    /* Steps that no place must hold may be removed at once, all but the last 20. The others wait. */
    for (int i = 0; i < n; i++) {
        bool elsewhere = a[i].step % 1000 == 0 || a[i].step == 31200 || a[i].step == 31259;

        if (a[i].place != DUE_RUN)
            continue;
        assert_true(a[i].step <= 118000);
        assert_int_equal(a[i].verb, elsewhere ? DUE_WAIT : DUE_FORGET);
    }
    free(a);
    rules_free(&r);
}

/* As places fill, copies are no longer due and steps may be removed. A copy that is not verified does not count. */
static void test_places_hold(void **state)
{
    static const struct due_held store[] = { { 1000, FORM_WHOLE, true, true }, { 2000, FORM_WHOLE, false, false },
                                             { 3000, FORM_TAR, true, true } };
    static const struct due_held cloud[] = { { 2000, FORM_WEIGHTS, true, true }, { 3000, FORM_WHOLE, true, true },
                                             { 4000, FORM_WEIGHTS, true, true } };
    static const int64_t step[] = { 1000, 2000, 3000, 4000, 5000 };
    struct rules r = rules_of("keep-last 1\nplace a\nfull-every 1000\nplace b\nweights-every 1000\nfull 4000\n");
    struct due_place place[2] = { { true, store, 3 }, { true, cloud, 3 } };
    struct due_state st = { step, 5, 5000, place };
    struct due_action *a;
    int n = due_make(&r, &st, &a);
    char *got;

    (void)state;
    expect_steps(a, n, DUE_COPY, 0, "2000 4000 5000 ");         /* a tar counts; a copy that is not verified does
                                                                 * not */
    expect_steps(a, n, DUE_COPY, 1, "4000 ");                   /* weights do not count as a whole copy */
    got = steps_text(a, n, DUE_COPY, 1, FORM_WEIGHTS);
    assert_string_equal(got, "1000 5000 ");                     /* a whole copy counts as weights */
    free(got);
    expect_steps(a, n, DUE_FORGET, DUE_RUN, "3000 ");
    expect_steps(a, n, DUE_WAIT, DUE_RUN, "1000 2000 4000 ");
    free(a);
    rules_free(&r);
}

/* Steps newer than `latest` are copied and stay. An exact copy of a step that is not sound exists, but allows no
 * removal. */
static void test_newer_and_unsound(void **state)
{
    static const struct due_held store[] = { { 10, FORM_WHOLE, true, true }, { 20, FORM_WHOLE, false, true } };
    static const int64_t step[] = { 10, 20, 30, 40, 50 };
    struct rules r = rules_of("keep-last 1\nplace a\nfull-every 10\n");
    struct due_place place[1] = { { true, store, 2 } };
    struct due_state st = { step, 5, 30, place };
    struct due_action *a;
    int n = due_make(&r, &st, &a);

    (void)state;
    expect_steps(a, n, DUE_COPY, 0, "30 40 50 ");
    expect_steps(a, n, DUE_FORGET, DUE_RUN, "10 ");
    expect_steps(a, n, DUE_WAIT, DUE_RUN, "20 ");
    free(a);
    rules_free(&r);
}

/* ---- conditions that prevent removal ---- */

static void test_nothing_is_forgotten(void **state)
{
    static const struct due_held held[] = { { 1, FORM_WHOLE, true, true },
                                            { 2, FORM_WHOLE, true, true },
                                            { 3, FORM_WHOLE, true, true } };
    static const int64_t step[] = { 1, 2, 3, 4 };
    static const struct { const char *rules; int64_t latest; bool known; const char *forget; } cases[] = {
        { "place p\nfull-every 1\n", 4, true, "" },             /* no keep rule: all steps stay */
        { "keep-last 1\nplace p\nfull-every 1\n", 4, true, "1 2 3 " },
        { "keep-last 1\nplace p\nfull-every 1\n", 4, false, "" },       /* the place cannot be read */
        { "keep-last 1\nplace p\nfull-every 1\n", 2, true, "1 " },      /* 3 and 4 are being written; 2 is latest */
        { "keep 4\nplace p\nfull-every 1\n", 4, true, "" },     /* lists steps to keep, but does not allow removal
                                                                 * of others */
        { "keep-every 4\nkeep 2\nplace p\nfull-every 1\n", 3, true, "1 " },    /* latest stays without a rule */
        { "keep-last 2\nkeep 1\nplace p\nfull-every 1\n", 4, true, "2 " },
        { "keep-every 2\nplace p\nfull-every 1\n", 4, true, "1 3 " },
        { "keep-every 2\nplace p\nfull-every 1\n", -1, true, "" },     /* it is unknown which steps are finished */
        { "keep-last 1\n", 4, true, "1 2 3 " },                 /* no place is named, so the keep rules alone decide */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rules r = rules_of(cases[i].rules);
        struct due_place place = { cases[i].known, held, cases[i].known ? 3 : 0 };
        struct due_state st = { step, 4, cases[i].latest, &place };
        struct due_action *a;
        int n = due_make(&r, &st, &a);
        char *got = steps_text(a, n, DUE_FORGET, DUE_RUN, FORM_WHOLE);

        if (strcmp(got, cases[i].forget) != 0)
            fail_msg("case %zu: may go '%s', want '%s'", i, got, cases[i].forget);
        free(got);
        free(a);
        rules_free(&r);
    }
}

/* A place with its own keep rules: steps that it would remove are not copied there, and the other place must hold
 * them. */
static void test_place_forgets(void **state)
{
    static const struct due_held near[] = { { 10, FORM_WHOLE, true, true }, { 20, FORM_WHOLE, true, true },
                                            { 30, FORM_WEIGHTS, true, true }, { 40, FORM_WHOLE, false, false } };
    static const struct due_held far[] = { { 10, FORM_WHOLE, true, true } };
    static const int64_t step[] = { 20, 40, 50, 60 };
    struct rules r = rules_of("place near\nfull-every 10\nkeep-last 2\nkeep 20\nplace far\nfull 10,30\n");
    struct due_place place[2] = { { true, near, 4 }, { true, far, 1 } };
    struct due_state st = { step, 4, 60, place };
    struct due_action *a;
    int n = due_make(&r, &st, &a);
    char *got;

    (void)state;
    expect_steps(a, n, DUE_COPY, 0, "50 60 ");
    expect_steps(a, n, DUE_FORGET, 0, "40 ");
    expect_steps(a, n, DUE_WAIT, 0, "10 ");                     /* 20 is the only other step that is whole and sound */
    got = steps_text(a, n, DUE_WAIT, 0, FORM_WEIGHTS);
    assert_string_equal(got, "30 ");                            /* far must hold it whole, and does not */
    free(got);
    free(a);
    rules_free(&r);
}

/* Newer copies that are damaged or not yet made do not count: the newest sound ones of a place stay. */
static void test_place_keeps_the_good(void **state)
{
    static const struct due_held held[] = { { 10, FORM_WHOLE, true, true },
                                            { 20, FORM_WHOLE, true, true },
                                            { 30, FORM_TAR, false, false },
                                            { 40, FORM_WHOLE, true, true } };
    static const int64_t step[] = { 50, 60 };
    static const struct { const char *keep; int n_held; const char *forget, *wait; } cases[] = {
        { "keep-last 1", 2, "10 ", "20 " },             /* 60 is not yet made */
        { "keep-last 2", 2, "", "10 20 " },
        { "keep-last 2", 3, "", "10 20 " },             /* 30 is damaged */
        { "keep-last 2", 4, "10 ", "20 40 " },
        { "keep-last 3\nkeep 10", 4, "", "20 " },      /* 40, 50, 60 stay in any case */
        { "keep-every 20", 2, "10 ", "" },              /* nothing is counted */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        struct rules r;
        struct due_place place = { true, held, cases[i].n_held };
        struct due_state st = { step, 2, 60, &place };
        struct due_action *a;
        int n;

        snprintf(text, sizeof text, "place p\nfull-every 10\n%s\n", cases[i].keep);
        r = rules_of(text);
        n = due_make(&r, &st, &a);
        expect_steps(a, n, DUE_FORGET, 0, cases[i].forget);
        expect_steps(a, n, DUE_WAIT, 0, cases[i].wait);
        free(a);
        rules_free(&r);
    }
}

/* Copies of weights do not replace whole copies: the newest of each form stay. */
static void test_place_keeps_whole_ones(void **state)
{
    static const struct due_held held[] = { { 1000, FORM_WHOLE, true, true }, { 1100, FORM_WEIGHTS, true, true },
                                            { 1200, FORM_WEIGHTS, true, true }, { 2000, FORM_WHOLE, true, true } };
    static const int64_t step[] = { 1000, 1100, 1200 };
    struct rules r = rules_of("place p\nfull-every 1000\nweights-every 100\nkeep-last 1\n");
    static const struct { int n_held; enum due_verb verb; const char *whole, *weights; } cases[] = {
        { 0, DUE_COPY, "1000 ", "1200 " },
        { 2, DUE_FORGET, "", "" },
        { 2, DUE_WAIT, "", "1100 " },                   /* 1200 is not yet made */
        { 3, DUE_FORGET, "", "1100 " },                 /* 1000 is the newest whole one */
        { 4, DUE_FORGET, "1000 ", "1100 1200 " },       /* 2000 is the newest of both forms */
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct due_place place = { true, held, cases[i].n_held };
        struct due_state st = { step, 3, 1200, &place };
        struct due_action *a;
        int n = due_make(&r, &st, &a);
        char *weights = steps_text(a, n, cases[i].verb, 0, FORM_WEIGHTS);

        expect_steps(a, n, cases[i].verb, 0, cases[i].whole);
        assert_string_equal(weights, cases[i].weights);
        free(weights);
        free(a);
    }
    rules_free(&r);
}

/* ---- invalid rules ---- */

static void test_bad_rules(void **state)
{
    static const struct { const char *text, *says; } cases[] = {
        { "keep-last\n", "line 1: the rule 'keep-last' needs a value" },
        { "\n# x\nkeep-last 0\n", "line 3: keep-last: '0' is not a whole number of 1 or more" },
        { "keep-last -1\n", "'-1' is not a whole number" },
        { "keep 1,,2\n", "line 1: keep: '' is not a whole number" },
        { "keep-lats 3\n", "'keep-lats' is not a rule; did you mean 'keep-last'?" },
        { "full-every 3\n", "line 1: the rule 'full-every' applies to a place; write it below a line 'place PATH'" },
        { "place a\ntar yes\n", "line 2: the rule 'tar' accepts no value, but has 'yes'" },
        { "place a\nplace b\nplace a\n", "line 3: the place a was already named" },
        { "keep-every 99999999999999999999\n", "is not a whole number of 1 or more" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rules r;
        struct err e = {0};

        if (read_rules(&r, cases[i].text, &e) == 0)
            fail_msg("'%s' was taken", cases[i].text);
        if (e.kind != ERR_USAGE || !strstr(e.msg, cases[i].says))
            fail_msg("'%s': says '%s', want '%s'", cases[i].text, e.msg, cases[i].says);
        rules_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_schedule),     cmocka_unit_test(test_places_hold),
        cmocka_unit_test(test_newer_and_unsound),      cmocka_unit_test(test_nothing_is_forgotten),
        cmocka_unit_test(test_place_forgets),          cmocka_unit_test(test_place_keeps_the_good),
        cmocka_unit_test(test_place_keeps_whole_ones), cmocka_unit_test(test_bad_rules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
