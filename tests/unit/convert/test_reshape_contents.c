/*
 * test_reshape_contents.c - the changes that reshape makes other than the topology, and the input that it refuses
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/universal/universal.h"
#include "tests/lib/ptdiff.h"
#include "tests/lib/resh.h"

static int64_t value(const char *dir, const char *file, const char *a, const char *b)
{
    struct resh_side s = resh_open_side(dir, file);
    const struct pk *v = pk_get(pt_root(s.pt), a);
    int64_t i = INT64_MIN;

    pk_as_int(b ? pk_get(v, b) : v, &i);
    resh_close_side(&s);
    return i;
}

static void vocabulary(void **state)
{
    struct ckptgen g = resh_small_model(2, 2, 2);
    char *in = resh_generate(&g, "a"), *out = resh_in_scratch("out"), *back = resh_in_scratch("back");
    struct ds_request q = resh_to_topology(4, 1, 3), r = resh_to_topology(2, 2, 2);
    const char *name = "tied_modules.embed.word_embeddings.weight";
    struct source *s, *t;
    struct err e = {0};
    float *x, *y;

    (void)state;
    q.vocab = 80;
    resh_do(in, out, &q);
    resh_expect_sound(out);
    assert_int_equal(value(out, "mp_rank_03_model_states.pt", "args", "padded_vocab_size"), 80);
    s = resh_open_source(in);
    t = resh_open_source(out);
    assert_int_equal(source_param(t, name)->shape[0], 80);
    for (int st = STATE_FP32; st < STATE_N; st++) {
        x = xcalloc(80 * 16, sizeof *x);
        y = xcalloc(80 * 16, sizeof *y);
        resh_must(tmap_read(source_param(s, name)->state[st], s->files, (struct tmap_range){ 0, 0, 48 * 16 * 4 }, x,
                            &e) == 0, &e);
        resh_must(tmap_read(source_param(t, name)->state[st], t->files, (struct tmap_range){ 0, 0, 80 * 16 * 4 }, y,
                            &e) == 0, &e);
        assert_memory_equal(x, y, 80 * 16 * sizeof *x);         /* x ends in zeros */
        free(x);
        free(y);
    }
    source_close(s);
    source_close(t);
    r.vocab = 48;
    resh_do(out, back, &r);
    q = resh_to_topology(0, 0, 0);
    resh_do(in, out, &q);
    resh_same_digests(out, back);
    free(in);
    free(out);
    free(back);
}

static void conventions(void **state)
{
    struct ckptgen a = resh_small_model(2, 2, 2), b = a;
    char *in, *like, *out = resh_in_scratch("out"), **names;
    struct ds_request q = resh_to_topology(0, 0, 0);
    int n;

    (void)state;
    b.lnum = CKPTGEN_LNUM_OLD;
    b.n_groups = 2;
    b.partition = "type:transformer";
    in = resh_generate(&a, "a");
    like = resh_generate(&b, "b");
    q.like = source_open(like, &(struct source_opts){ .no_tensors = true }, NULL, &(struct err){0});
    assert_non_null(q.like);
    resh_do(in, out, &q);
    resh_expect_sound(out);
    /* Values depend on names, so weights of renumbered layers differ: only names and shapes are compared. */
    resh_same_names(like, out, &names, &n);
    for (int i = 0; i < n; i++)
        if (str_starts(names[i], "mp_rank_"))
            resh_same_file(like, out, names[i], NULL);
    ptdiff_list_free(names, n);
    source_close((struct source *)q.like);

    q = resh_to_topology(0, 3, 0);
    q.stages = (const int[]){ 1, 6, 1 };
    q.n_stages = 3;
    resh_do(in, out, &q);
    resh_expect_sound(out);
    free(in);
    free(like);
    free(out);
}

