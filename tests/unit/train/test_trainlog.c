/* test_trainlog.c - log lines compared with the reference's character for character; their destinations;
 * status.json */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "tools/train/log/status.h"
#include "tools/train/log/trainlog.h"
#include "tools/train/options/pytext.h"

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    setenv("TZ", "UTC", 1);
    snprintf(dir, sizeof dir, "%s/trainlog-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

/* What sb holds is `want`; then it is empty. */
static void is(struct strbuf *sb, const char *want)
{
    assert_string_equal(sb->buf, want);
    strbuf_free(sb);
}

/* ---- training and validation lines ---- */

/* Returns the number after a field's name. */
static double field(const char *line, const char *name)
{
    const char *at = strstr(line, name);

    if (!at)
        fail_msg("no '%s' in %s", name, line);
    return atof(at + strlen(name));
}

static void check_step_line(const char *line)
{
    struct trainlog_step s = {
        .iteration = (int64_t)field(line, " iteration "), .train_iters = (int64_t)field(line, "/"),
        .samples = (int64_t)field(line, "consumed samples:"), .tokens = (int64_t)field(line, "consumed tokens:"),
        .elapsed_s = field(line, "(s):"), .lr = field(line, "learning rate:"),
        .batch = (int64_t)field(line, "global batch size:"), .mean_loss = field(line, "lm loss:"),
        .grad_norm = field(line, "grad norm:"), .params_norm = -1, .tflops = field(line, "TFLOPs:"),
    };
    double rate = field(line, "samples per second:");
    struct strbuf sb = {0};

    /* The elapsed time is printed with two digits; what it was can be had from the rate. */
    s.elapsed_s = (double)s.batch / rate;
    trainlog_add_step(&sb, &s);
    /* All of the reference's characters; of rates below 1, which it prints as steps of 0.01, ours has more digits. */
    assert_true(s.tflops < 1);
    assert_memory_equal(sb.buf, line, (size_t)(strstr(line, "TFLOPs:") - line) + strlen("TFLOPs: 0.00"));
    assert_string_equal(strstr(sb.buf, "TFLOPs:") + strlen("TFLOPs: 0.00"), "000 |\n");
    strbuf_free(&sb);
}

static void check_valid_line(const char *line)
{
    char name[64], where[64], want[512];
    struct strbuf sb = {0};
    size_t n = strlen(line);                        /* as many dashes: the line without its newline, and one */

    sscanf(line, "%63s", name);
    sscanf(strstr(line, " at ") + 4, "%63[^|]", where);
    where[strlen(where) - 1] = '\0';
    trainlog_add_valid(&sb, name, where, field(line, "value:"));
    memset(want, '-', n);
    snprintf(want + n, sizeof want - n, "\n%s", line);
    assert_memory_equal(sb.buf, want, n + 1);
    /* The perplexity was computed from the loss before it was rounded: its last digits may differ. */
    assert_memory_equal(sb.buf + n + 1, line, (size_t)(strstr(line, "PPL:") - line) + 4 + 6);
    assert_int_equal(strlen(sb.buf), 3 * n + 2);
    strbuf_free(&sb);
}

static void check_save_line(const char *line)
{
    struct strbuf sb = {0};

    if (*line == ' ')
        trainlog_add_saved(&sb, (int64_t)field(line, "iteration"), "ckpt");
    else
        trainlog_add_saving(&sb, (int64_t)field(line, "iteration"), "ckpt");
    is(&sb, line);
}

static void test_golden(void **state)
{
    static const char *const logs[] = { "tests/data/logs/bloom-tp2pp2dp2.log", "tests/data/logs/gpt2-tp2pp2dp1.log" };
    int steps = 0, valids = 0, saves = 0;
    char line[1024];

    (void)state;
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(logs[i], "r");

        assert_non_null(f);
        while (fgets(line, sizeof line, f)) {
            if (strstr(line, "consumed samples"))
                check_step_line(line), steps++;
            else if (strstr(line, " loss at "))
                check_valid_line(line), valids++;
            else if (strstr(line, "checkpoint"))
                check_save_line(line), saves++;
        }
        fclose(f);
    }
    assert_true(steps == 50 && valids == 5 && saves == 10);
}

