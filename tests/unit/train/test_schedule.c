/* test_schedule.c - ramp-up, learning rate and throughput: numbers of the reference's own logs and checkpoints */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/train/options/schedule.h"

static struct schedule_ramp ramp(int64_t gbs, const char *start, const char *inc, const char *samples)
{
    char *words[] = { (char *)start, (char *)inc, (char *)samples };
    struct schedule_ramp r;
    struct err e = {0};

    if (schedule_ramp_init(&r, gbs, 3, words, &e) < 0)
        fail_msg("%s", e.msg);
    return r;
}

static void same_bits(double got, double want)
{
    if (memcmp(&got, &want, sizeof got) != 0)
        fail_msg("got %.17g, want %.17g", got, want);
}

/* ---- ramp-up ---- */

struct stretch {                        /* iterations first .. last have this batch */
    int64_t batch, first, last, consumed;
};

/* Step by step, as the loop does; then the count of iterations, which is not found that way. */
static void walk(const struct schedule_ramp *r, int64_t train_samples, const struct stretch *s, int n, int64_t total)
{
    int64_t c = 0, i = 1, got = schedule_iterations(r, train_samples);

    for (int k = 0; k < n; k++) {
        for (; i <= s[k].last; i++) {
            if (i >= s[k].first && schedule_batch(r, c) != s[k].batch)
                fail_msg("iteration %ld: batch %ld, want %ld", (long)i, (long)schedule_batch(r, c), (long)s[k].batch);
            c += schedule_batch(r, c);
        }
        if (s[k].consumed && c != s[k].consumed)
            fail_msg("after iteration %ld: %ld samples, want %ld", (long)i - 1, (long)c, (long)s[k].consumed);
    }
    if (got != total)
        fail_msg("%ld iterations, want %ld", (long)got, (long)total);
}

static void test_ramp(void **state)
{
    static const struct stretch planned[] = {
        { 16, 1, 4806, 76896 },      { 32, 4807, 7209, 153792 },   { 48, 7210, 8811, 230688 },
        { 64, 8812, 10013, 307616 }, { 80, 10014, 10974, 384496 }, { 96, 10975, 11775, 461392 },
        { 2032, 26076, 26076, 0 },   { 2048, 26077, 26100, 0 },
    };
    static const struct stretch bloom[] = {
        { 192, 1, 439, 84288 },          { 208, 440, 844, 168528 },
        { 224, 845, 1220, 252752 },      { 240, 1221, 1570, 336752 },
        { 256, 1571, 1899, 420976 },     { 768, 7572, 7572, 3115072 },
        { 784, 7573, 7573, 0 },          { 2032, 12658, 12658, 9765808 },
        { 2048, 12659, 12695, 9841584 }, { 2048, 12696, 115311, 219999152 },
    };
    static const struct stretch tr1[] = {
        { 16, 1, 4961, 79376 }, { 32, 4962, 7441, 158736 }, { 48, 7442, 9095, 238128 }, { 1008, 23456, 23456, 5000528 },
        { 1024, 23457, 29020, 10698064 }, { 1024, 29021, 33240, 15019344 }, { 1024, 33241, 43680, 25709904 },
    };
    struct schedule_ramp r = ramp(2048, "16", "16", "9_765_625");

    (void)state;
    same_bits(r.per, 76894.68503937007);
    walk(&r, 220000000, planned, 8, 128728);
    r = ramp(2048, "192", "16", "9765625");
    same_bits(r.per, 84186.4224137931);
    walk(&r, 220000000, bloom, 10, 115311);
    r = ramp(1024, "16", "16", "5_000_000");
    same_bits(r.per, 79365.07936507936);
    walk(&r, 300000000, tr1, 7, 311541);
}

static void test_no_ramp(void **state)
{
    struct schedule_ramp r = ramp(1024, "1024", "16", "5000");
    struct err e = {0};

    (void)state;
    assert_int_equal(schedule_batch(&r, 0), 1024);          /* the reference divides by zero here */
    assert_int_equal(schedule_iterations(&r, 10 * 1024 + 1023), 10);
    assert_int_equal(schedule_ramp_init(&r, 7, 0, NULL, &e), 0);
    assert_int_equal(schedule_batch(&r, 1 << 30), 7);
    assert_int_equal(schedule_iterations(&r, 20), 2);
}

