/*
 * test_past.c - the history of a run as read from logs, event files and its folder
 *
 * A row of a table has the files' contents and the expected history as text: the points with their times, the stretches, the
 * events in order, the validation losses and the lines about slow ranks.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/tfevents.h"
#include "tools/run-watch/past/past.h"

static char scratch[] = "/tmp/past-XXXXXX";

static void must(int rc, const struct err *e)
{
    if (rc < 0)
        fail_msg("%s", e->msg);
}

static char *put(const char *name, const char *text)
{
    char *path = path_join(scratch, name), *dir = path_parent(path);
    struct err e = {0};

    must(dir_make(dir, &e), &e);
    must(file_replace(path, text, strlen(text), &e), &e);
    free(dir);
    return path;
}

static void add_number(struct strbuf *sb, const char *before, double v)
{
    if (isfinite(v))
        strbuf_addf(sb, "%s%g", before, v);
}

/* Times that are dates count from 2022-03-03 20:00:00 UTC. */
static double short_time(double at_s) { return at_s > 1e8 ? at_s - 1646337600 : at_s; }

static const char kind_name[PAST_KINDS][9] = { "start", "stop", "save", "backup", "incident" };

/*
 * Return a history as text, such as "dated repeated 1 | 1@5 n4 l2.5 ... | stretches 0 3 | save 2@10 n8". @ is a time,
 * n the samples, l the loss. The caller frees it.
 */
static char *history_text(const struct past *p)
{
    struct strbuf sb = {0};

    strbuf_addf(&sb, "%s", p->dated ? "dated" : "undated");
    if (past_repeated(p))
        strbuf_addf(&sb, " repeated %lld", (long long)past_repeated(p));
    strbuf_addf(&sb, " |");
    for (int i = 0; i < p->n; i++) {
        strbuf_addf(&sb, " %lld@%g", (long long)p->point[i].iteration, short_time(p->point[i].at_s));
        add_number(&sb, "n", p->point[i].samples);
        add_number(&sb, "l", p->point[i].v[PAST_LOSS]);
        add_number(&sb, "s", p->point[i].v[PAST_SAMPLES_S]);
    }
    strbuf_addf(&sb, " | stretches");
    for (int i = 0; i < p->n_stretches; i++)
        strbuf_addf(&sb, " %d", p->stretch[i]);
    for (int i = 0; i < p->n_events; i++) {
        const struct past_event *v = &p->event[i];

        strbuf_addf(&sb, " | %s %lld@%g", kind_name[v->kind], (long long)v->iteration, short_time(v->at_s));
        add_number(&sb, "n", v->samples);
        strbuf_addf(&sb, "%s%s%s", v->kept ? " kept" : "", *v->text ? " " : "", v->text);
    }
    for (int s = 0; s < p->n_sets; s++)
        for (int i = 0; i < p->set[s].n; i++) {
            strbuf_addf(&sb, " | %s %lld@%g", p->set[s].name, (long long)p->set[s].p[i].iteration,
                        short_time(p->set[s].p[i].at_s));
            add_number(&sb, "n", p->set[s].p[i].samples);
            add_number(&sb, "l", p->set[s].p[i].loss);
        }
    for (int i = 0; i < p->n_slow; i++)
        strbuf_addf(&sb, " | slow rank %d of %s at %lld@%g: %g s, %g %%", p->slow[i].rank, p->slow[i].host,
                    (long long)p->slow[i].iteration, short_time(p->slow[i].at_s), p->slow[i].compute_s,
                    p->slow[i].above);
    return sb.buf;
}

static void expect_history(const char *name, struct past *p, const char *want)
{
    char *got;

    past_resolve(p);
    got = history_text(p);
    if (strcmp(got, want) != 0)
        fail_msg("%s:\n  got  %s\n  want %s", name, got, want);
    free(got);
}

/* ---- logs ---- */