/* Check that verify has one warning: the optimizer's step, which --zero-moments sets to 0, is not the engine's. */
static void expect_another_start(const char *dir)
{
    struct verify_opts o = { .threads = 2, .mem_bytes = 8 << 20 };
    struct report *r = report_new();
    struct err e = {0};

    resh_must(verify_run(dir, &o, r, &e) == 0, &e);
    assert_int_equal(report_count(r, SEV_ERROR), 0);
    assert_int_equal(report_count(r, SEV_WARNING), 1);
    for (int i = 0; i < report_n(r); i++)
        if (report_get(r, i)->severity == SEV_WARNING) {
            assert_string_equal(report_get(r, i)->code, "counters");
            assert_non_null(strstr(report_get(r, i)->text, "records 5 steps, 0 of them skipped, and the optimizer "
                                   "has 0: "));
        }
    report_free(r);
}

static void surgery(void **state)
{
    struct ckptgen g = resh_small_model(2, 2, 2);
    char *in = resh_generate(&g, "a"), *out = resh_in_scratch("out");
    struct ds_request q = resh_to_topology(1, 1, 1);
    struct ds_set sets[] = { { "args.train_iters=77", false }, { "lr_scheduler.max_lr=0.5", false } };
    struct source *s;
    float v[48];
    struct err e = {0};

    (void)state;
    q.zero_moments = true;
    q.step = 5;
    resh_do(in, out, &q);
    expect_another_start(out);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "iteration", NULL), 5);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "global_steps", NULL), 5);
    s = resh_open_source(out);
    assert_int_equal(s->run.opt_step, 0);
    resh_must(tmap_read(source_param(s, "3.self_attention.query_key_value.bias")->state[STATE_EXP_AVG], s->files,
                        (struct tmap_range){ 0, 0, sizeof v }, v, &e) == 0, &e);
    for (int i = 0; i < 48; i++)
        assert_true(v[i] == 0);
    source_close(s);

    q = resh_to_topology(1, 1, 1);
    q.step = 30;
    q.set = sets;
    q.n_set = 2;
    assert_int_equal(resh_try(in, out, &q, &e), -1);
    assert_non_null(strstr(e.msg, "has no such argument"));
    err_clear(&e);
    sets[0].text = "args.seed=77";
    resh_do(in, out, &q);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "args", "seed"), 77);
    s = resh_open_source(out);
    assert_int_equal(s->run.opt_step, 31);
    source_close(s);

    q = resh_to_topology(4, 1, 1);
    q.no_optimizer = true;
    resh_do(in, out, &q);
    s = source_open(out, &(struct source_opts){ .no_optimizer = true }, NULL, &e);
    resh_must(s != NULL, &e);
    assert_int_equal(s->n_files, 4 * 11 + 1);
    source_close(s);
    free(in);
    free(out);
}

/* ---- impossible requests ---- */

static void expect_refused(const char *in, struct ds_request q, enum err_kind kind, const char *want)
{
    char *out = resh_in_scratch("refused");
    struct err e = {0};

    assert_int_equal(resh_try(in, out, &q, &e), -1);
    assert_string_equal(e.msg, want);
    assert_int_equal(e.kind, kind);
    assert_int_not_equal(access(out, F_OK), 0);
    free(out);
}

static void refusals(void **state)
{
    struct ckptgen g = resh_small_model(2, 2, 2);
    char *in = resh_generate(&g, "a");
    struct ds_request q = resh_to_topology(3, 0, 0);

    (void)state;
    expect_refused(in, q, ERR_USAGE, "the 8 heads cannot be divided over TP 3");
    q = resh_to_topology(0, 9, 0);
    expect_refused(in, q, ERR_USAGE, "8 layers cannot be divided over 9 pipeline stages");
    q = resh_to_topology(0, 0, 0);
    q.vocab = 49;
    expect_refused(in, q, ERR_USAGE, "the padded vocabulary of 49 rows is not divisible by TP 2");
    q.vocab = 32;
    expect_refused(in, q, ERR_USAGE, "a padded vocabulary of 32 rows cannot hold 33 tokens");
    q = resh_to_topology(0, 0, 0);
    q.stages = (const int[]){ 3, 2 };
    q.n_stages = 2;
    expect_refused(in, q, ERR_USAGE, "the numbers of --stages add up to 5 layers, but the model has 8");
    q = resh_to_topology(0, 4, 0);
    q.method = "profile";
    expect_refused(in, q, ERR_USAGE, "partition method 'profile' is not supported: expected " PIPELINE_METHODS);
    q = resh_to_topology(0, 3, 0);
    q.stages = (const int[]){ 4, 0, 4 };
    q.n_stages = 3;
    expect_refused(in, q, ERR_USAGE, "stage 1 would have no layer and no other parameter");
    free(in);
}