/* A line that the 176B run printed, all its numbers known. */
static void test_step(void **state)
{
    static const char want[] =
        " iteration    12695/  115311 | consumed samples:      9841584 | consumed tokens:  20155564032 | elapsed time per "
        "iteration (s): 105.22 | learning rate: 5.969E-05 | global batch size:  2048 | lm loss: 2.463556E+00 | grad norm: "
        "0.174 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: "
        "19.463 | TFLOPs: 149.02 |\n";
    struct trainlog_step s = {
        .iteration = 12695, .train_iters = 115311, .samples = 9841584, .tokens = 20155564032, .elapsed_s = 105.223,
        .lr = 5.968929240863751e-05, .batch = 2048, .mean_loss = 2.463556, .grad_norm = 0.174, .params_norm = -1,
        .tflops = 149.0228,
    };
    struct strbuf sb = {0};

    (void)state;
    trainlog_add_step(&sb, &s);
    is(&sb, want);
    s.mean_loss = NAN;
    s.grad_norm = -NAN;
    s.params_norm = 12.5;
    trainlog_add_step(&sb, &s);
    assert_null(strstr(sb.buf, "lm loss"));
    assert_non_null(strstr(sb.buf, "| grad norm: nan | num zeros: 0.0 | params norm: 12.500 | number"));
    strbuf_free(&sb);
}

static void test_mean(void **state)
{
    struct trainlog_mean m = {0};

    (void)state;
    assert_true(trainlog_mean_consume(&m) == 0);
    trainlog_mean_add(&m, 16777216.0);
    trainlog_mean_add(&m, 1.0);                     /* lost: the sum is fp32 */
    assert_true(trainlog_mean_consume(&m) == 8388608.0);
    trainlog_mean_add(&m, 2.5);
    assert_true(trainlog_mean_consume(&m) == 2.5);
}

static void test_valid(void **state)
{
    struct strbuf sb = {0};

    (void)state;
    trainlog_add_valid(&sb, "valid", "iteration 94000", 2.327091);
    assert_int_equal(strcspn(sb.buf, "\n"), 91);
    assert_non_null(strstr(sb.buf, "-\nvalid loss at iteration 94000 | lm loss value: 2.327091E+00 | "
                           "lm loss PPL: 1.024809E+01 | \n--"));
    sb.len = 0;
    trainlog_add_valid(&sb, "test", "the end of training for test data", 25);
    assert_non_null(strstr(sb.buf, "lm loss PPL: 4.851652E+08 | \n"));
    sb.len = 0;
    trainlog_add_valid(&sb, "valid", "iteration 1", NAN);
    assert_non_null(strstr(sb.buf, "lm loss value: NAN | lm loss PPL: NAN | \n"));
    strbuf_free(&sb);
}

/* ---- the other lines ---- */

