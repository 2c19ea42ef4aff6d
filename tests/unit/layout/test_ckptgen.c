/*
 * test_ckptgen.c - compare the generator with genuine files (torch's bytes, the trainer's keys and groups), with
 * numbers worked out by hand, and with the source: source_open() must give the values of the formula
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/format/zip.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/ckptgen.h"
#include "tests/lib/ckptgen_impl.h"
#include "tests/lib/torch_zip.h"

#define TORCH_FILES "tests/data/bloom-tp2pp2dp2/global_step20/"

static char scratch[512];

static int make_scratch(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/test_ckptgen.XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

/* Write a file that torch wrote once more, from its records; returns the path of the copy. */
static char *rewrite(const char *path, const char *prefix)
{
    struct err e = {0};
    struct files *f = files_new();
    int file = files_add_path(f, path, &e);
    struct zip *z = file < 0 ? NULL : zip_open(f, file, &e);
    char *out = path_join(scratch, "out.pt");
    struct torch_zip *w = torch_zip_create(out, prefix, 0, &e);

    if (!z || !w)
        fail_msg("%s", e.msg);
    for (int i = 0; i < zip_n(z); i++) {
        const struct zip_entry *x = zip_entry(z, i);
        uint8_t *buf = malloc(x->size);

        assert_int_equal(files_read(f, file, x->at, buf, x->size, &e), 0);
        assert_int_equal(torch_zip_record(w, strchr(x->name, '/') + 1, buf, x->size, &e), 0);
        free(buf);
    }
    assert_int_equal(torch_zip_finish(w, &e), 0);
    torch_zip_free(w);
    zip_close(z);
    files_free(f);
    return out;
}

/* The container is torch's own to the last byte. */
static void test_zip_is_torchs(void **state)
{
    static const char *const names[] = {
        "layer_08-model_00-model_states", "mp_rank_00_model_states",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states",
    };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = str_fmt(TORCH_FILES "%s.pt", names[i]), *copy = rewrite(path, names[i]), *want, *got;
        uint64_t want_len = 0, got_len = 0;
        struct err e = {0};

        want = file_slurp(path, 1 << 20, &want_len, &e);
        got = file_slurp(copy, 1 << 20, &got_len, &e);
        assert_non_null(want);
        assert_non_null(got);
        assert_int_equal(got_len, want_len);
        assert_memory_equal(got, want, want_len);
        free(want);
        free(got);
        free(copy);
        free(path);
    }
}

/* Any run of elements, wherever it begins and ends in the blocks of 64. */
static void test_runs_agree(void **state)
{
    static const int64_t firsts[] = { 0, 1, 63, 64, 65, 1000 }, lens[] = { 0, 1, 63, 64, 65, 300 };
    uint64_t key = ckptgen_key(1, "3.x", STATE_FP32, false);
    float all[2048], part[512];

    (void)state;
    ckptgen_fill(key, STATE_FP32, false, 0, 2048, all);
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
            ckptgen_fill(key, STATE_FP32, false, firsts[i], lens[k], part);
            assert_memory_equal(part, all + firsts[i], (size_t)lens[k] * 4);
        }
    }
    for (int i = 0; i < 2048; i++)
        if (!(all[i] >= -0.03125f && all[i] <= 0.03125f))
            fail_msg("element %d is %g", i, (double)all[i]);
}

static void test_narrow(void **state)
{
    static const struct { float in; uint16_t f16; } t[] = {
        { 1.0f, 0x3c00 }, { -0.03125f, 0xa800 }, { 0.0f, 0 },
        { 1.0f + 0x1p-11f, 0x3c00 }, { 1.0f + 0x3p-11f, 0x3c02 },   /* ties go to even */
        { 0x1.ffep0f, 0x3fff + 1 },                                 /* a carry into the exponent */
        { 0x1p-14f, 0x0400 }, { 0x1p-24f, 0x0001 }, { 0x1p-25f, 0 }, { 0x1.8p-25f, 0x0001 },
    };
    uint16_t got;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        ckptgen_narrow(true, &t[i].in, 1, &got);
        if (got != t[i].f16)
            fail_msg("%a as fp16: got %04x, want %04x", (double)t[i].in, got, t[i].f16);
        ckptgen_narrow(false, &t[i].in, 1, &got);
        assert_int_equal(got, f32_to_bf16(t[i].in));
    }
}

/* Elements a stage and rank: the worked example, 896 + 1152 + 184; with DP 3 padded by 4, 0, 2. */
static void test_worked_example(void **state)
{
    static const struct { int dp; uint64_t elems; } t[] = { { 2, 2232 }, { 3, 2238 } };
    struct err e = {0};
    struct ckptgen g;

    (void)state;
    ckptgen_defaults(&g);
    g.n_layers = 2;
    g.hidden = 16;
    g.vocab_tokens = 50;
    g.vocab = 64;
    g.partition = "type:transformer";
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct ckptgen_set *s;

        g.topo.dp = t[i].dp;
        s = ckptgen_new(&g, &e);
        assert_non_null(s);
        assert_int_equal(ckptgen_n_params(s), 29);
        assert_int_equal(ckptgen_optimizer_bytes(s), t[i].elems * 2 * 2 * 12);
        ckptgen_free(s);
    }
}

