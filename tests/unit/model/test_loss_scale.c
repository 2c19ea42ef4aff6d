/* test_loss_scale.c - the loss scale compared with the reference: a replay of its log, every single rule, and its
 * object in checkpoints */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/model/loss_scale.h"
#include "tools/train/log/trainlog.h"

/* ---- the reference's run ---- */

enum { STEPS = 30 };

static double field(const char *line, const char *name)
{
    const char *at = strstr(line, name);

    if (!at)
        fail_msg("no '%s' in %s", name, line);
    return atof(at + strlen(name));
}

static char *read_log(const char *name)
{
    char *path = path_join("tests/data/logs", name);
    struct err e = {0};
    uint64_t size;
    char *text = file_slurp(path, 1 << 20, &size, &e);

    if (!text)
        fail_msg("%s", e.msg);
    free(path);
    return text;
}

/*
 * A step was skipped when neither the rate nor the norm moved: that is all the reference's line shows of it. The rate
 * was 0 until the first update, and the norm 0.000.
 */
static void replay(void **state)
{
    char *log = read_log("gpt2-fp16-tp2pp2dp2.log"), *told = read_log("gpt2-fp16-tp2pp2dp2.overflow.log");
    struct loss_scale s = loss_scale_dynamic(1 << 20);
    struct strbuf lines = {0};
    double rate = 0, norm = 0;
    int skipped = 0, at = 0;

    (void)state;
    s.window = 6;
    for (char *line = strtok(log, "\n"); line; line = strtok(NULL, "\n")) {
        const double attempted = s.scale;
        enum loss_scale_event what;
        bool overflow;

        if (strncmp(line, " iteration", 10) != 0)
            continue;
        overflow = field(line, "learning rate: ") == rate && field(line, "grad norm: ") == norm;
        rate = field(line, "learning rate: ");
        norm = field(line, "grad norm: ");
        what = loss_scale_update(&s, overflow);
        assert_int_equal(what != LOSS_SCALE_GOOD, overflow);
        trainlog_add_scale(&lines, what, attempted, &s);
        if (!(s.scale == field(line, "loss scale: ")))
            fail_msg("%s: got a scale of %g", line, s.scale);
        skipped += overflow;
        at++;
        /* What its checkpoint of iteration 20 holds. */
        if (at == 20) {
            assert_int_equal(s.iter, 20);
            assert_int_equal(s.last_overflow, 19);
            assert_int_equal(s.left, 1);
        }
    }
    assert_int_equal(at, STEPS);
    assert_int_equal(skipped, 8);
    assert_string_equal(lines.buf, told);
    strbuf_free(&lines);
    free(log);
    free(told);
}

/* ---- the rules ---- */

static void good(struct loss_scale *s, int n)
{
    while (n--)
        assert_int_equal(loss_scale_update(s, false), LOSS_SCALE_GOOD);
}

/* It rises when the steps since the last overflow are a multiple of the window; before any, counted from -1. */
static void rises(void **state)
{
    struct loss_scale s = loss_scale_dynamic(8);

    (void)state;
    s.window = 4;
    good(&s, 3);
    assert_true(s.scale == 8);
    good(&s, 1);
    assert_true(s.scale == 16);
    good(&s, 4);
    assert_true(s.scale == 32);
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_SPARED);
    assert_true(s.scale == 32);
    good(&s, 3);
    assert_int_equal(s.left, 1);
    good(&s, 1);
    assert_int_equal(s.left, 2);
    assert_true(s.scale == 64);
}

static void falls(void **state)
{
    struct loss_scale s = loss_scale_dynamic(8);

    (void)state;
    s.hysteresis = s.left = 3;
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_SPARED);
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_SPARED);
    /* What is left stays: from here on every overflow halves it, good steps between or not. */
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_FELL);
    good(&s, 1);
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_FELL);
    assert_true(s.scale == 2);
    assert_int_equal(s.last_overflow, 4);
    assert_int_equal(s.iter, 5);
}

static void consecutive(void **state)
{
    struct loss_scale s = loss_scale_dynamic(8);

    (void)state;
    s.consecutive = true;
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_SPARED);
    good(&s, 1);
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_SPARED);
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_FELL);
}