static void test_lines(void **state)
{
    static const struct trainlog_timer timers[] = { { "save-checkpoint", 40123.456 }, { "batch-generator", 0.004 } };
    struct strbuf sb = {0};
    time_t when = 1646337600;                       /* 2022-03-03 20:00:00 UTC */

    (void)state;
    trainlog_add_datetime(&sb, TRAINLOG_BEFORE_STEP, when);
    is(&sb, "[before the start of training step] datetime: 2022-03-03 20:00:00 \n");
    trainlog_add_exit_duration(&sb, 1190.0357275923093, when);
    is(&sb, "[exiting program after 1190.0357275923093 minutes] datetime: 2022-03-03 20:00:00 \n");
    trainlog_add_exit_iteration(&sb, 30, when);
    is(&sb, "[exiting program at iteration 30] datetime: 2022-03-03 20:00:00 \n");
    trainlog_add_kill_switch(&sb, "/a/kill", when);
    is(&sb, "[Detected kill switch at /a/kill. Exiting] datetime: 2022-03-03 20:00:00 \n");
    trainlog_add_exit_signal(&sb, SIGTERM, when);
    is(&sb, "[exiting program on SIGTERM] datetime: 2022-03-03 20:00:00 \n");
    trainlog_add_saving(&sb, 20, "ckpt");
    trainlog_add_saved(&sb, 20, "ckpt");
    trainlog_add_timers(&sb, timers, 2);
    trainlog_add_timers(&sb, timers, 0);
    is(&sb, "saving checkpoint at iteration      20 to ckpt\n"
            "  successfully saved checkpoint at iteration      20 to ckpt\n"
            "time (ms) | save-checkpoint: 40123.46 | batch-generator: 0.00\n");
    trainlog_add_save_times(&sb, &(struct trainlog_save){ 0.0042, 28.9, 57100000000, 21, 1.3344, 1.331 });
    trainlog_add_save_times(&sb, &(struct trainlog_save){ 0.001, 0.5, 1500000, 1, 0.25, 0 });
    trainlog_add_save_times(&sb, &(struct trainlog_save){ 0.001, 0.5, 1500000, 0, 0, 0.25 });
    is(&sb, "  checkpoint: stall 0.004 s, 57.1 GB in 28.90 s (1.98 GB/s), 21 iterations at the same time, of 1.334 s, 1.331 s "
            "alone\n"
            "  checkpoint: stall 0.001 s, 1.5 MB in 0.50 s (0.00 GB/s), 1 iteration at the same time, of 0.250 s\n"
            "  checkpoint: stall 0.001 s, 1.5 MB in 0.50 s (0.00 GB/s)\n");
    trainlog_add_checkpoint_version(&sb);
    trainlog_add_loaded(&sb, 20, "ckpt");
    is(&sb, " checkpoint version 3.0\n  successfully loaded checkpoint from ckpt at iteration 20\n");
    trainlog_add_load_times(&sb, &(struct trainlog_load){ 32, 57100000000, 1700000000, 1900000000, 28.9 });
    trainlog_add_load_times(&sb, &(struct trainlog_load){ 1, 1500000, 1500000, 1500000, 0.5 });
    is(&sb, "  checkpoint: 57.1 GB in 28.90 s (1.98 GB/s), 1.7 GB to 1.9 GB on each of 32 ranks\n"
            "  checkpoint: 1.5 MB in 0.50 s (0.00 GB/s)\n");
    trainlog_add_iterations(&sb, 115311);
    trainlog_add_world(&sb, 384, 8, 4, 12);
    is(&sb, "setting training iterations to 115311\n"
            "using world size: 384, data-parallel-size: 8, tensor-model-parallel size: 4, "
            "pipeline-model-parallel size: 12 \n");
    trainlog_add_steps(&sb, 10, 5.93847, 0.2365, 33.8278);
    is(&sb, "steps: 10 loss: 5.9385 iter time (s): 0.236 samples/sec: 33.828\n");
}

/* Two stages by design unequal: the rank that is slow within its own is named. */
static void test_straggler(void **state)
{
    struct trainlog_rank r[] = {
        { .rank = 0, .pp = 0, .host = "r1i0n0", .compute_s = 1.0, .wait_s = 1.0 },
        { .rank = 1, .pp = 0, .host = "r1i0n0", .compute_s = 1.2, .wait_s = 0.8 },
        { .rank = 2, .pp = 0, .host = "r1i0n1", .compute_s = 1.0, .wait_s = 1.0 },
        { .rank = 3, .pp = 1, .host = "r1i0n1", .compute_s = 2.0, .wait_s = 0.0 },
        { .rank = 4, .pp = 1, .host = "r1i0n2", .compute_s = 2.0, .wait_s = 0.0 },
        { .rank = 5, .pp = 1, .host = "r1i0n2", .compute_s = 1.9, .wait_s = 0.1 },
    };
    struct strbuf sb = {0};

    (void)state;
    trainlog_add_straggler(&sb, 200, r, 6);
    is(&sb, "[straggler] iteration      200 | slowest rank: 1 | host: r1i0n0 | stage: 0 | compute (s): 1.200 | share of "
            "time: 60.0% | above its stage's median: 20.0% |\n");
    r[1].pp = 2;                                    /* alone there */
    r[4].compute_s = 2.01;
    trainlog_add_straggler(&sb, 1, r, 6);
    assert_non_null(strstr(sb.buf, "slowest rank: 4 | host: r1i0n2 | stage: 1 "));
    sb.len = 0;
    trainlog_add_straggler(&sb, 1, r, 1);
    assert_non_null(strstr(sb.buf, "slowest rank: 0 "));
    strbuf_free(&sb);
}