/* ---- through the source ---- */

struct variant {
    const char *name;
    int tp, pp, dp, groups;
    bool zero1, no_mappings, torch2, slim, absolute;
    enum ckptgen_lnum lnum;
    enum ckptgen_step step;
    const char *partition;
};

static const struct variant variants[] = {
    { .name = "plain", .tp = 2, .pp = 2, .dp = 2, .groups = 3 },
    { .name = "one rank", .tp = 1, .pp = 1, .dp = 1, .groups = 3, .slim = true },
    { .name = "dp 11, padded", .tp = 2, .pp = 2, .dp = 11, .groups = 3, .slim = true },
    { .name = "two groups, old numbers", .tp = 4, .pp = 1, .dp = 3, .groups = 2, .slim = true,
      .lnum = CKPTGEN_LNUM_OLD, .step = CKPTGEN_STEP_GROUP },
    { .name = "zero 1", .tp = 2, .pp = 2, .dp = 3, .groups = 3, .zero1 = true, .step = CKPTGEN_STEP_INT },
    { .name = "no mappings", .tp = 2, .pp = 2, .dp = 3, .groups = 3, .no_mappings = true },
    { .name = "gpt2, torch 2, uneven", .tp = 2, .pp = 3, .dp = 2, .groups = 3, .absolute = true,
      .torch2 = true, .partition = "1,2,1" },
};

static struct ckptgen spec_of(const struct variant *v)
{
    struct ckptgen g;

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = v->tp, .pp = v->pp, .dp = v->dp };
    g.hidden = 32;
    g.seq_len = 8;
    g.vocab_tokens = 50;
    g.vocab = 64;
    g.n_groups = v->groups;
    g.zero1 = v->zero1;
    g.no_mappings = v->no_mappings;
    g.torch2 = v->torch2;
    g.slim = v->slim;
    g.absolute_positions = v->absolute;
    g.embed_layernorm = !v->absolute;
    g.lnum = v->lnum;
    g.step = v->step;
    if (v->partition)
        g.partition = v->partition;
    return g;
}

static void check_state(const char *variant, const struct ckptgen_set *set, int i, enum state st,
                        const struct source *src, const struct tmap *map)
{
    const struct ckptgen_param *p = ckptgen_param(set, i);
    uint64_t len = (uint64_t)p->n_elems * (st == STATE_BF16 ? 2 : 4);
    int copies = map->op == TMAP_REPLICAS ? map->n_slices : 1;
    uint8_t *want = malloc(len), *got = malloc(len);
    struct err e = {0};

    assert_int_equal(map->len, len);
    ckptgen_values(set, i, st, 0, p->n_elems, want);
    for (int r = 0; r < copies; r++) {
        if (tmap_read(map, src->files, (struct tmap_range){ r, 0, len }, got, &e) < 0)
            fail_msg("%s: %s", variant, e.msg);
        if (memcmp(want, got, len) != 0)
            fail_msg("%s: %s state %d copy %d is not the formula's", variant, p->name, st, r);
    }
    free(want);
    free(got);
}

static void check_variant(const struct variant *v)
{
    struct ckptgen g = spec_of(v);
    struct err e = {0};
    struct ckptgen_set *set = ckptgen_new(&g, &e);
    struct source_opts o = {0};
    struct source *src;

    if (!set || ckptgen_write(set, scratch, &e) < 0)
        fail_msg("%s: %s", v->name, e.msg);
    src = source_open(scratch, &o, NULL, &e);
    if (!src)
        fail_msg("%s: %s", v->name, e.msg);
    assert_int_equal(src->topo.tp, v->tp);
    assert_int_equal(src->topo.pp, v->pp);
    assert_int_equal(src->topo.dp, v->dp);
    assert_int_equal(src->run.iteration, g.iteration);
    assert_int_equal(src->run.opt_step, g.iteration + 1);
    assert_int_equal(src->n_params, ckptgen_n_params(set));
    for (int i = 0; i < ckptgen_n_params(set); i++) {
        const struct param *p = source_param(src, ckptgen_param(set, i)->name);

        if (!p)
            fail_msg("%s: no %s", v->name, ckptgen_param(set, i)->name);
        assert_int_equal(p->merge, ckptgen_param(set, i)->rule);
        for (int st = 0; st < STATE_N; st++)
            if (p->state[st])
                check_state(v->name, set, i, (enum state)st, src, p->state[st]);
            else
                fail_msg("%s: %s lacks state %d", v->name, p->name, st);
    }
    source_close(src);
    ckptgen_free(set);
}