static void minimum(void **state)
{
    struct loss_scale s = loss_scale_dynamic(3), before;

    (void)state;
    s.hysteresis = s.left = 1;
    s.min = 2;
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_FELL);
    assert_true(s.scale == 2);
    before = s;
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_STUCK);
    assert_memory_equal(&s, &before, sizeof s);
    s.stop_at_min = false;
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_FELL);
    assert_true(s.scale == 2);
}

static void fixed(void **state)
{
    struct loss_scale s = loss_scale_static(128);

    (void)state;
    good(&s, 2000);
    assert_int_equal(loss_scale_update(&s, true), LOSS_SCALE_FIXED);
    assert_true(s.scale == 128);
}

/* ---- its object ---- */

static void comes_back(const struct loss_scale *s)
{
    struct arena *a = arena_new(0);
    struct strbuf bytes = {0};
    struct pk_tree tree;
    struct loss_scale got;
    struct err e = {0};

    pickle_write(loss_scale_write(a, s), &bytes);
    assert_int_equal(pickle_parse(bytes.buf, bytes.len, "scaler", &tree, &e), 0);
    assert_true(loss_scale_read(&got, tree.root));
    assert_int_equal(got.dynamic, s->dynamic);
    assert_true(got.scale == s->scale);
    if (s->dynamic) {
        assert_true(got.factor == s->factor && got.min == s->min);
        assert_int_equal(got.stop_at_min, s->stop_at_min);
        assert_int_equal(got.consecutive, s->consecutive);
        assert_int_equal(got.window, s->window);
        assert_int_equal(got.hysteresis, s->hysteresis);
        assert_int_equal(got.left, s->left);
        assert_int_equal(got.iter, s->iter);
        assert_int_equal(got.last_overflow, s->last_overflow);
    }
    pk_tree_free(&tree);
    strbuf_free(&bytes);
    arena_free(a);
}

static void saved(void **state)
{
    struct loss_scale s = loss_scale_dynamic(65536), fix = loss_scale_static(0.5);

    (void)state;
    comes_back(&s);
    comes_back(&fix);
    s = (struct loss_scale){ .dynamic = true, .scale = 3, .factor = 4, .min = 0.25, .window = 7, .hysteresis = 5,
                             .left = 2, .consecutive = true, .iter = 100, .last_overflow = 99 };
    comes_back(&s);
}

/* An impossible scaler is not read: nothing may be divided by its window, or by a scale of 0. */
static void refused(void **state)
{
    static const struct { const char *key; double v; } bad[] = {
        { "cur_scale", 0 }, { "cur_scale", -2 }, { "scale_factor", 1 }, { "scale_window", 0 }, { "min_scale", 0 },
        { "delayed_shift", 0 }, { "cur_hysteresis", 0 }, { "cur_hysteresis", 3 }, { "cur_iter", -1 },
        { "last_overflow_iter", 101 }, { "last_overflow_iter", -2 },
    };
    struct loss_scale s = loss_scale_dynamic(8), got = { .scale = 5 };
    struct arena *a = arena_new(0);

    (void)state;
    s.iter = 100;
    assert_false(loss_scale_read(&got, NULL));
    assert_false(loss_scale_read(&got, pk_none(a)));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pk *x = pk_copy(a, loss_scale_write(a, &s));
        uint32_t n;
        struct pk **pair = pk_pairs(x, &n);

        for (uint32_t k = 0; k < n; k++)
            if (strcmp(pk_as_str(pair[2 * k]), bad[i].key) == 0)
                pair[2 * k + 1] = strstr(bad[i].key, "scale") && !strstr(bad[i].key, "window")
                                ? pk_float(a, bad[i].v) : pk_int(a, (int64_t)bad[i].v);
        if (loss_scale_read(&got, x))
            fail_msg("%s %g was taken", bad[i].key, bad[i].v);
    }
    assert_true(got.scale == 5);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replay), cmocka_unit_test(rises), cmocka_unit_test(falls), cmocka_unit_test(consecutive),
        cmocka_unit_test(minimum), cmocka_unit_test(fixed), cmocka_unit_test(saved), cmocka_unit_test(refused),
    };

    return cmocka_run_group_tests_name("loss_scale", tests, NULL, NULL);
}