static void test_python_floats(void **state)
{
    static const struct { double x; const char *want; } t[] = {
        { 0, "0.0" }, { -0.0, "-0.0" }, { 1, "1.0" }, { -2.5, "-2.5" }, { 6e-5, "6e-05" }, { 0.0001, "0.0001" },
        { 0.00012345, "0.00012345" }, { 1.25e-7, "1.25e-07" }, { 183105, "183105.0" }, { 1e15, "1000000000000000.0" },
        { 1e16, "1e+16" }, { 1.5e300, "1.5e+300" }, { 123456.789, "123456.789" }, { 0.1, "0.1" },
        { 1190.0357275923093, "1190.0357275923093" }, { 5e-324, "5e-324" }, { 1.7976931348623157e308, "1.7976931348623157e+308" },
        { INFINITY, "inf" }, { -INFINITY, "-inf" }, { NAN, "nan" }, { 0.3, "0.3" }, { 0.1 + 0.2, "0.30000000000000004" },
        { 9007199254740993.0, "9007199254740992.0" }, { 100, "100.0" }, { 0.05, "0.05" },
    };
    char got[PYTEXT_FLOAT];

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        assert_string_equal(pytext_float(got, t[i].x), t[i].want);
}

/* ---- where they go ---- */

static char *content(const char *path)
{
    struct err e = {0};
    uint64_t size;
    char *s = file_slurp(path, 1 << 20, &size, &e);

    if (!s)
        fail_msg("%s", e.msg);
    return s;
}

static void test_sink(void **state)
{
    char *path = path_join(dir, "main_log.txt"), *text;
    struct strbuf sb = {0};
    struct err e = {0};
    struct trainlog *t;
    FILE *f = fopen(path, "w");

    (void)state;
    fputs("old line\n iteration      7", f);       /* killed here */
    fclose(f);
    t = trainlog_open(path, false, &e);
    assert_non_null(t);
    trainlog_write(t, "one\ntwo\n");
    strbuf_addf(&sb, "three\n");
    trainlog_flush(t, &sb);
    trainlog_flush(t, &sb);
    assert_int_equal(sb.len, 0);
    trainlog_close(t);
    text = content(path);
    assert_string_equal(text, "old line\n iteration      7\none\ntwo\nthree\n");
    free(text);
    strbuf_free(&sb);
    t = trainlog_open("/nowhere/x", false, &e);
    assert_null(t);
    assert_string_equal(e.msg, "/nowhere/x: cannot open the log: No such file or directory");
    trainlog_close(NULL);
    free(path);
}

/* A disk that is full does not stop the run: one warning, every lost line counted. */
static void test_full_sink(void **state)
{
    char *path = path_join(dir, "stderr"), *text;
    struct err e = {0};
    struct trainlog *t;
    int saved = dup(STDERR_FILENO), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);

    (void)state;
    if (access("/dev/full", W_OK) != 0)
        skip();
    dup2(fd, STDERR_FILENO);
    t = trainlog_open("/dev/full", false, &e);
    if (t)
        trainlog_write(t, "a\nb\n");
    trainlog_close(t);
    dup2(saved, STDERR_FILENO);
    text = content(path);
    assert_string_equal(text, "train: warning: /dev/full: cannot write the log: No space left on device; training "
                        "continues\ntrain: warning: 2 lines of the log were lost\n");
    free(text);
    free(path);
    close(fd);
    close(saved);
}

/* ---- status ---- */

static json_t *load(const char *path)
{
    char *text = content(path);
    json_t *o = json_loads(text, 0, NULL);

    assert_non_null(o);
    assert_int_equal(strcspn(text, "\n"), strlen(text) - 1);
    free(text);
    return o;
}

/* The main thread logs its progress while the monitor's thread writes the end: neither blocks the other. */
static void *write_running(void *path)
{
    struct status s = { .phase = "train", .loss = NAN };
    struct err e = {0};

    for (int i = 0; i < 300; i++)
        if (status_write(path, &s, &e) < 0)
            return "the main thread's";
    return NULL;
}

static void test_status_two_writers(void **state)
{
    char *path = path_join(dir, "two.json");
    struct status s = { .phase = "stop", .loss = NAN, .reason = STATUS_FAILED };
    struct err e = {0};
    pthread_t main_thread;
    void *failed;
    json_t *o;

    (void)state;
    assert_int_equal(pthread_create(&main_thread, NULL, write_running, path), 0);
    usleep(1000);
    assert_int_equal(status_end(path, &s, &e), 0);
    pthread_join(main_thread, &failed);
    assert_null(failed);
    /* Only the first end is written, and nothing after it. */
    s.reason = STATUS_SIGNAL;
    assert_int_equal(status_end(path, &s, &e), 1);
    assert_int_equal(status_write(path, &s, &e), 0);
    o = load(path);
    assert_string_equal(json_string_value(json_object_get(o, "stop_reason")), "failed");
    json_decref(o);
    assert_int_equal(status_sync(path, &e), 0);
    free(path);
}