/* Stages with only the embedding or only the head have fewer groups. Nothing is lost in a conversion through them. */
static void lone_ends(void **state)
{
    static const struct { int pp; const char *method; int stages[4]; } t[] = {
        { 6, "type:transformer|embedding", {0} }, { 4, "uniform", {0} }, { 4, NULL, { 0, 4, 4, 0 } },
        { 3, NULL, { 5, 3, 0 } }, { 2, NULL, { 0, 8 } }, { 2, NULL, { 8, 0 } },
    };

    (void)state;
    for (size_t i = 0; i < 2 * sizeof t / sizeof *t; i++) {
        struct ckptgen g = resh_small_model(2, 2, 2);
        char *in, *a0 = resh_in_scratch("a0"), *there = resh_in_scratch("there"), *back = resh_in_scratch("back");
        struct ds_request q = resh_to_topology(0, 0, 0);

        g.absolute_positions = i % 2;
        g.embed_layernorm = !g.absolute_positions;
        g.n_groups = i % 4 < 2 ? 3 : 2;
        in = resh_generate(&g, "a");
        resh_do(in, a0, &q);
        q = resh_to_topology(1, t[i / 2].pp, 3);
        q.method = t[i / 2].method;
        if (!q.method) {
            q.stages = t[i / 2].stages;
            q.n_stages = t[i / 2].pp;
        }
        resh_do(in, there, &q);
        resh_expect_sound(there);
        resh_same_digests(a0, there);
        /* The shards of such a stage are also read back as a source, with the same division at another tensor
         * degree. */
        q = resh_to_topology(4, 0, 1);
        resh_do(there, back, &q);
        resh_expect_sound(back);
        q = resh_to_topology(2, 2, 2);
        q.method = "type:transformer|embedding";
        resh_do(back, there, &q);
        resh_expect_sound(there);
        resh_same_digests(a0, there);
        resh_same_bytes(a0, there, "bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt");
        free(in);
        free(a0);
        free(there);
        free(back);
    }
}

/* Write a file again with a changed tree. */
static void rewrite(const char *dir, const char *name, void (*edit)(struct arena *a, struct pk *root))
{
    struct resh_side s = resh_open_side(dir, name);
    struct arena *a = arena_new(0);
    struct pk *root = pk_copy(a, pt_root(s.pt));
    char *path = path_join(dir, name), *prefix = str_fmt("%.*s", (int)strlen(name) - 3, name);
    uint8_t *bytes;
    uint64_t size;
    struct err e = {0};

    edit(a, root);
    resh_must(pt_build(prefix, root, s.pt, s.f, &bytes, &size, &e) == 0, &e);
    resh_must(file_replace(path, bytes, size, &e) == 0, &e);
    free(bytes);
    free(path);
    free(prefix);
    arena_free(a);
    resh_close_side(&s);
}

/* Change to ZeRO-1 with elastic_checkpoint: a list of states, with the step next to it. */
static void make_elastic(struct arena *a, struct pk *root)
{
    struct pk *opt = pk_get(root, "optimizer_state_dict"), *list = pk_list(a);
    uint32_t n;
    struct pk **pair = pk_pairs(pk_get(pk_get(opt, "base_optimizer_state"), "state"), &n);

    for (uint32_t i = 0; i < n; i++) {
        pk_remove(pair[2 * i + 1], "step");
        pk_add(a, list, pair[2 * i + 1]);
    }
    pk_set_str(a, opt, "base_optimizer_state", list);
    pk_set_str(a, opt, "base_optimizer_state_step", pk_int(a, 21));
}