/* A ramp of 10^9 iterations is counted in no time, and exactly. */
static void test_long_ramp(void **state)
{
    struct schedule_ramp r = ramp(2, "1", "1", "1000000000");

    (void)state;
    assert_int_equal(schedule_iterations(&r, 3000000000), 1000000000 + 1 + (3000000000 - 1000000002) / 2);
    assert_int_equal(schedule_batch(&r, 999999999), 1);
    assert_int_equal(schedule_batch(&r, 1000000000), 2);
}

static void refuse_ramp(int64_t gbs, int n, const char *a, const char *b, const char *c, const char *want)
{
    char *words[] = { (char *)a, (char *)b, (char *)c };
    struct schedule_ramp r;
    struct err e = {0};

    assert_int_equal(schedule_ramp_init(&r, gbs, n, words, &e), -1);
    assert_int_equal(e.kind, ERR_USAGE);
    assert_string_equal(e.msg, want);
}

static void test_ramp_refused(void **state)
{
    struct schedule_ramp r = ramp(2048, "192", "16", "9765625");
    struct err e = {0};
    int64_t m;

    (void)state;
    refuse_ramp(100, 2, "16", "16", "", "--rampup-batch-size: expected START INC SAMPLES, found 2 values");
    refuse_ramp(100, 3, "16", "x", "5", "--rampup-batch-size: INC is 'x', expected a whole number of at least 1");
    refuse_ramp(100, 3, "16", "16", "5",
                "--rampup-batch-size: beginning at 16, steps of 16 do not reach --global-batch-size 100 exactly");
    refuse_ramp(8, 3, "16", "16", "5",
                "--rampup-batch-size: beginning at 16, steps of 16 do not reach --global-batch-size 8 exactly");
    refuse_ramp(1000000000, 3, "1", "1", "5", "--rampup-batch-size: 999999999 steps, at most 1000000 supported");
    assert_int_equal(schedule_ramp_check(&r, 0, 1, 8, &e), 0);
    assert_int_equal(schedule_ramp_check(&r, 0, 2, 8, &e), 0);
    assert_int_equal(schedule_ramp_check(&r, 0, 1, 32, &e), -1);
    assert_string_equal(e.msg, "a global batch of 208 samples is not a multiple of micro-batch size 1 x data-parallel "
                        "size 32");
    /* Once the ramp is over its sizes do not matter. */
    assert_int_equal(schedule_ramp_check(&r, 9765808, 1, 32, &e), 0);
    assert_int_equal(schedule_micro_batches(192, 1, 8, &m, &e), 0);
    assert_int_equal(m, 24);
    assert_int_equal(schedule_micro_batches(784, 2, 8, &m, &e), 0);
    assert_int_equal(m, 49);
}

/* ---- learning rate ---- */

static const struct schedule_lr bloom_lr = {
    .max_lr = 6e-5, .min_lr = 6e-6, .warmup_steps = 183105, .decay_steps = 200000000, .style = DECAY_COSINE,
};

static double lr_at(struct schedule_lr lr, int64_t samples)
{
    lr.num_steps = samples;
    return schedule_lr_now(&lr);
}

/* Printed by the run itself (iteration, samples, learning rate). */
static void test_trajectory(void **state)
{
    static const struct { int64_t iteration, samples, tokens; const char *printed; double lr; } want[] = {
        { 1, 192, 393216, "6.291E-08", 6.291472106168593e-08 },
        { 12695, 9841584, 20155564032, "5.969E-05", 5.968929240863751e-05 },
        { 31214, 47768496, 97829879808, "5.279E-05", 5.278953031876092e-05 },
        { 42780, 71455664, 146341199872, "4.475E-05", 4.474950714766719e-05 },
        { 45000, 76002224, 155652554752, "4.298E-05", 4.2983277504129964e-05 },
        { 85376, 158692272, 325001773056, "1.150E-05", 1.149683313028389e-05 },
        { 94768, 177927088, 364394676224, "7.610E-06", 7.60962710125547e-06 },
        { 115311, 219999152, 450558263296, "6.000E-06", 6e-06 },
    };
    struct schedule_ramp r = ramp(2048, "192", "16", "9765625");
    struct schedule_lr lr = bloom_lr;
    int64_t iteration = 0, samples = 0;
    char printed[32];

    (void)state;
    same_bits(schedule_lr_now(&lr), 0);         /* the first update of a run */
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        for (; iteration < want[i].iteration; iteration++) {
            int64_t batch = schedule_batch(&r, samples);

            schedule_lr_step(&lr, batch, samples * 2048);
            samples += batch;
        }
        assert_int_equal(samples, want[i].samples);
        assert_int_equal(samples * 2048, want[i].tokens);
        same_bits(schedule_lr_now(&lr), want[i].lr);
        snprintf(printed, sizeof printed, "%.3E", schedule_lr_now(&lr));
        assert_string_equal(printed, want[i].printed);
    }
}