#define IT(i, rest) " iteration " #i "/ 60 | elapsed time per iteration (s): 5.0 | " rest "\n"
#define NS(i, n) IT(i, "consumed samples: " #n " |")
#define START "[before the start of training step] datetime: 2022-03-03 20:00:00 \n"
#define LATER "[before the start of training step] datetime: 2022-03-03 20:10:00 \n"

static const struct log_case {
    const char *name, *log, *want;
} logs[] = {
    { "nothing", "hello\n", "undated | | stretches" },
    { "times are sums of durations", NS(1, 4) NS(2, 8) NS(3, 12), "undated | 1@5n4 2@10n8 3@15n12 | stretches 0" },
    { "a start has a date", START NS(1, 4) NS(2, 8), "dated | 1@5n4 2@10n8 | stretches 0 | start 1@0n4 start" },
    { "lines of every tenth iteration", NS(10, 40) NS(20, 80), "undated | 10@50n40 20@100n80 | stretches 0" },
    { "the first line of a start counts as many iterations as usual", NS(10, 40) NS(20, 80) START NS(30, 120),
      "undated | 10@50n40 20@100n80 30@105n120 | stretches 0 2 | start 30@105n120 start" },
    { "a restart repeats iterations", START NS(1, 4) NS(2, 8) NS(3, 12) LATER NS(2, 8) NS(3, 12) NS(4, 16),
      "dated repeated 2 | 1@5n4 2@10n8 3@15n12 2@605n8 3@610n12 4@615n16 | stretches 0 3"
      " | start 1@0n4 start | start 2@600n8 start" },
    { "the world size names the start", "using world size: 8, data-parallel-size: 2\n" START NS(1, 4),
      "dated | 1@5n4 | stretches 0 | start 1@0n4 using world size: 8, data-parallel-size: 2" },
    { "a stop belongs to the iteration before it",
      START NS(1, 4) "[exiting program after 3.5 minutes] datetime: 2022-03-03 20:03:30 \n",
      "dated | 1@5n4 | stretches 0 | start 1@0n4 start | stop 1@210n4 exiting program after 3.5 minutes" },
    { "a kill switch", NS(1, 4) "[Detected kill switch at /k. Exiting] datetime: 2022-03-03 20:03:30 \n",
      "undated | 1@5n4 | stretches 0 | stop 1@5n4 Detected kill switch at /k. Exiting" },
    { "a save belongs to its iteration",
      NS(1, 4) NS(2, 8) "  successfully saved checkpoint at iteration       1 to ckpt\n" NS(3, 12),
      "undated | 1@5n4 2@10n8 3@15n12 | stretches 0 | save 1@5n4" },
    { "torchrun's prefix", "[default7]:" NS(1, 4) "[default7]:" NS(2, 8), "undated | 1@5n4 2@10n8 | stretches 0" },
    { "a last line without newline is not complete", NS(1, 4) " iteration 2/ 60 | elapsed time per iteration (s): 5",
      "undated | 1@5n4 | stretches 0" },
    { "a line without duration is of another program", " iteration 1/ 60 | loss: 3 |\n" NS(2, 8),
      "undated | 2@5n8 | stretches 0" },
    { "samples per second follow from batch size and duration", IT(1, "global batch size: 10 | lm loss: 2.5 |"),
      "undated | 1@5l2.5s2 | stretches 0" },
    { "samples per second as logged", IT(1, "global batch size: 10 | samples per second: 3.0 |"),
      "undated | 1@5s3 | stretches 0" },
    { "a loss that is not a number", IT(1, "lm loss: nan |") IT(2, "lm loss: 2 |"),
      "undated | 1@5 2@10l2 | stretches 0" },
    { "a field without a number", IT(1, "lm loss: ? | consumed samples: 4 |"), "undated | 1@5n4 | stretches 0" },
    { "a validation loss has the position of its iteration",
      NS(1, 4) NS(2, 8) "English loss at iteration 2 | lm loss value: 2.25E+00 | lm loss PPL: 9 | \n" NS(3, 12),
      "undated | 1@5n4 2@10n8 3@15n12 | stretches 0 | English 2@10n8l2.25" },
    { "a validation loss between two lines", NS(10, 40) NS(20, 80)
      " de loss at iteration 15 | lm loss value: 1 | \n", "undated | 10@50n40 20@100n80 | stretches 0 | de 15@50n40l1" },
    { "a slow rank", NS(1, 4) "[straggler] iteration 1 | slowest rank: 3 (host n7, stage 1) | host: n7 | compute (s): 4.5"
      " | above its stage's median: 12.5 % |\n",
      "undated | 1@5n4 | stretches 0 | slow rank 3 of n7 at 1@5: 4.5 s, 12.5 %" },
};