static void elastic_zero(void **state)
{
    struct ckptgen g = resh_small_model(1, 1, 2);
    struct ds_request q = resh_to_topology(1, 1, 1);
    char *in, *mid = resh_in_scratch("mid"), *out = resh_in_scratch("out"), *want = resh_in_scratch("want"), *msg,
              **names;
    int n;

    (void)state;
    g.zero1 = true;
    in = resh_generate(&g, "a");
    resh_do(in, want, &q);
    n = ptdiff_list(in, &names);
    for (int i = 0; i < n; i++)
        if (strstr(names[i], "zero"))
            rewrite(in, names[i], make_elastic);
    ptdiff_list_free(names, n);
    msg = str_fmt(
        "%s/zero_pp_rank_0_mp_rank_00_optim_states.pt: ZeRO shards in the elastic form (elastic_checkpoint) cannot "
        "be resharded directly; convert with ds2universal first, then reshape the result",
        in);
    expect_refused(in, q, ERR_DATA, msg);
    /* And so it is. */
    resh_to_universal(in, mid, universal_pt_sink);
    resh_do(mid, out, &q);
    resh_expect_sound(out);
    resh_same_digests(want, out);
    free(msg);
    free(in);
    free(mid);
    free(out);
    free(want);
}

/* Change the patterns to those of Microsoft's fork with --untie-embeddings-and-output-weights. */
static void untie(struct arena *a, struct pk *root)
{
    struct pk *group = pk_items(pk_get(root, "param_shapes"), &(uint32_t){0})[0];
    uint32_t n;
    struct pk **pair = pk_pairs(group, &n);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(pk_as_str(pair[2 * i]), "tied_modules.embed.word_embeddings.weight") == 0)
            pair[2 * i] = pk_str(a, "1.word_embeddings.weight");
}

static void untied_embeddings(void **state)
{
    struct ckptgen g = resh_small_model(1, 1, 1);
    struct ds_request q = resh_to_topology(2, 1, 1);
    char *in, *msg;

    (void)state;
    g.no_mappings = true;
    in = resh_generate(&g, "a");
    rewrite(in, "mp_rank_00_model_states.pt", untie);
    msg = str_fmt("%s: parameter 1.word_embeddings.weight: the embedding and the head are different tensors; only models "
                  "with tied embeddings can be resharded", in);
    expect_refused(in, q, ERR_DATA, msg);
    free(msg);
    free(in);
}

static void drifted_replicas(void **state)
{
    struct ckptgen g = resh_small_model(2, 2, 2);
    struct err e = {0};
    struct ds_request q = resh_to_topology(4, 1, 1);
    char *in, *out = resh_in_scratch("out2");

    (void)state;
    assert_int_equal(ckptgen_add_drift(&g, "4.input_layernorm.weight:exp_avg:1"), 0);
    in = resh_generate(&g, "a");
    assert_int_equal(resh_try(in, out, &q, &e), -1);
    assert_int_equal(e.kind, ERR_DATA);
    assert_non_null(strstr(e.msg, "4.input_layernorm.weight: 1 of 16 elements differ between the 2 tensor-parallel"));
    assert_int_not_equal(access(out, F_OK), 0);
    free(in);
    free(out);
}

/* ---- keys of mp_rank files that DeepSpeed's own tools need ---- */

/* Return the value of a key of out's mp_rank_00 as text. The caller frees it. */
static char *said(const char *key)
{
    char *out = resh_in_scratch("out");
    struct resh_side s = resh_open_side(out, "mp_rank_00_model_states.pt");
    const struct pk *v = pk_get(pt_root(s.pt), key);
    struct strbuf text = {0};

    strbuf_addf(&text, "%s", "");
    if (v)
        pk_text(v, &text);
    resh_close_side(&s);
    free(out);
    return text.buf;
}

static void expect_said(const char *key, const char *want)
{
    char *got = said(key);

    assert_string_equal(got, want);
    free(got);
}

#define BLOCK_HEAD(V0, V) "{\"universal_checkpoint_version\": 0.2, \"original_vocab_size\": " V0 ", " \
    "\"padded_vocab_size\": " V ", " \
    "\"vocabulary_parameter_patterns\": [\"tied_modules\\\\.embed\\\\.word_embeddings\\\\.weight\"], "
