/* test_tfevents.c - event files, read back by a separate reader: framing, checksums, messages, tags */
#include <setjmp.h>
#include <stdarg.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/format/tfevents.h"
#include "tools/train/log/trainlog.h"

static char dir[256];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "%s/tfevents-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(dir, &e);
}

/* ---- a reader ---- */

/* CRC-32C bit by bit, as its definition has it. */
static uint32_t slow_crc32c(const unsigned char *p, size_t n)
{
    uint32_t crc = ~0u;

    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    return ~crc;
}

static uint32_t unmask(uint32_t masked)
{
    uint32_t rotated = masked - 0xa282ead8u;

    return (rotated >> 17) | (rotated << 15);
}

struct event {
    double wall;
    int64_t step;
    char version[32], tag[256], plugin[32], text[512];
    float value;
    bool has_value, has_step;
};

struct bytes {
    const unsigned char *p;
    size_t n;
};

static uint64_t varint(struct bytes *b)
{
    uint64_t v = 0;

    for (int shift = 0;; shift += 7) {
        assert_true(b->n > 0 && shift < 64);
        v |= (uint64_t)(*b->p & 0x7f) << shift;
        b->n--;
        if (!(*b->p++ & 0x80))
            return v;
    }
}

/* One field: its number; *v for varints and fixed ones, *sub for bytes. */
static int next_field(struct bytes *b, uint64_t *v, struct bytes *sub)
{
    uint64_t key = varint(b);
    size_t n = 0;

    *v = 0;
    *sub = (struct bytes){0};
    switch (key & 7) {
    case 0: *v = varint(b); break;
    case 1: n = 8; *v = get_le64(b->p); break;
    case 5: n = 4; *v = get_le32(b->p); break;
    case 2:
        n = varint(b);
        *sub = (struct bytes){ b->p, n };
        break;
    default: fail_msg("wire type %d", (int)(key & 7));
    }
    assert_true(n <= b->n);
    b->p += n;
    b->n -= n;
    return (int)(key >> 3);
}

static void copy_text(char *out, size_t size, struct bytes b)
{
    assert_true(b.n < size);
    memcpy(out, b.p, b.n);
    out[b.n] = '\0';
}

static void read_tensor(struct bytes b, struct event *e)
{
    struct bytes sub;
    uint64_t v;

    while (b.n) {
        int f = next_field(&b, &v, &sub);

        if (f == 1)
            assert_int_equal(v, 7);                 /* DT_STRING */
        else if (f == 8)
            copy_text(e->text, sizeof e->text, sub);
        else
            assert_int_equal(f, 2);
    }
}

static void read_value(struct bytes b, struct event *e)
{
    struct bytes sub, in;
    uint64_t v;
    uint32_t bits;

    while (b.n)
        switch (next_field(&b, &v, &sub)) {
        case 1: copy_text(e->tag, sizeof e->tag, sub); break;
        case 2:
            bits = (uint32_t)v;
            memcpy(&e->value, &bits, 4);
            e->has_value = true;
            break;
        case 8: read_tensor(sub, e); break;
        case 9:
            assert_int_equal(next_field(&sub, &v, &in), 1);
            assert_int_equal(next_field(&in, &v, &sub), 1);
            copy_text(e->plugin, sizeof e->plugin, sub);
            break;
        default: fail_msg("a field of Summary.Value that nobody writes");
        }
}

static void read_event(struct bytes b, struct event *e)
{
    struct bytes sub, value;
    uint64_t v;

    memset(e, 0, sizeof *e);
    while (b.n)
        switch (next_field(&b, &v, &sub)) {
        case 1: memcpy(&e->wall, &v, 8); break;
        case 2: e->step = (int64_t)v; e->has_step = true; break;
        case 3: copy_text(e->version, sizeof e->version, sub); break;
        case 5:
            assert_int_equal(next_field(&sub, &v, &value), 1);
            assert_int_equal(sub.n, 0);
            read_value(value, e);
            break;
        default: fail_msg("a field of Event that nobody writes");
        }
}