static void test_status(void **state)
{
    char *path = path_join(dir, "status.json");
    struct status s = { .phase = "train", .iteration = 20, .train_iters = 83, .consumed_samples = 180,
                        .consumed_tokens = -1, .loss = NAN, .lr = 2e-3, .iteration_s = -1, .world_size = 8 };
    struct err e = {0};
    json_t *o;

    (void)state;
    setenv("SLURM_JOB_ID", "4711", 1);
    assert_int_equal(status_write(path, &s, &e), 0);
    o = load(path);
    assert_int_equal(json_integer_value(json_object_get(o, "iteration")), 20);
    assert_int_equal(json_integer_value(json_object_get(o, "pid")), getpid());
    assert_true(json_real_value(json_object_get(o, "learning_rate")) == 2e-3);
    assert_string_equal(json_string_value(json_object_get(o, "job_id")), "4711");
    assert_string_equal(json_string_value(json_object_get(o, "host")), status_host());
    assert_string_equal(json_string_value(json_object_get(o, "phase")), "train");
    assert_true(json_is_null(json_object_get(o, "loss")) && json_is_null(json_object_get(o, "consumed_tokens")));
    assert_true(json_is_null(json_object_get(o, "stop_reason")) && json_is_null(json_object_get(o, "last_complete_tag")));
    assert_true(json_is_null(json_object_get(o, "signal")));
    json_decref(o);
    unsetenv("SLURM_JOB_ID");
    s.reason = STATUS_SIGNAL;
    s.signal = SIGUSR1;
    s.last_complete_tag = "global_step20";
    s.message = "bad \xff bytes";
    assert_int_equal(status_write(path, &s, &e), 0);
    o = load(path);
    assert_string_equal(json_string_value(json_object_get(o, "stop_reason")), "signal");
    assert_string_equal(json_string_value(json_object_get(o, "signal")), "SIGUSR1");
    assert_string_equal(json_string_value(json_object_get(o, "last_complete_tag")), "global_step20");
    assert_true(json_is_null(json_object_get(o, "job_id")));
    json_decref(o);
    assert_string_equal(status_reason_name(STATUS_KILL_SWITCH), "kill-switch");
    assert_int_equal(status_write("/nowhere/status.json", &s, &e), -1);
    free(path);
}

static volatile sig_atomic_t dumped;

static void note_dump(int sig)
{
    dumped = sig;
}

static void test_signals(void **state)
{
    char *path = path_join(dir, "kill");

    (void)state;
    status_catch_signals(note_dump);
    assert_int_equal(status_stop_signal(), 0);
    raise(SIGUSR2);
    assert_int_equal(dumped, SIGUSR2);
    raise(SIGUSR1);
    raise(SIGTERM);
    raise(SIGTERM);
    assert_int_equal(status_stop_signal(), SIGUSR1);
    assert_false(status_kill_switch(NULL));
    assert_false(status_kill_switch(path));
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_true(status_kill_switch(path));
    free(path);
}

static void test_clock(void **state)
{
    double start = status_process_start(), now = clock_wall_s(), minutes;

    (void)state;
    assert_true(start <= now && now - start < 600);
    assert_true(start == status_process_start());
    assert_false(status_duration_over(1000, 1000 + 600, 10, &minutes));
    assert_true(status_duration_over(1000, 1000 + 601, 10, &minutes));
    assert_true(minutes == 601 / 60.0);
    assert_false(status_duration_over(1000, 1e9, 0, &minutes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden), cmocka_unit_test(test_step), cmocka_unit_test(test_mean),
        cmocka_unit_test(test_valid), cmocka_unit_test(test_lines), cmocka_unit_test(test_straggler),
        cmocka_unit_test(test_python_floats), cmocka_unit_test(test_sink), cmocka_unit_test(test_full_sink),
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_status_two_writers), cmocka_unit_test(test_signals), cmocka_unit_test(test_clock),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