static void test_logs(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
        struct past *p = past_new("run");
        char *path = put("log", logs[i].log);
        struct err e = {0};

        must(past_read(p, path, &e), &e);
        expect_history(logs[i].name, p, logs[i].want);
        past_free(p);
        free(path);
    }
}

/* Two logs without dates: the second is shifted to the end of the first, whatever the times in it. */
static void test_logs_in_any_order(void **state)
{
    struct past *p = past_new("run");
    char *one = put("one", START NS(1, 4) NS(2, 8)), *two = put("two", NS(3, 12) NS(4, 16));
    struct err e = {0};

    (void)state;
    must(past_read(p, two, &e), &e);
    must(past_read(p, one, &e), &e);
    assert_true(past_resolve(p));
    assert_false(p->dated);
    for (int i = 1; i < p->n; i++)
        assert_true(p->point[i].at_s >= p->point[i - 1].at_s && p->point[i].at_s < 100);
    past_free(p);
    free(one);
    free(two);
}

/* ---- events ---- */

/* Where an event is placed: by its iteration, else by its time, else after the points read before it. */
static const struct place_case {
    const char *name;
    enum past_kind kind;
    int64_t iteration;
    double at_s;                /* seconds after the date of START; negative: unknown */
    const char *want;
} places[] = {
    { "by iteration", PAST_SAVE, 2, 100, "save 2@100n8" },
    { "by iteration, without a time", PAST_SAVE, 2, -1, "save 2@10n8" },
    { "an iteration between two points is at the lower one", PAST_SAVE, 4, -1, "save 4@15n12" },
    { "by time", PAST_INCIDENT, -1, 12, "incident 2@12n8" },
    { "a time before the first point", PAST_INCIDENT, -1, 1, "incident 0@1n0" },
    { "neither", PAST_BACKUP, -1, -1, "backup 5@25n20" },
};

static void test_places(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct past *p = past_new("run");
        char *path = put("log", START NS(1, 4) NS(2, 8) NS(3, 12) NS(5, 20)), *want;
        struct err e = {0};

        must(past_read_log(p, path, &e), &e);
        past_add_event(p, places[i].kind, places[i].iteration,
                       places[i].at_s < 0 ? (double)NAN : 1646337600 + places[i].at_s, "");
        want = str_fmt("dated | 1@5n4 2@10n8 3@15n12 5@25n20 | stretches 0 | start 1@0n4 start | %s", places[i].want);
        expect_history(places[i].name, p, want);
        past_free(p);
        free(want);
        free(path);
    }
}

/* ---- a run's folder ---- */