/* All events of a file; every checksum is looked at. */
static int read_file(const char *path, struct event *out, int max)
{
    struct err e = {0};
    uint64_t size;
    unsigned char *file = (unsigned char *)file_slurp(path, 1 << 24, &size, &e), *p = file;
    int n = 0;

    assert_non_null(file);
    while (size) {
        uint64_t len;

        assert_true(size >= 16);
        len = get_le64(p);
        assert_true(len <= size - 16);
        assert_int_equal(unmask(get_le32(p + 8)), slow_crc32c(p, 8));
        assert_int_equal(unmask(get_le32(p + 12 + len)), slow_crc32c(p + 12, len));
        assert_true(n < max);
        read_event((struct bytes){ p + 12, len }, &out[n++]);
        p += 16 + len;
        size -= 16 + len;
    }
    free(file);
    return n;
}

static struct event events[2048];

static struct tfevents *open_waiting(const char *sub, int64_t queue, double wait_s)
{
    char *path = path_join(dir, sub);
    struct err e = {0};
    struct tfevents *t = tfevents_open(path, queue, wait_s, &e);

    if (!t)
        fail_msg("%s", e.msg);
    free(path);
    return t;
}

/* Read everything it wrote and close it. */
static struct tfevents *open_in(const char *sub, int64_t queue) { return open_waiting(sub, queue, 1e9); }

static int finish(struct tfevents *t)
{
    char *path = xstrdup(tfevents_path(t));
    struct err e = {0};
    int n;

    assert_int_equal(tfevents_close(t, &e), 0);
    n = read_file(path, events, 2048);
    free(path);
    return n;
}

/* ---- the format ---- */

