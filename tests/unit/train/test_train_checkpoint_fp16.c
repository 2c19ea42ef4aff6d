/*
 * test_train_checkpoint_fp16.c - checkpoints of fp16 runs: ZeRO-1's shards, and the loss scaler in them
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/format/pt.h"
#include "tests/lib/ckptgen.h"
#include "tests/lib/scratch.h"
#include "tests/lib/trainjob.h"


static char *in_scratch(const char *name)
{
    return path_join(scratch, name);
}

static const struct loss_scale scaler = {
    .dynamic = true,
    .scale = 131072,
    .factor = 2,
    .min = 1,
    .stop_at_min = true,
    .window = 6,
    .hysteresis = 2,
    .left = 1,
    .iter = 20,
    .last_overflow = 19,
};

static struct checkpoint_load_opts plain_load(void)
{
    struct checkpoint_load_opts o = job_plain_load;

    o.weights = DTYPE_F16;
    return o;
}

static void new_job(struct job *j, const struct model_config *m, struct topology topo)
{
    int blocks[JOB_RANKS_MAX];

    job_even_blocks(m->n_layers, topo.pp, blocks);
    job_new(j, m, topo, blocks, DTYPE_F16);
}

static struct checkpoint_now now_with(const struct loss_scale *s)
{
    struct checkpoint_now now = job_fresh_now;

    now.has_scaler = now.overflow = true;
    now.scaler = *s;
    return now;
}

/* Load `dir`, save it at a topology as iteration 8 with its own scaler, or another. */
static void carry(const char *dir, struct topology topo, const char *out, const struct loss_scale *s)
{
    struct checkpoint *c = job_open(dir, false);
    const struct checkpoint_info *i = checkpoint_info(c);
    const struct checkpoint_load_opts lo = plain_load();
    struct checkpoint_now now = job_now_of(i);
    struct checkpoint_saver_opts o = { .from = c };
    struct checkpoint_loaded loaded;
    struct report *notes = report_new();
    struct err e = {0};
    struct job j;

    assert_true(i->zero_stage_1 && i->has_scaler);
    now.has_scaler = true;
    now.scaler = s ? *s : i->scaler;
    now.overflow = s ? s->dynamic : i->overflow;
    new_job(&j, &i->model, topo);
    job_writers(&j);
    job_must(job_load(&j, c, &lo, notes, &loaded, &e) == 0, &e);
    job_savers(&j, &o, out, notes);
    assert_int_equal(report_count(notes, SEV_WARNING), 0);
    checkpoint_close(c);
    job_save(&j, &now);
    job_free(&j);
    report_free(notes);
}

/* Masters of the last data-parallel rank end where its parameters do, those of the moments where the partition does. */
static void check_shard(const char *tag, const struct model_config *m)
{
    char *path = path_join(tag, "zero_pp_rank_2_mp_rank_00_optim_states.pt");
    struct files *f = files_new();
    struct err e = {0};
    struct pt *pt = pt_open(f, files_add_path(f, path, &e), &e);
    const struct pk *opt, *state;
    struct pt_tensor master, moment;
    struct pk **group, **padding;
    uint32_t n, n_pairs;
    int64_t total = 0, pad;

    job_must(pt != NULL, &e);
    opt = pk_get(pt_root(pt), "optimizer_state_dict");
    group = pk_items(pk_get(opt, "single_partition_of_fp32_groups"), &n);
    assert_int_equal(n, 3);
    padding = pk_items(pk_get(opt, "group_paddings"), &n);
    state = pk_get(pk_get(opt, "base_optimizer_state"), "state");
    for (uint32_t g = 0; g < n; g++) {
        assert_true(pt_tensor(pt, group[g], &master));
        assert_true(pt_tensor(pt, pk_get(pk_pairs(state, &n_pairs)[2 * g + 1], "exp_avg"), &moment));
        assert_true(pk_as_int(padding[g], &pad));
        assert_int_equal(master.n_elems + pad, moment.n_elems);
        total += pad;
    }
    assert_true(total > 0);             /* else nothing was shown */
    assert_int_equal(m->n_layers, 5);
    pt_close(pt);
    files_free(f);
    free(path);
}

static void same_scaler(const struct loss_scale *a, const struct loss_scale *b)
{
    struct arena *arena = arena_new(0);
    struct strbuf x = {0}, y = {0};

    pk_text(loss_scale_write(arena, a), &x);
    pk_text(loss_scale_write(arena, b), &y);
    assert_string_equal(x.buf, y.buf);
    strbuf_free(&x);
    strbuf_free(&y);
    arena_free(arena);
}