static void test_rates(void **state)
{
    char printed[32];

    (void)state;
    same_bits(lr_at(bloom_lr, 183104), 5.999967231916114e-05);
    same_bits(lr_at(bloom_lr, 183105), 6e-05);
    same_bits(lr_at(bloom_lr, 183106), 5.9999999999999995e-05);
    same_bits(lr_at(bloom_lr, 100000000), 3.303886435717357e-05);
    same_bits(lr_at(bloom_lr, 200000000), 6e-06);
    same_bits(lr_at(bloom_lr, 200000001), 6e-06);
    snprintf(printed, sizeof printed, "%.3E", lr_at(bloom_lr, 59312));
    assert_string_equal(printed, "1.944E-05");
}

static void test_styles(void **state)
{
    struct schedule_lr lr = { .max_lr = 1, .min_lr = 0.5, .warmup_steps = 10, .decay_steps = 110 };

    (void)state;
    lr.style = DECAY_CONSTANT;
    same_bits(lr_at(lr, 5), 0.5);
    same_bits(lr_at(lr, 1000), 1);
    lr.style = DECAY_LINEAR;
    same_bits(lr_at(lr, 60), 0.75);
    same_bits(lr_at(lr, 111), 0.5);
    lr.warmup_steps = 0;
    same_bits(lr_at(lr, 0), 1);
    assert_int_equal(schedule_style_of("linear"), DECAY_LINEAR);
    assert_int_equal(schedule_style_of("inverse_sqrt"), -1);
}

/* --lr-decay-tokens: samples rule warm-up only. */
static void test_decay_tokens(void **state)
{
    struct schedule_lr lr = {
        .max_lr = 1, .min_lr = 0, .warmup_steps = 8, .decay_steps = 1000, .style = DECAY_LINEAR, .decay_tokens = 1030,
    };

    (void)state;
    schedule_lr_step(&lr, 4, 0);
    same_bits(schedule_lr_now(&lr), 0.5);
    schedule_lr_step(&lr, 4, 30);
    assert_int_equal(lr.warmup_tokens, 30);
    same_bits(schedule_lr_now(&lr), 1);
    schedule_lr_step(&lr, 4, 530);
    same_bits(schedule_lr_now(&lr), 0.5);
    schedule_lr_step(&lr, 4, 1031);
    same_bits(schedule_lr_now(&lr), 0);
}

/* ---- a run of the reference, line by line ---- */

static void follow_log(const char *path, struct schedule_ramp r, int64_t total, int lines)
{
    struct schedule_lr lr = {
        .max_lr = 2e-3, .min_lr = 2e-4, .warmup_steps = 80, .decay_steps = 1500, .style = DECAY_COSINE,
    };
    char line[1024], want[512];
    int64_t i = 0, samples = 0;
    FILE *f = fopen(path, "r");

    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        const char *at = strstr(line, "learning rate:");
        int64_t batch = schedule_batch(&r, samples);

        if (!at || strncmp(line, " iteration", 10) != 0)
            continue;
        schedule_lr_step(&lr, batch, samples * 128);
        samples += batch;
        snprintf(want, sizeof want, " iteration %8ld/%8ld | consumed samples: %12ld | consumed tokens: %12ld |",
                 (long)++i, (long)schedule_iterations(&r, 1200), (long)samples, (long)samples * 128);
        assert_int_equal(schedule_iterations(&r, 1200), total);
        assert_memory_equal(line, want, strlen(want));
        snprintf(want, sizeof want, "learning rate: %.3E | global batch size: %5ld |", schedule_lr_now(&lr),
                 (long)batch);
        assert_memory_equal(at, want, strlen(want));
        /* The values in its checkpoints: tokens lag by one step. */
        if (r.inc && i == 10)
            assert_int_equal(lr.num_tokens, 5120);
        if (r.inc && i == 20)
            assert_true(lr.num_tokens == 20992 && lr.num_steps == 180);
    }
    fclose(f);
    assert_int_equal(i, lines);
}