static void test_folder(void **state)
{
    struct past *p = past_new("run");
    char *log = put("log", START NS(1, 4) NS(2, 8) "  successfully saved checkpoint at iteration 2 to run\n" NS(3, 12)
                    "  successfully saved checkpoint at iteration 3 to run\n");
    char *run = path_join(scratch, "run"), *path;
    struct err e = {0};

    (void)state;
    free(put("run/status.json", "{\"train_iters\": 60}"));
    free(put("run/reports/a/report.json", "{\"cause\": \"hang\", \"message\": \"rank 3\", \"iteration\": 2}"));
    free(put("run/reports/a/rank00003.txt", "stacks"));
    free(put("run/global_step2/x", ""));
    free(put("run/global_step2.part/x", ""));
    free(put("run/global_stepx/x", ""));
    path = path_join(scratch, "run/global_step2");
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){ { .tv_sec = 1646337611 },
                                                                    { .tv_sec = 1646337611 } }, 0), 0);
    must(past_read(p, log, &e), &e);
    must(past_read(p, run, &e), &e);
    assert_int_equal(p->train_iters, 60);
    /* The save of iteration 2 is in the log and in the folder, that of iteration 3 only in the log. */
    expect_history("folder", p, "dated | 1@5n4 2@10n8 3@15n12 | stretches 0 | start 1@0n4 start"
                   " | save 2@10n8 kept | save 3@15n12 | incident 2@10n8 hang: rank 3");
    past_free(p);

    /* What is damaged is reported, and the rest is read. */
    p = past_new("run");
    free(put("run/status.json", "{"));
    assert_int_equal(past_read(p, run, &e), -1);
    assert_non_null(strstr(e.msg, "status.json"));
    assert_int_equal(p->n_events, 2);
    past_free(p);
    free(path);
    free(run);
    free(log);
}

/* ---- event files ---- */

static void test_events(void **state)
{
    static const struct { const char *tag; double value; int64_t step; } values[] = {
        { "iteration-time/world_size", 8, 0 },
        { "lm-loss-training/lm loss", 3, 1 }, { "steps-vs-samples/y=steps,x=samples", 1, 4 },
        { "lm-loss-training/lm loss", 2, 2 }, { "steps-vs-samples/y=steps,x=samples", 2, 8 },
        { "lm-loss-validation/de/lm loss validation", 2.5, 2 }, { "lm-loss-validation/", 7, 2 }, { "other", 1, 3 },
    };
    char *dir = path_join(scratch, "events");
    struct past *p = past_new("run");
    struct err e = {0};
    struct tfevents *t = tfevents_open(dir, 1, 100, &e);

    (void)state;
    assert_non_null(t);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        tfevents_scalar(t, values[i].tag, values[i].value, values[i].step);
    must(tfevents_close(t, &e), &e);
    must(past_read(p, dir, &e), &e);
    assert_true(past_resolve(p));
    assert_true(p->dated);
    assert_int_equal(p->n, 2);
    assert_true(p->point[0].first && p->point[0].samples == 4 && p->point[0].v[PAST_LOSS] == 3);
    assert_true(!p->point[1].first && p->point[1].samples == 8 && p->point[1].v[PAST_LOSS] == 2);
    assert_int_equal(p->n_events, 1);
    assert_string_equal(p->event[0].text, "world size 8");
    assert_int_equal(p->n_sets, 1);
    assert_string_equal(p->set[0].name, "de");
    assert_true(p->set[0].p[0].loss == 2.5 && p->set[0].p[0].samples == 8);
    past_free(p);
    free(dir);
}

static void test_unreadable(void **state)
{
    struct past *p = past_new("run");
    struct err e = {0};

    (void)state;
    assert_int_equal(past_read(p, "/nonexistent/log", &e), -1);
    assert_int_equal(e.kind, ERR_SYS);
    assert_false(past_resolve(p));
    past_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logs),   cmocka_unit_test(test_logs_in_any_order), cmocka_unit_test(test_places),
        cmocka_unit_test(test_folder), cmocka_unit_test(test_events),            cmocka_unit_test(test_unreadable),
    };
    struct err e = {0};
    int rc;

    setenv("TZ", "UTC", 1);
    if (!mkdtemp(scratch))
        return 1;
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    return dir_remove(scratch, &e) < 0 ? 1 : rc;
}