static void test_source_sees_the_formula(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        check_variant(&variants[i]);
        assert_int_equal(remove_scratch(NULL), 0);
        assert_int_equal(make_scratch(NULL), 0);
    }
}

/* ---- against the trainer's own files ---- */

/* The keys of a dict, one per line; a value that describes how tensors are cut is appended as its pickle. */
static void keys_of(const struct pk *v, struct strbuf *out)
{
    static const char *const telling[] = { "param_shapes", "param_slice_mappings", "group_paddings",
                                           "partition_count" };
    uint32_t n = 0;
    struct pk **pair = pk_pairs(v, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        strbuf_addf(out, "%s %s\n", key ? key : "?", pk_is_none(pair[2 * i + 1]) ? "none" : "");
        for (size_t k = 0; key && k < sizeof telling / sizeof *telling; k++)
            if (strcmp(key, telling[k]) == 0)
                pickle_write(pair[2 * i + 1], out);
    }
}

static void describe(const char *path, struct strbuf *out)
{
    struct err e = {0};
    struct files *f = files_new();
    int file = files_add_path(f, path, &e);
    struct pt *pt = file < 0 ? NULL : pt_open(f, file, &e);
    const struct pk *opt;

    if (!pt)
        fail_msg("%s", e.msg);
    opt = pk_get(pt_root(pt), "optimizer_state_dict");
    keys_of(pt_root(pt), out);
    keys_of(pk_get(pk_get(pt_root(pt), "args"), "deepspeed_configuration"), out);
    if (opt)
        keys_of(opt, out);
    pt_close(pt);
    files_free(f);
}

/* The same model in the same topology: the same keys, groups, shapes, slices and paddings in every file. */
static void test_like_the_trainers(void **state)
{
    struct ckptgen g;
    struct err e = {0};
    char name[96];

    (void)state;
    ckptgen_defaults(&g);
    assert_int_equal(ckptgen_make(&g, scratch, &e), 0);
    for (int i = 0; i < 12; i++) {
        struct strbuf want = {0}, got = {0};
        char *path;

        if (i < 4)
            snprintf(name, sizeof name, "mp_rank_%02d_model_states.pt", i);
        else
            snprintf(name, sizeof name, "bf16_zero_pp_rank_%d_mp_rank_%02d_optim_states.pt", i / 4 - 1, i % 4);
        path = str_fmt(TORCH_FILES "%s", name);
        describe(path, &want);
        free(path);
        path = str_fmt("%s/global_step20/%s", scratch, name);
        describe(path, &got);
        free(path);
        if (want.len != got.len || memcmp(want.buf, got.buf, want.len) != 0)
            fail_msg("%s is not cut as the trainer cuts it", name);
        strbuf_free(&want);
        strbuf_free(&got);
    }
}

/* A drift reaches the copy it names and no other. */
static void test_drift(void **state)
{
    struct variant v = { .name = "drift", .tp = 2, .pp = 2, .dp = 2, .groups = 3, .slim = true };
    struct ckptgen g = spec_of(&v);
    struct source_opts o = {0};
    struct source *src;
    struct err e = {0};
    float a[32], b[32];
    const struct tmap *map;

    (void)state;
    assert_int_equal(ckptgen_add_drift(&g, "3.input_layernorm.weight:exp_avg"), -1);
    assert_int_equal(ckptgen_add_drift(&g, "3.input_layernorm.weight:exp:1"), -1);
    assert_int_equal(ckptgen_add_drift(&g, "3.input_layernorm.weight:fp32:2"), 0);
    assert_int_equal(ckptgen_make(&g, scratch, &e), -1);
    assert_int_equal(e.kind, ERR_USAGE);
    err_clear(&e);
    g.n_drift = 0;
    assert_int_equal(ckptgen_add_drift(&g, "3.input_layernorm.weight:fp32:1:5"), 0);
    assert_int_equal(ckptgen_make(&g, scratch, &e), 0);
    src = source_open(scratch, &o, NULL, &e);
    if (!src)
        fail_msg("%s", e.msg);
    map = source_param(src, "3.input_layernorm.weight")->state[STATE_FP32];
    assert_int_equal(tmap_read(map, src->files, (struct tmap_range){ 0, 0, sizeof a }, a, &e), 0);
    assert_int_equal(tmap_read(map, src->files, (struct tmap_range){ 1, 0, sizeof b }, b, &e), 0);
    for (int i = 0; i < 32; i++)
        assert_int_equal(memcmp(&a[i], &b[i], 4) != 0, i < 5);
    source_close(src);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_zip_is_torchs, make_scratch, remove_scratch),
        cmocka_unit_test(test_runs_agree),
        cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test_setup_teardown(test_source_sees_the_formula, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(test_like_the_trainers, make_scratch, remove_scratch),
        cmocka_unit_test_setup_teardown(test_drift, make_scratch, remove_scratch),
    };

    return cmocka_run_group_tests_name("ckptgen", tests, NULL, NULL);
}