static void test_golden_logs(void **state)
{
    struct schedule_ramp constant = { .gbs = 8, .start = 8 };

    (void)state;
    follow_log("tests/data/logs/bloom-tp2pp2dp2.log", ramp(16, "4", "4", "96"), 83, 30);
    follow_log("tests/data/logs/gpt2-tp2pp2dp1.log", constant, 150, 20);
}

/* ---- resuming ---- */

static void test_resume(void **state)
{
    struct schedule_lr lr, saved = bloom_lr;
    struct strbuf lines = {0};
    struct err e = {0};

    (void)state;
    saved.num_steps = 192;
    saved.num_tokens = 7;
    lr = bloom_lr;
    lr.decay_tokens = 3;
    assert_int_equal(schedule_lr_resume(&lr, &saved, false, false, &lines, &e), 0);
    assert_true(lr.num_steps == 192 && lr.num_tokens == 7 && lr.decay_tokens == 3);
    assert_string_equal(lines.buf, " > using checkpoint value 6e-05 for learning rate\n"
                                   " > using checkpoint value 6e-06 for minimum learning rate\n"
                                   " > using checkpoint value 183105 for warmup iterations\n"
                                   " > using checkpoint value 200000000 for total number of iterations\n"
                                   " > using checkpoint value cosine for decay style\n");

    lr = bloom_lr;
    lr.max_lr = 1e-4;
    assert_int_equal(schedule_lr_resume(&lr, &saved, false, false, &lines, &e), -1);
    assert_string_equal(e.msg, "learning rate: the options have 0.0001, the checkpoint has 6e-05; choose with "
                               "--override-lr-scheduler or --use-checkpoint-lr-scheduler");
    same_bits(lr.max_lr, 1e-4);
    assert_int_equal(schedule_lr_resume(&lr, &saved, false, true, &lines, &e), 0);
    same_bits(lr.max_lr, 6e-5);

    lr.style = DECAY_LINEAR;
    lr.num_steps = 0;
    lines.len = 0;
    assert_int_equal(schedule_lr_resume(&lr, &saved, true, false, &lines, &e), 0);
    assert_true(lr.style == DECAY_LINEAR && lr.num_steps == 192);
    assert_non_null(strstr(lines.buf, " > overriding decay style value to linear\n"));
    err_clear(&e);
    assert_int_equal(schedule_lr_resume(&lr, &saved, true, true, &lines, &e), -1);
    strbuf_free(&lines);
}

/* ---- throughput and planning ---- */

static void test_flops(void **state)
{
    static const struct { int64_t batch; double elapsed; int world; double want; } t[] = {
        { 2048, 105.22, 384, 149.0228 }, { 2048, 106.46, 384, 147.2871 }, { 2048, 111.00, 384, 141.2629 },
        { 2048, 215.82, 192, 145.3080 }, { 16, 15.23, 384, 8.0434 },
    };
    double flops = schedule_flops(4, 2048, 2048, 70, 14336, 250880);

    (void)state;
    assert_true(flops > 6.0211895555e18 && flops < 6.0211895565e18);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double got = schedule_tflops(schedule_flops(4, t[i].batch, 2048, 70, 14336, 250880), t[i].elapsed, t[i].world);

        if (!(got > t[i].want - 6e-5 && got < t[i].want + 6e-5))
            fail_msg("%.6f TFLOPs, want %.4f", got, t[i].want);
    }
}

static void test_planning(void **state)
{
    (void)state;
    assert_int_equal(schedule_checkpoint_bytes(176247271424), 14 * 176247271424);
    same_bits(schedule_gigaflos(16, 128, 0.000201984), 6 * 16 * 128 * 0.000201984);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ramp), cmocka_unit_test(test_no_ramp), cmocka_unit_test(test_long_ramp),
        cmocka_unit_test(test_ramp_refused), cmocka_unit_test(test_trajectory), cmocka_unit_test(test_rates),
        cmocka_unit_test(test_styles), cmocka_unit_test(test_decay_tokens), cmocka_unit_test(test_golden_logs),
        cmocka_unit_test(test_resume), cmocka_unit_test(test_flops), cmocka_unit_test(test_planning),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