#define BLOCK_LAYER "\"\\\\d+\\\\.input_layernorm\\\\.weight\", \"\\\\d+\\\\.input_layernorm\\\\.bias\", " \
    "\"\\\\d+\\\\.self_attention\\\\.dense\\\\.bias\", " \
    "\"\\\\d+\\\\.post_attention_layernorm\\\\.weight\", \"\\\\d+\\\\.post_attention_layernorm\\\\.bias\", " \
    "\"\\\\d+\\\\.mlp\\\\.dense_4h_to_h\\\\.bias\", \"\\\\d+\\\\.weight\", \"\\\\d+\\\\.bias\"], " \
    "\"parameter_to_average_patterns\": [], " \
    "\"parameter_with_row_parallelism_patterns\": [\"\\\\d+\\\\.self_attention\\\\.dense\\\\.weight\", " \
    "\"\\\\d+\\\\.mlp\\\\.dense_4h_to_h\\\\.weight\"], " \
    "\"parameter_with_2_sub_params_cat_dim_0\": []}"

/* Describe a dict with one list of one pattern and the sizes. */
static struct pk *block_of(struct arena *a, const char *list, const char *pattern)
{
    struct pk *d = pk_dict(a), *l = pk_list(a);

    pk_add(a, l, pk_str(a, pattern));
    pk_set_str(a, d, "universal_checkpoint_version", pk_float(a, 0.2));
    pk_set_str(a, d, "padded_vocab_size", pk_int(a, 48));
    if (list)
        pk_set_str(a, d, list, l);
    return d;
}

/* Change to no patterns, so that every parameter is concatenated, as a run at TP 1 may do. */
static void say_nothing(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "universal_checkpoint_info", block_of(a, NULL, ""));
}

/* Change to patterns that fit the model in another spelling. */
static void say_own(struct arena *a, struct pk *root)
{
    static const char *const copies[] = {
        "\\d+.input_layernorm", "\\d+.post_attention_layernorm", "\\d+.self_attention.dense.bias",
        "\\d+.mlp.dense_4h_to_h.bias", "\\d+.weight", "\\d+.bias", "tied_modules.embed.word_embeddings.norm",
    };
    struct pk *d = block_of(a, "vocabulary_parameter_patterns", "tied_modules.embed.word_embeddings.weight");
    struct pk *rows = pk_list(a), *list = pk_list(a);

    for (int i = 0; i < 7; i++)
        pk_add(a, list, pk_str(a, copies[i]));
    pk_add(a, rows, pk_str(a, "\\d+.mlp.dense_4h_to_h.weight"));
    pk_add(a, rows, pk_str(a, "\\d+.self_attention.dense.weight"));
    pk_set_str(a, d, "tp_replicated_parameter_patterns", list);
    pk_set_str(a, d, "parameter_with_row_parallelism_patterns", rows);
    pk_set_str(a, d, "affine_map", pk_dict(a));
    pk_set_str(a, root, "universal_checkpoint_info", d);
}

/* Change to a pattern that matches no parameter. DeepSpeed's converter would stop. */
static void say_too_much(struct arena *a, struct pk *root)
{
    say_own(a, root);
    pk_add(a, pk_get(pk_get(root, "universal_checkpoint_info"), "parameter_with_row_parallelism_patterns"),
           pk_str(a, "\\d+.mlp.made_up.weight"));
}