static void expect_scaler(const char *dir, const struct loss_scale *want)
{
    struct checkpoint *c = job_open(dir, false);
    const struct checkpoint_info *i = checkpoint_info(c);
    int64_t fp16 = 0, bf16 = 1, stage = 0;

    assert_true(i->has_scaler && i->zero_stage_1);
    assert_int_equal(i->weights, DTYPE_F16);
    assert_true(pk_as_int(pk_get(i->args, "fp16"), &fp16) && fp16 == 1);
    assert_true(pk_as_int(pk_get(i->args, "bf16"), &bf16) && bf16 == 0);
    assert_true(pk_as_int(pk_get(i->args, "zero_stage"), &stage) && stage == 1);
    same_scaler(&i->scaler, want);
    assert_int_equal(i->overflow, want->dynamic);
    checkpoint_close(c);
}

/* Saved from nothing, opened, loaded to the bit. */
static void from_scratch(void **state)
{
    const struct model_config m = job_small_model("absolute");
    const struct topology topo = { .tp = 2, .pp = 2, .dp = 3 };
    const struct checkpoint_now now = now_with(&scaler);
    const struct checkpoint_load_opts lo = plain_load();
    const struct checkpoint_saver_opts o = { .seed = 42 };
    char *dir = in_scratch("fresh"), *tag = path_join(dir, "global_step7");
    struct report *notes = report_new();
    struct checkpoint_loaded loaded;
    struct checkpoint *c;
    struct err e = {0};
    struct job j, back;

    (void)state;
    new_job(&j, &m, topo);
    job_writers(&j);
    job_fill(&j, 0);
    job_savers(&j, &o, dir, notes);
    job_save(&j, &now);
    job_expect_sound(tag);
    expect_scaler(dir, &scaler);
    check_shard(tag, &m);
    new_job(&back, &m, topo);
    c = job_open(dir, false);
    job_must(job_load(&back, c, &lo, notes, &loaded, &e) == 0, &e);
    job_same_state(&j, &back);
    checkpoint_close(c);
    job_free(&back);
    job_free(&j);
    report_free(notes);
    free(dir);
    free(tag);
}

/* Going on writes what reshape would: every key of the loaded files lives on, the scaler too. */
static void goes_on(void **state)
{
    static const struct topology to[] = { { .tp = 2, .pp = 2, .dp = 3 }, { .tp = 4, .pp = 1, .dp = 2 },
                                           { .tp = 1, .pp = 2, .dp = 1 } };
    char *from = in_scratch("fresh");

    (void)state;
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        char *out = str_fmt("%s/on%zu", scratch, i), *want = str_fmt("%s.want", out);
        char *tag = path_join(out, "global_step7");

        carry(from, to[i], out, NULL);
        job_reshape(from, to[i], want);
        job_same_bytes(want, tag);
        job_expect_sound(tag);
        free(out);
        free(want);
        free(tag);
    }
    free(from);
}

/* Another scaler than the loaded one's, of another class, both ways. */
static void scaler_changes(void **state)
{
    const struct loss_scale fixed = { .scale = 4096 };
    const struct topology topo = { .tp = 1, .pp = 1, .dp = 2 };
    char *made = in_scratch("made"), *static_dir = in_scratch("static"), *dynamic_dir = in_scratch("dynamic");
    struct ckptgen g;
    struct err e = {0};

    (void)state;
    ckptgen_defaults(&g);
    g.slim = g.zero1 = true;
    job_must(ckptgen_make(&g, made, &e) == 0, &e);
    carry(made, topo, dynamic_dir, &scaler);
    expect_scaler(dynamic_dir, &scaler);
    carry(dynamic_dir, topo, static_dir, &fixed);
    expect_scaler(static_dir, &fixed);
    free(made);
    free(static_dir);
    free(dynamic_dir);
}

/* A value that fp16 cannot hold is no state to save. */
static void overflowed(void **state)
{
    const struct model_config m = job_small_model("alibi");
    const struct checkpoint_now now = now_with(&scaler);
    const struct checkpoint_saver_opts o = { .seed = 42 };
    char *dir = in_scratch("infinite");
    struct report *notes = report_new();
    struct checkpoint_saved out;
    struct job j;

    (void)state;
    new_job(&j, &m, (struct topology){ .tp = 1, .pp = 1, .dp = 1 });
    job_writers(&j);
    job_fill(&j, 0);
    ((uint16_t *)j.rank[0].st.weights)[5] = f32_to_f16(70000);
    job_savers(&j, &o, dir, notes);
    job_start_save(&j, &now);
    out = job_wait(&j);
    assert_int_equal(out.outcome, SAVE_NOT_FINITE);
    assert_non_null(strstr(out.err.msg, "infinite"));
    job_free(&j);
    report_free(notes);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_scratch),
        cmocka_unit_test(goes_on),
        cmocka_unit_test(scaler_changes),
        cmocka_unit_test(overflowed),
    };

    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