static void test_crc(void **state)
{
    char zeros[32] = {0};
    unsigned char p[300];

    (void)state;
    assert_int_equal(tfevents_crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(tfevents_crc32c(zeros, 32), 0x8a9136aa);       /* RFC 3720 B.4 */
    assert_int_equal(tfevents_crc32c("", 0), 0);
    for (int i = 0; i < 300; i++)
        p[i] = (unsigned char)(i * 37);
    for (size_t n = 0; n < 300; n += 7)
        assert_int_equal(tfevents_crc32c(p + n % 5, n > 5 ? n - 5 : 0), slow_crc32c(p + n % 5, n > 5 ? n - 5 : 0));
    assert_int_equal(unmask(tfevents_mask(0x12345678)), 0x12345678);
    assert_int_equal(tfevents_mask(0), 0xa282ead8);
}

static void test_events(void **state)
{
    struct tfevents *t = open_in("a/b", 1000);
    double now = (double)time(NULL);

    (void)state;
    assert_non_null(strstr(tfevents_path(t), "/a/b/events.out.tfevents."));
    tfevents_scalar(t, "lm-loss-training/lm loss", 6.223474, 1);
    tfevents_scalar(t, "x", -0.0, 0);
    tfevents_scalar(t, "big", 1e300, (int64_t)1 << 40);
    tfevents_text(t, "data_path", "['/d/a', '/d/b']", 7);
    tfevents_scalar(t, "negative step", 1, -1);
    assert_int_equal(finish(t), 6);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_false(events[0].has_step);
    for (int i = 0; i < 6; i++)
        assert_true(events[i].wall > now - 100 && events[i].wall < now + 100);
    assert_string_equal(events[1].tag, "lm-loss-training/lm loss");
    assert_true(events[1].value == 6.223474f && events[1].step == 1);
    assert_true(events[2].has_value && events[2].has_step && events[2].step == 0);
    assert_true(events[3].step == (int64_t)1 << 40 && events[3].value > 3e38f);
    assert_string_equal(events[4].tag, "data_path/text_summary");
    assert_string_equal(events[4].plugin, "text");
    assert_string_equal(events[4].text, "['/d/a', '/d/b']");
    assert_true(events[4].step == 7 && !events[4].has_value);
    assert_int_equal(events[5].step, -1);
}

/* Lengths and steps around the edges of a varint's bytes. */
static void test_edges(void **state)
{
    static const int64_t steps[] = { 0, 1, 127, 128, 129, 16383, 16384, INT64_MAX };
    struct tfevents *t = open_in("edges", 1000);
    char tag[200];

    (void)state;
    for (int n = 120; n < 140; n++) {
        memset(tag, 'a', sizeof tag);
        tag[n] = '\0';
        tfevents_scalar(t, tag, n, steps[n % 8]);
    }
    assert_int_equal(finish(t), 21);
    for (int n = 120; n < 140; n++) {
        struct event *e = &events[n - 119];

        assert_int_equal(strlen(e->tag), n);
        assert_true(e->value == (float)n && e->step == steps[n % 8]);
    }
}

static void test_queue(void **state)
{
    struct tfevents *t = open_in("queue", 3);
    struct err e = {0};

    (void)state;
    assert_int_equal(read_file(tfevents_path(t), events, 9), 1);
    tfevents_scalar(t, "x", 1, 1);
    tfevents_scalar(t, "x", 2, 2);
    assert_int_equal(read_file(tfevents_path(t), events, 9), 1);
    tfevents_scalar(t, "x", 3, 3);
    assert_int_equal(read_file(tfevents_path(t), events, 9), 4);
    tfevents_scalar(t, "x", 4, 4);
    assert_int_equal(tfevents_flush(t, &e), 0);
    assert_int_equal(read_file(tfevents_path(t), events, 9), 5);
    assert_int_equal(finish(t), 5);
    tfevents_scalar(NULL, "x", 1, 1);
    assert_int_equal(tfevents_flush(NULL, &e), 0);
    assert_int_equal(tfevents_close(NULL, &e), 0);
}

static void test_wait(void **state)
{
    struct tfevents *t = open_waiting("wait", 1000, 1);

    (void)state;
    tfevents_scalar(t, "x", 1, 1);
    usleep(1100000);
    tfevents_scalar(t, "x", 2, 2);
    assert_int_equal(read_file(tfevents_path(t), events, 9), 3);
    tfevents_scalar(t, "x", 3, 3);
    assert_int_equal(read_file(tfevents_path(t), events, 9), 3);
    assert_int_equal(finish(t), 4);
}

/* A full disk (here: a limit on file size) loses events, is reported once, and leaves whole records only. */
static void test_full_disk(void **state)
{
    struct tfevents *t = open_in("full", 1);
    struct rlimit old, small;
    struct err e = {0};
    int before;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 300;
    setrlimit(RLIMIT_FSIZE, &small);
    for (int i = 0; i < 20; i++)
        tfevents_scalar(t, "some tag", i, i);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(tfevents_flush(t, &e), -1);
    assert_int_equal(e.kind, ERR_SYS);
    assert_non_null(strstr(e.msg, "cannot write"));
    err_clear(&e);
    assert_int_equal(tfevents_flush(t, &e), 0);
    before = read_file(tfevents_path(t), events, 30);
    assert_true(before > 1 && before < 20);
    tfevents_scalar(t, "some tag", 99, 99);
    assert_int_equal(finish(t), before + 1);
    assert_int_equal(events[before].step, 99);
}

static void test_refused(void **state)
{
    struct err e = {0};

    (void)state;
    assert_null(tfevents_open("/dev/null/x", 1, 1e9, &e));
    assert_int_equal(e.kind, ERR_SYS);
}

/* ---- the events of a training run ---- */

static int64_t step_of(int n, const char *tag, double value)
{
    for (int i = 0; i < n; i++)
        if (strcmp(events[i].tag, tag) == 0 && events[i].value == (float)value)
            return events[i].step;
    return -1;
}

static const struct trainlog_step step = {
    .iteration = 20, .train_iters = 83, .samples = 180, .tokens = 23040, .gigaflos = 27.9, .elapsed_s = 0.5, .lr = 2e-3,
    .batch = 16, .loss = 4.178708, .mean_loss = 4.2, .grad_norm = 1.612, .params_norm = -1, .tflops = 0.25,
    .seq_length = 128, .world_size = 8, .data_parallel_size = 2,
};

static void test_training(void **state)
{
    static const struct trainlog_timer timer = { "optimizer", 12.5 };
    struct tfevents *t = open_in("train", 1000);
    struct train_opts o;
    struct err e = {0};
    char *argv[] = { (char *)"train", (char *)"--log-timers-to-tensorboard", (char *)"--tensorboard-log-interval",
                     (char *)"10", (char *)"--log-batch-size-to-tensorboard", NULL };
    int n;

    (void)state;
    assert_int_equal(options_parse(&o, 5, argv, NULL, &e), 0);
    trainlog_tb_step(t, &o, &step, &timer, 1);
    trainlog_tb_interval(t, &o, &step);
    o.tensorboard_log_interval = 7;
    trainlog_tb_step(t, &o, &step, NULL, 0);        /* 20 is no multiple of 7 */
    n = finish(t);
    assert_int_equal(n, 1 + 4 + 3 + 2 + 4 + 3 + 3 + 1 + 3 + 5);
    assert_int_equal(step_of(n, "steps-vs-samples/y=steps,x=samples", 20), 180);
    assert_int_equal(step_of(n, "steps-vs-samples/y=samples,x=steps", 180), 20);
    assert_int_equal(step_of(n, "steps-vs-tokens/y=steps,x=tokens", 20), 23040);
    assert_int_equal(step_of(n, "steps-vs-tokens/y=tokens,x=steps", 23040), 20);
    assert_int_equal(step_of(n, "learning-rate/learning-rate", 2e-3), 20);
    assert_int_equal(step_of(n, "learning-rate/learning-rate vs samples", 2e-3), 180);
    assert_int_equal(step_of(n, "learning-rate/learning-rate vs tokens", 2e-3), 23040);
    assert_int_equal(step_of(n, "batch-size/batch-size vs samples", 16), 180);
    assert_int_equal(step_of(n, "lm-loss-training/lm loss", 4.178708), 20);
    assert_int_equal(step_of(n, "lm-loss-training/lm loss vs gigaflos (without embeddings)", 4.178708), 27);
    assert_int_equal(step_of(n, "grad-norm/grad-norm vs tokens", 1.612), 23040);
    assert_int_equal(step_of(n, "num-zeros/num-zeros", 0), 20);
    assert_int_equal(step_of(n, "time/optimizer-time", 0.0125), 20);
    assert_int_equal(step_of(n, "iteration-time/iteration-time vs samples", 0.5), 180);
    assert_int_equal(step_of(n, "iteration-time/samples per second", 32), 20);
    assert_int_equal(step_of(n, "iteration-time/samples per second per replica", 16), 20);
    assert_int_equal(step_of(n, "iteration-time/tokens per second", 4096), 20);
    assert_int_equal(step_of(n, "iteration-time/tokens per second per replica", 2048), 20);
    assert_int_equal(step_of(n, "iteration-time/TFLOPs per gpu (estimated)", 0.25), 20);
    options_free(&o);
}

static void test_start_and_valid(void **state)
{
    struct tfevents *t = open_in("valid", 1000);
    struct train_opts o;
    struct err e = {0};
    char *argv[] = { (char *)"train", (char *)"--log-validation-ppl-to-tensorboard", NULL };
    int n, texts = 0, shown = 0;

    (void)state;
    assert_int_equal(options_parse(&o, 2, argv, NULL, &e), 0);
    trainlog_tb_start(t, &o, 8, 20);
    trainlog_tb_valid(t, &o, &step, "valid_fr", 2);
    n = finish(t);
    for (int i = 0; i < n; i++)
        texts += *events[i].plugin != '\0';
    OPTION_EACH(&options_table, g, r)
        shown += r->dest != NULL;
    assert_int_equal(texts, shown);
    assert_int_equal(n, 1 + texts + 2 + 8);
    assert_int_equal(step_of(n, "iteration-time/world_size", 8), 20);
    assert_int_equal(step_of(n, "iteration-time/world_size", 0), 21);
    assert_int_equal(step_of(n, "lm-loss-validation/valid_fr/lm loss validation", 2), 20);
    assert_int_equal(step_of(n, "lm-loss-validation/valid_fr/lm loss validation ppl vs tokens", 7.38905609893065),
                     23040);
    options_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc), cmocka_unit_test(test_events), cmocka_unit_test(test_edges),
        cmocka_unit_test(test_queue), cmocka_unit_test(test_wait),
        cmocka_unit_test(test_full_disk), cmocka_unit_test(test_refused), cmocka_unit_test(test_training),
        cmocka_unit_test(test_start_and_valid),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