static void for_deepspeed(void **state)
{
    const char *bloom = "tests/data/bloom-tp2pp2dp2/global_step20", *gpt2 = "tests/data/gpt2-tp2pp2dp1/global_step20";
    char *out = resh_in_scratch("out");
    struct ds_request q = resh_to_topology(1, 1, 1);

    (void)state;
    resh_do(bloom, out, &q);
    expect_said(
        "universal_checkpoint_info",
        BLOCK_HEAD(
            "257",
            "512") "\"pipeline_replicated_parameter_patterns\": [\"tied_modules\\\\.embed\\\\.word_embeddings\\\\.weight\"], "
                   "\"tp_replicated_parameter_patterns\": [\"tied_modules\\\\.embed\\\\.word_embeddings\\\\.norm\\\\.weight\", "
                   "\"tied_modules\\\\.embed\\\\.word_embeddings\\\\.norm\\\\.bias\", " BLOCK_LAYER);
    /* The earlier path is in args, and the contents of the file are kept as well. */
    expect_said("ds_config", "{\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": 1, \"steps_per_print\": 2000, "
                "\"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 0}, \"bf16\": {\"enabled\": true}, "
                "\"zero_allow_untested_optimizer\": true, \"wall_clock_breakdown\": false}");
    resh_do(gpt2, out, &q);
    expect_said("universal_checkpoint_info", BLOCK_HEAD("257", "512")
                "\"pipeline_replicated_parameter_patterns\": [\"tied_modules\\\\.embed\\\\.word_embeddings\\\\.weight\", "
                "\"tied_modules\\\\.embed\\\\.position_embeddings\\\\.weight\"], "
                "\"tp_replicated_parameter_patterns\": [\"tied_modules\\\\.embed\\\\.position_embeddings\\\\.weight\", "
                BLOCK_LAYER);
    free(out);
}

/* A block that merges the target correctly is kept, except for the sizes. Any other block is replaced. */
static void block_of_the_source(void **state)
{
    struct { void (*edit)(struct arena *a, struct pk *root); int stays; } cases[] = {
        { say_own, 1 }, { say_nothing, 0 }, { say_too_much, 0 },
    };
    struct ckptgen g = resh_small_model(1, 2, 2);
    struct ds_request q = resh_to_topology(2, 1, 1);
    char *in, *out = resh_in_scratch("out");

    (void)state;
    q.vocab = 80;
    for (int i = 0; i < 3; i++) {
        char *got;

        in = resh_generate(&g, "a");
        rewrite(in, "mp_rank_00_model_states.pt", cases[i].edit);
        rewrite(in, "mp_rank_01_model_states.pt", cases[i].edit);
        resh_do(in, out, &q);
        resh_expect_sound(out);
        got = said("universal_checkpoint_info");
        assert_int_equal(!strstr(got, "\\\\.self_attention\\\\.dense\\\\.weight"), cases[i].stays);
        assert_non_null(strstr(got, "\"padded_vocab_size\": 80"));
        assert_null(strstr(got, "made_up"));
        assert_null(strstr(got, "affine_map"));
        free(got);
        free(in);
    }
    free(out);
}

/* Microsoft's sequence-parallel ranks count among the data-parallel ones. */
static void say_sequence_ranks(struct arena *a, struct pk *root)
{
    pk_set_str(a, pk_get(root, "args"), "ds_sequence_parallel_size", pk_int(a, 2));
    pk_set_str(a, pk_get(root, "args"), "data_parallel_size", pk_int(a, 2));
}

static void degrees_of_forks(void **state)
{
    struct ckptgen g = resh_small_model(1, 1, 4);
    struct ds_request q = resh_to_topology(2, 1, 6);
    char *in = resh_generate(&g, "a"), *out = resh_in_scratch("out");

    (void)state;
    rewrite(in, "mp_rank_00_model_states.pt", say_sequence_ranks);
    resh_do(in, out, &q);
    resh_expect_sound(out);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "args", "data_parallel_size"), 3);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "args", "ds_sequence_parallel_size"), 2);
    q = resh_to_topology(1, 1, 3);
    resh_do(in, out, &q);
    resh_expect_sound(out);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "args", "data_parallel_size"), 3);
    assert_int_equal(value(out, "mp_rank_00_model_states.pt", "args", "ds_sequence_parallel_size"), 1);
    free(in);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vocabulary), cmocka_unit_test(conventions), cmocka_unit_test(surgery),
        cmocka_unit_test(refusals), cmocka_unit_test(lone_ends), cmocka_unit_test(elastic_zero), cmocka_unit_test(untied_embeddings),
        cmocka_unit_test(drifted_replicas), cmocka_unit_test(for_deepspeed), cmocka_unit_test(block_of_the_source),
        cmocka_unit_test(degrees_of_forks),
    };

    return cmocka_run_group_tests(tests, resh_make_scratch, resh_remove_scratch);
}
