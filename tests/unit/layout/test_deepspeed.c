/*
 * test_deepspeed.c - read a sharded tag
 *
 * The reference's own checkpoints are compared with its own conversion. The worked example of the format notes
 * follows, and one case for every fault that tables can show, each with its complete message.
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

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/ckptgen.h"

#define BLOOM "tests/data/bloom-tp2pp2dp2"
#define GPT2 "tests/data/gpt2-tp2pp2dp1"

static char scratch[512];       /* a fresh folder for each test */
static char tag[600];           /* scratch/global_step<N> */

static int make_scratch(void **state)
{
    const char *tmp = getenv("TMPDIR");

    (void)state;
    snprintf(scratch, sizeof scratch, "%s/test_deepspeed.XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    struct err e = {0};

    (void)state;
    return dir_remove(scratch, &e);
}

static struct source *open_clean(const char *path, const struct source_opts *o)
{
    struct err e = {0};
    struct source *s = source_open(path, o, NULL, &e);

    if (!s)
        fail_msg("%s", e.msg);
    return s;
}

/* ---- the reference's own files ---- */

/* The merged tensor, replicas averaged as the reference does. Caller frees. */
static void *merged(const struct source *s, const struct tmap *m)
{
    void *copy[16], *out;
    int n = m->op == TMAP_REPLICAS ? m->n_slices : 1;
    struct err e = {0};

    assert_true(n <= 16);
    for (int i = 0; i < n; i++) {
        copy[i] = malloc(m->len);
        if (tmap_read(m, s->files, (struct tmap_range){ i, 0, m->len }, copy[i], &e) < 0)
            fail_msg("%s", e.msg);
    }
    out = copy[0];
    if (n > 1)
        replicas_combine((const void *const *)copy, n, m->len, m->dtype, REPLICAS_AVERAGE, out);
    for (int i = 1; i < n; i++)
        free(copy[i]);
    return out;
}

/* One state of one parameter against zero/<name>/<state>.pt of a universal folder. */
static void compare_universal(const struct source *s, const struct param *p, enum state st, const char *folder)
{
    char *path = str_fmt("%s/zero/%s/%s.pt", folder, p->name, state_name(st));
    struct files *f = files_new();
    struct err e = {0};
    int file = files_add_path(f, path, &e);
    struct pt *pt = file < 0 ? NULL : pt_open(f, file, &e);
    struct pt_tensor t;
    void *got = merged(s, p->state[st]), *want;

    if (!pt || !pt_tensor(pt, pk_get(pt_root(pt), "param"), &t))
        fail_msg("%s: %s", path, e.msg);
    assert_int_equal(t.ndim, p->ndim);
    for (int i = 0; i < t.ndim; i++)
        assert_int_equal(t.shape[i], p->shape[i]);
    assert_int_equal(p->state[st]->len, t.n_elems * 4);
    want = malloc(p->state[st]->len);
    if (files_read_extent(f, &(struct extent){ t.record, t.at, p->state[st]->len }, want, &e) < 0)
        fail_msg("%s", e.msg);
    if (memcmp(got, want, p->state[st]->len) != 0)
        fail_msg("%s %s is not the reference's", p->name, state_name(st));
    free(want);
    free(got);
    pt_close(pt);
    files_free(f);
    free(path);
}

static void test_bloom_is_the_references(void **state)
{
    struct source *s = open_clean(BLOOM, NULL);

    (void)state;
    assert_int_equal(s->n_params, 3 + 4 * 12 + 2);
    for (int i = 0; i < s->n_params; i++)
        for (int st = STATE_FP32; st < STATE_N; st++)
            compare_universal(s, &s->param[i], (enum state)st, BLOOM "/global_step20_universal");
    source_close(s);
}

static void test_gpt2_is_the_references(void **state)
{
    struct source *s = open_clean(GPT2, NULL);
    FILE *f = fopen(GPT2 "/universal.crc", "r");
    char name[128], word[16];
    unsigned crc;
    long len;
    int n = 0;

    (void)state;
    assert_non_null(f);
    while (fscanf(f, "%127s %15s %ld %x", name, word, &len, &crc) == 4) {
        const struct param *p = source_param(s, name);
        const struct tmap *m;
        void *got;

        if (!p)
            fail_msg("no %s", name);
        m = p->state[state_by_name(word)];
        assert_int_equal(m->len, len);
        got = merged(s, m);
        if (crc_bytes(0, got, m->len) != crc)
            fail_msg("%s %s is not the reference's", name, word);
        free(got);
        n++;
    }
    fclose(f);
    assert_int_equal(n, 3 * (s->n_params - 1));
    source_close(s);
}

/* The position table is replicated, whole on the first stage; the last stage's is another tensor. */
static void test_gpt2_positions(void **state)
{
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(GPT2, NULL, r, &e);
    const struct param *p = source_param(s, "tied_modules.embed.position_embeddings.weight");
    void *first = merged(s, p->state[STATE_FP32]), *last = merged(s, p->tied[STATE_FP32]);

    (void)state;
    assert_int_equal(p->merge, MERGE_REPLICATED);
    assert_int_equal(p->shape[0], 128);
    assert_int_equal(p->state[STATE_FP32]->len, 128 * 64 * 4);
    assert_int_equal(p->tied[STATE_FP32]->len, 128 * 64 * 4);
    assert_int_not_equal(memcmp(first, last, 128 * 64 * 4), 0);
    assert_null(p->tied[STATE_BF16]);
    assert_int_equal(report_n(r), 1);
    assert_string_equal(report_get(r, 0)->code, "tied_positions");
    free(first);
    free(last);
    source_close(s);
    report_free(r);
}

/* bf16 comes from other files by another way; rounding the masters must give it, slice by slice. */
static void test_bf16_is_rounded_fp32(void **state)
{
    struct source *s = open_clean(BLOOM, NULL);

    (void)state;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        const struct tmap *lo = p->state[STATE_BF16], *hi = p->state[STATE_FP32];
        uint16_t *a = malloc(lo->len);
        float *b = malloc(hi->len);
        struct err e = {0};

        assert_int_equal(lo->dtype, DTYPE_BF16);
        assert_int_equal(lo->len * 2, hi->len);
        for (int k = 0; k < (lo->op == TMAP_REPLICAS ? lo->n_slices : 1); k++) {
            assert_int_equal(tmap_read(lo, s->files, (struct tmap_range){ k, 0, lo->len }, a, &e), 0);
            assert_int_equal(tmap_read(hi, s->files, (struct tmap_range){ k, 0, hi->len }, b, &e), 0);
            for (uint64_t j = 0; j < lo->len / 2; j++)
                if (a[j] != f32_to_bf16(b[j]))
                    fail_msg("%s[%d]: bf16 %04x, master %g", p->name, (int)j, a[j], (double)b[j]);
        }
        free(a);
        free(b);
    }
    source_close(s);
}

static void test_tied_copy(void **state)
{
    struct source *s = open_clean(BLOOM, NULL);
    int n = 0;

    (void)state;
    assert_true(s->tied_embedding);
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            const struct param *p = &s->param[i];
            void *a, *b;

            if (!p->tied[st])
                continue;
            a = merged(s, p->state[st]);
            b = merged(s, p->tied[st]);
            assert_memory_equal(a, b, p->state[st]->len);
            free(a);
            free(b);
            n++;
        }
    assert_int_equal(n, 3);
    source_close(s);
}

static void test_order(void **state)
{
    static const char *const want[] = {
        "tied_modules.embed.word_embeddings.weight", "tied_modules.embed.word_embeddings.norm.weight",
        "tied_modules.embed.word_embeddings.norm.bias", "3.input_layernorm.weight", "3.input_layernorm.bias",
        "3.self_attention.query_key_value.weight", "3.self_attention.query_key_value.bias",
        "3.self_attention.dense.weight", "3.self_attention.dense.bias", "3.post_attention_layernorm.weight",
        "3.post_attention_layernorm.bias", "3.mlp.dense_h_to_4h.weight", "3.mlp.dense_h_to_4h.bias",
        "3.mlp.dense_4h_to_h.weight", "3.mlp.dense_4h_to_h.bias", "4.input_layernorm.weight",
    };
    struct source *s = open_clean(BLOOM, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_string_equal(s->param[i].name, want[i]);
    assert_string_equal(s->param[s->n_params - 1].name, "8.bias");
    source_close(s);
}

static void check_run_state(const struct source *s)
{
    assert_ptr_equal(s->layout, &deepspeed_layout);
    assert_string_equal(s->path, BLOOM "/global_step20");
    assert_string_equal(s->tag, "global_step20");
    assert_int_equal(topo_world(s->topo), 8);
    assert_int_equal(s->n_files, 12 + 4 + 8);
    assert_int_equal(s->run.iteration, 20);
    assert_int_equal(s->run.consumed_samples, 180);
    assert_int_equal(s->run.consumed_tokens, 23040);
    assert_int_equal(s->run.opt_step, 21);
    assert_true(s->run.step_in_state && s->run.step_is_tensor);
    assert_int_equal(s->run.n_groups, 3);
    assert_string_equal(s->run.torch_dialect, "torch < 2");
    assert_string_equal(s->run.ds_version, "0.0.0");
    assert_true(s->run.checkpoint_version >= 3 && s->run.checkpoint_version <= 3);
    assert_non_null(s->run.param_groups);
    assert_int_equal(s->config.n_layers, 4);
    assert_int_equal(s->config.vocab, 512);
    assert_int_equal(s->config.vocab_tokens, 257);
    assert_string_equal(s->config.position, "alibi");
    assert_true(s->tied_embedding);
    assert_false(s->zero_stage_1);
}

static void test_run_state(void **state)
{
    static const struct source_opts summary = { .no_tensors = true }, one = { .threads = 1 };
    struct source *s = open_clean(BLOOM, NULL);

    (void)state;
    check_run_state(s);
    source_close(s);
    s = open_clean(BLOOM "/global_step20/", &one);
    check_run_state(s);
    source_close(s);
    s = open_clean(BLOOM, &summary);
    check_run_state(s);
    assert_int_equal(s->n_params, 0);
    source_close(s);
}

static void test_without_optimizer(void **state)
{
    static const struct source_opts o = { .no_optimizer = true };
    struct source *s = open_clean(BLOOM, &o);

    (void)state;
    assert_int_equal(s->n_params, 53);
    for (int i = 0; i < s->n_params; i++) {
        assert_non_null(s->param[i].state[STATE_BF16]);
        assert_null(s->param[i].state[STATE_FP32]);
    }
    source_close(s);
}

/* A record has one number whatever the threads did: plans that are resumed or shared out depend on it. */
static void test_numbers_are_stable(void **state)
{
    static const struct source_opts one = { .threads = 1 }, many = { .threads = 16 };
    struct source *a = open_clean(BLOOM, &one);

    (void)state;
    for (int round = 0; round < 5; round++) {
        struct source *b = open_clean(BLOOM, &many);

        assert_int_equal(files_n_records(a->files), files_n_records(b->files));
        for (int i = 0; i < files_n_records(a->files); i++) {
            const struct record *x = files_record(a->files, i), *y = files_record(b->files, i);

            assert_string_equal(files_name(a->files, x->file), files_name(b->files, y->file));
            assert_int_equal(x->file, y->file);
            assert_int_equal(x->at, y->at);
            assert_string_equal(x->name, y->name);
        }
        source_close(b);
    }
    source_close(a);
}

/* ---- the worked example ---- */

static struct ckptgen small(int tp, int pp, int dp)
{
    struct ckptgen g;

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = tp, .pp = pp, .dp = dp };
    g.n_layers = 2;
    g.hidden = 16;
    g.vocab_tokens = 50;
    g.vocab = 64;
    g.partition = "type:transformer";
    g.slim = true;
    return g;
}

/* Writes the set into scratch and leaves its tag folder in `tag`. */
static void write_set(const struct ckptgen *g)
{
    struct err e = {0};

    if (ckptgen_make(g, scratch, &e) < 0)
        fail_msg("%s", e.msg);
    snprintf(tag, sizeof tag, "%s/global_step%lld", scratch, (long long)g->iteration);
}

static struct source *open_set(const struct ckptgen *g)
{
    write_set(g);
    return open_clean(scratch, NULL);
}

struct fragment {
    const char *param;
    int n;
    struct { uint64_t start, elems; } at[3];
};

static void check_fragments(const struct source *s, const struct fragment *want, int n)
{
    for (int i = 0; i < n; i++) {
        const struct param *p = source_param(s, want[i].param);
        const struct tmap_slice *slice = &p->state[STATE_FP32]->slice[0];

        if (slice->n_extents != want[i].n)
            fail_msg("%s: %d fragments, want %d", p->name, slice->n_extents, want[i].n);
        for (int k = 0; k < want[i].n; k++) {
            assert_int_equal(slice->extent[k].at, want[i].at[k].start * 4);
            assert_int_equal(slice->extent[k].len, want[i].at[k].elems * 4);
        }
    }
}

static void test_worked_example(void **state)
{
    static const struct fragment dp2[] = {
        { "tied_modules.embed.word_embeddings.weight", 2, { { 0, 448 }, { 0, 64 } } },
        { "3.self_attention.query_key_value.weight", 1, { { 64, 384 } } },
        { "3.mlp.dense_h_to_4h.weight", 2, { { 128, 448 }, { 0, 64 } } },
        { "3.mlp.dense_4h_to_h.weight", 1, { { 64, 512 } } },
        { "3.self_attention.dense.bias", 2, { { 88, 4 }, { 0, 12 } } },
        { "4.post_attention_layernorm.bias", 2, { { 88, 4 }, { 0, 12 } } },
        { "6.bias", 1, { { 76, 16 } } },
    };
    /* DP 3: two groups are padded, the embedding and others straddle three ranks or begin again. */
    static const struct fragment dp3[] = {
        { "tied_modules.embed.word_embeddings.weight", 2, { { 0, 300 }, { 0, 212 } } },
        { "3.self_attention.query_key_value.weight", 2, { { 212, 88 }, { 0, 296 } } },
        { "3.mlp.dense_h_to_4h.weight", 2, { { 128, 256 }, { 0, 256 } } },
        { "3.input_layernorm.bias", 2, { { 48, 14 }, { 0, 2 } } },
        { "3.post_attention_layernorm.bias", 2, { { 58, 4 }, { 0, 12 } } },
    };
    struct ckptgen g = small(2, 2, 2);
    struct source *s = open_set(&g);

    (void)state;
    assert_int_equal(s->n_params, 29);
    check_fragments(s, dp2, sizeof dp2 / sizeof *dp2);
    source_close(s);
    g = small(2, 2, 3);
    g.iteration++;
    s = open_set(&g);
    check_fragments(s, dp3, sizeof dp3 / sizeof *dp3);
    source_close(s);
}

/* With one tensor rank every map is one slice end to end; with one stage nothing is tied. */
static void test_one_rank(void **state)
{
    struct ckptgen g = small(1, 1, 1);
    struct source *s = open_set(&g);

    (void)state;
    assert_false(s->tied_embedding);
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++) {
            assert_int_equal(s->param[i].state[st]->op, TMAP_CONCAT);
            assert_int_equal(s->param[i].state[st]->n_slices, 1);
            assert_null(s->param[i].tied[st]);
        }
    source_close(s);
}

/* Padding of more than a partition: P = 2 in a group of few elements on many ranks. */
static void test_wide_padding(void **state)
{
    struct ckptgen g = small(2, 1, 64);
    struct report *r = report_new();
    struct err e = {0};
    struct source *s;
    int n = 0;

    (void)state;
    write_set(&g);
    s = source_open(scratch, NULL, r, &e);
    assert_non_null(s);
    assert_int_equal(report_count(r, SEV_ERROR), 0);
    for (int i = 0; i < report_n(r); i++)
        n += strcmp(report_get(r, i)->code, "padding") == 0;
    assert_int_equal(n, 2);
    for (int i = 0; i < s->n_params; i++)
        assert_non_null(s->param[i].state[STATE_EXP_AVG_SQ]);
    source_close(s);
    report_free(r);
}

/* ---- faults ---- */

/* Edit the tree of a .pt file in place. */
static void edit(const char *name, void (*fn)(struct arena *a, struct pk *root))
{
    char *path = path_join(tag, name), *prefix;
    struct files *f = files_new();
    struct err e = {0};
    int file = files_add_path(f, path, &e);
    struct pt *pt = file < 0 ? NULL : pt_open(f, file, &e);
    struct arena *a = arena_new(0);
    struct pk *root;
    uint8_t *out = NULL;
    uint64_t size = 0;

    if (!pt)
        fail_msg("%s", e.msg);
    root = pk_copy(a, pt_root(pt));
    fn(a, root);
    prefix = str_fmt("%s", pt_prefix(pt));
    if (pt_build(prefix, root, pt, f, &out, &size, &e) < 0 || file_replace(path, out, size, &e) < 0)
        fail_msg("%s", e.msg);
    free(out);
    free(prefix);
    arena_free(a);
    pt_close(pt);
    files_free(f);
    free(path);
}

static void in_tag(char buf[700], const char *name)
{
    snprintf(buf, 700, "%s/%s", tag, name);
}

static void copy_to(const char *from, const char *to)
{
    char a[700], b[700], *text;
    struct err e = {0};
    uint64_t n;

    in_tag(a, from);
    in_tag(b, to);
    text = file_slurp(a, 1 << 24, &n, &e);
    if (!text || file_replace(b, text, n, &e) < 0)
        fail_msg("%s", e.msg);
    free(text);
}

static void remove_in_tag(const char *name)
{
    char path[700];

    in_tag(path, name);
    assert_int_equal(unlink(path), 0);
}

#define MP0 "mp_rank_00_model_states.pt"
#define MP1 "mp_rank_01_model_states.pt"
#define MP2 "mp_rank_02_model_states.pt"
#define MP3 "mp_rank_03_model_states.pt"
#define ZERO(dp, mp) "bf16_zero_pp_rank_" #dp "_mp_rank_" #mp "_optim_states.pt"
#define LAYER(n, tp) "layer_" #n "-model_" #tp "-model_states.pt"

static struct pk *opt_of(struct pk *root) { return pk_get(root, "optimizer_state_dict"); }

static struct pk *item_of(const struct pk *list, uint32_t i)
{
    uint32_t n;
    struct pk **item = pk_items(list, &n);

    assert_true(item && i < n);
    return item[i];
}

/* Value of the i-th pair. */
static struct pk *value_of(const struct pk *dict, uint32_t i)
{
    uint32_t n;
    struct pk **pair = pk_pairs(dict, &n);

    assert_true(pair && i < n);
    return pair[2 * i + 1];
}

static void lose_dp(struct arena *a, struct pk *root)
{
    (void)a;
    pk_get(root, "dp_world_size")->i = 4;
}

static void other_iteration(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "iteration", pk_int(a, 95100));
}

static void no_shapes(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "param_shapes", pk_none(a));
}

static void old_qkv(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "checkpoint_version", pk_int(a, 0));
}

static void other_vocab(struct arena *a, struct pk *root)
{
    pk_set_str(a, pk_get(root, "checkpoint_info"), "padded_vocab_size", pk_int(a, 128));
}

static void more_tokens(struct arena *a, struct pk *root)
{
    pk_set_str(a, pk_get(root, "checkpoint_info"), "original_vocab_size", pk_int(a, 65));
}

/* Group 2's first name: the last stage's first LayerNorm becomes another layer's, on both ranks. */
static void steal_name(struct arena *a, struct pk *root)
{
    struct pk *group = item_of(pk_get(root, "param_shapes"), 2);
    uint32_t n;

    pk_pairs(group, &n)[0] = pk_str(a, "3.input_layernorm.weight");
}

static void other_name(struct arena *a, struct pk *root)
{
    struct pk *group = item_of(pk_get(root, "param_shapes"), 1);
    uint32_t n;

    pk_pairs(group, &n)[0] = pk_str(a, "3.self_attention.densely.weight");
}

static void climbing_name(struct arena *a, struct pk *root)
{
    struct pk *group = item_of(pk_get(root, "param_shapes"), 1);
    uint32_t n;

    pk_pairs(group, &n)[0] = pk_str(a, "../../x");
}

static void other_shape(struct arena *a, struct pk *root)
{
    (void)a;
    item_of(value_of(item_of(pk_get(root, "param_shapes"), 1), 0), 0)->i = 15;
}

static void huge_shape(struct arena *a, struct pk *root)
{
    (void)a;
    item_of(value_of(item_of(pk_get(root, "param_shapes"), 1), 0), 0)->i = INT64_MAX / 4;
}

static void no_optimizer_dict(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "optimizer_state_dict", pk_none(a));
}

static void no_fp32(struct arena *a, struct pk *root)
{
    (void)a;
    pk_remove(opt_of(root), "single_partition_of_fp32_groups");
}

static void fewer_groups(struct arena *a, struct pk *root)
{
    struct pk *list = pk_get(opt_of(root), "single_partition_of_fp32_groups");

    (void)a;
    list->n--;
}

static void swap_moment(struct arena *a, struct pk *root)
{
    struct pk *state = pk_get(pk_get(opt_of(root), "base_optimizer_state"), "state");

    pk_set_str(a, value_of(state, 1), "exp_avg", pk_get(value_of(state, 0), "exp_avg"));
}

static void swap_groups(struct arena *a, struct pk *root)
{
    struct pk *opt = opt_of(root), *state = pk_get(pk_get(opt, "base_optimizer_state"), "state");
    struct pk *fp32 = pk_get(opt, "single_partition_of_fp32_groups");

    fp32->item[1] = fp32->item[0];
    pk_set_str(a, value_of(state, 1), "exp_avg", pk_get(value_of(state, 0), "exp_avg"));
    pk_set_str(a, value_of(state, 1), "exp_avg_sq", pk_get(value_of(state, 0), "exp_avg_sq"));
}

static void wrong_padding(struct arena *a, struct pk *root)
{
    (void)a;
    item_of(pk_get(opt_of(root), "group_paddings"), 0)->i = 6;
}

static void wrong_count(struct arena *a, struct pk *root)
{
    (void)a;
    item_of(pk_get(opt_of(root), "partition_count"), 0)->i = 8;
}

static void wrong_start(struct arena *a, struct pk *root)
{
    struct pk *group = item_of(pk_get(opt_of(root), "param_slice_mappings"), 0);

    (void)a;
    pk_get(value_of(group, 1), "start")->i = 60;
}

static void wrong_mapped_name(struct arena *a, struct pk *root)
{
    struct pk *group = item_of(pk_get(opt_of(root), "param_slice_mappings"), 0);
    uint32_t n;

    pk_pairs(group, &n)[2] = pk_str(a, "3.mlp.dense_h_to_4h.weight");
}

static void momentum(struct arena *a, struct pk *root)
{
    struct pk *state = pk_get(pk_get(opt_of(root), "base_optimizer_state"), "state");

    pk_set_str(a, value_of(state, 0), "momentum_buffer", pk_get(value_of(state, 0), "exp_avg"));
}

static void other_step(struct arena *a, struct pk *root)
{
    struct pk *state = pk_get(pk_get(opt_of(root), "base_optimizer_state"), "state");

    for (uint32_t g = 0; g < 3; g++)
        pk_set_str(a, value_of(state, g), "step", pk_int(a, 7));
}

static void one_other_step(struct arena *a, struct pk *root)
{
    struct pk *state = pk_get(pk_get(opt_of(root), "base_optimizer_state"), "state");

    pk_set_str(a, value_of(state, 1), "step", pk_int(a, 7));
}

static struct pk *group_at(struct pk *root, uint32_t g)
{
    return item_of(pk_get(pk_get(opt_of(root), "base_optimizer_state"), "param_groups"), g);
}

static void claim_twice(struct arena *a, struct pk *root)
{
    (void)a;
    item_of(pk_get(group_at(root, 1), "params"), 0)->i = 0;
}

static void claim_two(struct arena *a, struct pk *root)
{
    pk_add(a, pk_get(group_at(root, 1), "params"), pk_int(a, 2));
}

static void orphan(struct arena *a, struct pk *root)
{
    struct pk *state = pk_get(pk_get(opt_of(root), "base_optimizer_state"), "state");

    pk_set(a, state, pk_int(a, 9), value_of(state, 0));
}

/* exp_avg of group 0 is its exp_avg_sq, too: as long, and whole by itself. */
static void share_moments(struct arena *a, struct pk *root)
{
    struct pk *state = pk_get(pk_get(opt_of(root), "base_optimizer_state"), "state");

    pk_set_str(a, value_of(state, 0), "exp_avg", pk_get(value_of(state, 0), "exp_avg_sq"));
}

static void other_rate(struct arena *a, struct pk *root)
{
    pk_set_str(a, group_at(root, 0), "lr", pk_float(a, 0.5));
}

static void other_seed(struct arena *a, struct pk *root)
{
    pk_set_str(a, pk_get(root, "args"), "seed", pk_int(a, 43));
}

static void other_rank(struct arena *a, struct pk *root)
{
    pk_set_str(a, pk_get(root, "args"), "rank", pk_int(a, 0));
}

static void new_key(struct arena *a, struct pk *root)
{
    pk_set(a, root, pk_str(a, "adapter.weight"), pk_get(root, "input_layernorm.weight"));
}

static void lost_key(struct arena *a, struct pk *root)
{
    (void)a;
    pk_remove(root, "input_layernorm.weight");
}

static void swap_layer_tensor(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "input_layernorm.weight", pk_get(root, "mlp.dense_h_to_4h.bias"));
}

enum act { EDIT, REMOVE, COPY };

/* One fault in a TP 2, PP 2, DP 2 set of the worked example, and the finding that it must cause. */
static const struct fault {
    enum act act;
    const char *name, *to;              /* COPY: a second file; EDIT: a second file to edit too */
    void (*fn)(struct arena *a, struct pk *root);
    enum severity severity;
    const char *code, *place;           /* place: the file's name, NULL: the tag folder */
    const char *text;                   /* with the parameter, when there is one */
} faults[] = {
    { REMOVE, ZERO(1, 03), NULL, NULL, SEV_ERROR, "missing_file", NULL,
      "missing bf16_zero_pp_rank_1_mp_rank_03_optim_states.pt (expected PP=2, TP=2, DP=2)" },
    { REMOVE, MP1, NULL, NULL, SEV_ERROR, "missing_file", NULL,
      "missing mp_rank_01_model_states.pt (expected PP=2, TP=2, DP=2)" },
    { REMOVE, LAYER(04, 01), NULL, NULL, SEV_ERROR, "missing_file", NULL,
      "missing layer_04-model_01-model_states.pt (expected PP=2, TP=2, DP=2)" },
    { COPY, ZERO(1, 03), ZERO(2, 03), NULL, SEV_ERROR, "extra_file", ZERO(2, 03),
      "has a rank outside of the topology PP=2, TP=2, DP=2" },
    { COPY, MP0, "mp_rank_07_model_states.pt", NULL, SEV_ERROR, "extra_file", "mp_rank_07_model_states.pt",
      "has a rank outside of the topology PP=2, TP=2, DP=2" },
    { COPY, LAYER(04, 00), LAYER(17, 00), NULL, SEV_ERROR, "extra_file", LAYER(17, 00), "no stage has layer 17" },
    { COPY, MP0, "mp_rank_00_model_states.copy.pt", NULL, SEV_WARNING, "extra_file", "mp_rank_00_model_states.copy.pt",
      "does not belong to the checkpoint, because no checkpoint file has this name" },
    { COPY, MP0, "mp_rank_0_model_states.pt", NULL, SEV_ERROR, "duplicate_file", "mp_rank_0_model_states.pt",
      "has the same rank as mp_rank_00_model_states.pt" },
    { COPY, ZERO(1, 03), "zero_pp_rank_1_mp_rank_03_optim_states.pt", NULL, SEV_ERROR, "two_prefixes", NULL,
      "both zero_pp_rank_* (1) and bf16_zero_pp_rank_* (8) present: two saves in one folder" },
    { EDIT, MP2, NULL, lose_dp, SEV_ERROR, "degrees", MP2, "records dp_world_size 4, but the folder has 2" },
    { EDIT, ZERO(1, 02), NULL, wrong_count, SEV_ERROR, "degrees", ZERO(1, 02),
      "records 8 data-parallel ranks (partition_count of group 0), but the folder has 2" },
    { EDIT, MP3, NULL, other_iteration, SEV_ERROR, "mixed_saves", MP3,
      "iteration 95100, others 20: the checkpoint mixes two saves" },
    { EDIT, ZERO(0, 01), NULL, other_step, SEV_ERROR, "mixed_saves", ZERO(0, 01),
      "optimizer step 7, others 21: the checkpoint mixes two saves" },
    { EDIT, ZERO(0, 01), NULL, one_other_step, SEV_ERROR, "mixed_saves", ZERO(0, 01),
      "optimizer step 21 in group 0, but 7 in group 1" },
    { EDIT, ZERO(1, 01), NULL, other_rate, SEV_ERROR, "mixed_saves", ZERO(1, 01),
      "optimizer learning rate 0.5, others 0.0019780636983972562: the checkpoint mixes two saves" },
    { EDIT, MP1, NULL, other_seed, SEV_ERROR, "mixed_saves", MP1,
      "args.seed 43, others 42: the checkpoint mixes two saves" },
    { EDIT, MP1, NULL, other_rank, SEV_ERROR, "other_rank", MP1,
      "has args.rank 0, but rank 1 in its name: it belongs to another rank" },
    { COPY, ZERO(0, 02), ZERO(0, 03), NULL, SEV_ERROR, "other_rank", ZERO(0, 03),
      "was saved as " ZERO(0, 02) " (the name inside the file), so it is another file under this name" },
    { COPY, LAYER(04, 01), LAYER(04, 00), NULL, SEV_ERROR, "other_rank", LAYER(04, 00),
      "was saved as " LAYER(04, 01) " (the name inside the file), so it is another file under this name" },
    { EDIT, ZERO(1, 00), NULL, claim_twice, SEV_ERROR, "groups", ZERO(1, 00),
      "param_groups[0] and param_groups[1] both claim optimizer state 0" },
    { EDIT, ZERO(1, 00), NULL, claim_two, SEV_ERROR, "groups", ZERO(1, 00),
      "param_groups[1] does not name one state, its flat tensor's" },
    { EDIT, ZERO(1, 00), NULL, orphan, SEV_ERROR, "groups", ZERO(1, 00),
      "an optimizer state belongs to no group of param_groups" },
    { EDIT, ZERO(1, 00), NULL, share_moments, SEV_ERROR, "overlap", ZERO(1, 00),
      "at byte 2112: parameter tied_modules.embed.word_embeddings.weight: its exp_avg_sq shares 256 bytes with exp_avg "
      "of parameter "
      "tied_modules.embed.word_embeddings.weight" },
    { EDIT, MP2, NULL, no_shapes, SEV_ERROR, "key", MP2,
      "key 'param_shapes' is missing or empty, so the tensors in the optimizer shards are unknown" },
    { EDIT, ZERO(1, 00), NULL, no_optimizer_dict, SEV_ERROR, "key", ZERO(1, 00),
      "key 'optimizer_state_dict' is missing" },
    { EDIT, ZERO(1, 00), NULL, no_fp32, SEV_ERROR, "key", ZERO(1, 00),
      "key 'single_partition_of_fp32_groups' is missing" },
    { EDIT, ZERO(1, 00), NULL, fewer_groups, SEV_ERROR, "groups", ZERO(1, 00),
      "param_shapes has 3 groups, but 2 are in single_partition_of_fp32_groups" },
    { EDIT, ZERO(1, 00), NULL, swap_moment, SEV_ERROR, "length", ZERO(1, 00),
      "group 1: fp32 has 576 elements, exp_avg 448" },
    { EDIT, ZERO(1, 00), NULL, swap_groups, SEV_ERROR, "partition", ZERO(1, 00),
      "group 1: 2 ranks x 448 elements (fp32) do not match 1152 parameters (+padding): 576 expected" },
    { EDIT, ZERO(1, 00), NULL, wrong_padding, SEV_ERROR, "padding", ZERO(1, 00),
      "group 0: padding 6 recorded, 0 expected" },
    { EDIT, ZERO(1, 00), NULL, wrong_start, SEV_ERROR, "mapping", ZERO(1, 00),
      "parameter 3.self_attention.query_key_value.weight: param_slice_mappings lists 384 elements at 60 of group 0, "
      "the partition rule gives 384 at 64" },
    { EDIT, ZERO(1, 00), NULL, wrong_mapped_name, SEV_ERROR, "mapping", ZERO(1, 00),
      "parameter 3.self_attention.query_key_value.weight: owns 384 elements from element 64 of group 0, "
      "but param_slice_mappings lists 3.mlp.dense_h_to_4h.weight there" },
    { COPY, ZERO(0, 01), ZERO(1, 01), NULL, SEV_ERROR, "mapping", ZERO(1, 01),
      "parameter tied_modules.embed.word_embeddings.weight: param_slice_mappings lists 448 elements at 0 of group 0, "
      "the partition rule gives 64 at 0" },
    { EDIT, MP1, NULL, other_shape, SEV_ERROR, "shape", MP1,
      "parameter 3.self_attention.dense.weight: shape [16, 8] on tp 0, [15, 8] on tp 1" },
    { EDIT, MP1, NULL, huge_shape, SEV_ERROR, "shape", MP1,
      "parameter 3.self_attention.dense.weight: param_shapes gives it an impossible shape" },
    { EDIT, MP1, NULL, other_name, SEV_ERROR, "names", MP1,
      "parameter 3.self_attention.densely.weight: stands where tensor rank 0 of this stage has "
      "3.self_attention.dense.weight" },
    { EDIT, MP1, NULL, climbing_name, SEV_ERROR, "param_name", MP1,
      "param_shapes: '../../x' cannot be a parameter's name" },
    { EDIT, MP2, MP3, steal_name, SEV_ERROR, "stage", NULL,
      "parameter 3.input_layernorm.weight: appears on stages 0 and 1" },
    { EDIT, LAYER(03, 01), NULL, new_key, SEV_ERROR, "unknown_key", LAYER(03, 01),
      "'adapter.weight' is not in the param_shapes of any stage" },
    { EDIT, LAYER(03, 01), NULL, lost_key, SEV_ERROR, "missing_key", LAYER(03, 01),
      "parameter 3.input_layernorm.weight: no file has a usable tensor for it" },
    { EDIT, LAYER(03, 01), NULL, swap_layer_tensor, SEV_ERROR, "shape", LAYER(03, 01),
      "parameter 3.input_layernorm.weight: is [32], param_shapes lists [16]" },
    { EDIT, MP0, NULL, other_vocab, SEV_ERROR, "vocab", MP0,
      "args records 64 padded vocabulary rows, but checkpoint_info records 128" },
    { EDIT, MP0, NULL, more_tokens, SEV_ERROR, "vocab", MP0, "the padded vocabulary has 64 rows, fewer than the 65 tokens" },
    { EDIT, MP0, MP1, old_qkv, SEV_ERROR, "checkpoint_version", MP0,
      "checkpoint_version 0 orders the rows of queries, keys and values differently, which is not supported" },
    { EDIT, ZERO(1, 00), NULL, momentum, SEV_ERROR, "optimizer", ZERO(1, 00),
      "group 0 has state 'momentum_buffer'; only Adam moments are supported" },
};

static void apply(const struct fault *f)
{
    if (f->act == REMOVE) {
        remove_in_tag(f->name);
    } else if (f->act == COPY) {
        copy_to(f->name, f->to);
    } else {
        edit(f->name, f->fn);
        if (f->to)
            edit(f->to, f->fn);
    }
}

static char *want_sentence(const struct fault *f)
{
    return f->place ? str_fmt("%s/%s: %s", tag, f->place, f->text) : str_fmt("%s: %s", tag, f->text);
}

/* The finding is among them. Whether the fault explains all the others is not checked. */
static void check_reported(const struct fault *f)
{
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(scratch, NULL, r, &e);
    char *want = want_sentence(f);
    bool found = false;

    if (!s)
        fail_msg("%s: %s", f->code, e.msg);
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *x = report_get(r, i);
        char *text = finding_text(x);

        found |= x->severity == f->severity && strcmp(x->code, f->code) == 0 && strcmp(text, want) == 0;
        free(text);
    }
    for (int i = 0; !found && i < report_n(r); i++) {
        char *text = finding_text(report_get(r, i));

        print_message("      %s: %s\n", report_get(r, i)->code, text);
        free(text);
    }
    if (!found)
        fail_msg("not said: %s: %s", f->code, want);
    free(want);
    source_close(s);
    report_free(r);
}

/* Without a report an ERROR fails the open, a WARNING does not. */
static void check_fails(const struct fault *f)
{
    struct err e = {0};
    struct source *s = source_open(scratch, NULL, NULL, &e);

    if ((s == NULL) != (f->severity == SEV_ERROR))
        fail_msg("%s: the open %s: %s", f->code, s ? "succeeded" : "failed", e.msg);
    if (!s)
        assert_int_equal(e.kind, ERR_DATA);
    source_close(s);
}

static void test_faults(void **state)
{
    struct ckptgen g = small(2, 2, 2);

    (void)state;
    g.iteration = 20;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        write_set(&g);
        apply(&faults[i]);
        check_reported(&faults[i]);
        check_fails(&faults[i]);
        assert_int_equal(remove_scratch(NULL), 0);
        assert_int_equal(make_scratch(NULL), 0);
    }
}

/* What is readable stays readable: parameters that a lost shard does not touch keep their maps. */
static void test_rest_is_readable(void **state)
{
    struct ckptgen g = small(2, 2, 2);
    struct report *r = report_new();
    struct err e = {0};
    struct source *s;

    (void)state;
    write_set(&g);
    remove_in_tag(ZERO(1, 00));
    s = source_open(scratch, NULL, r, &e);
    assert_non_null(s);
    assert_null(source_param(s, "3.mlp.dense_h_to_4h.weight")->state[STATE_FP32]);
    assert_non_null(source_param(s, "3.self_attention.dense.weight")->state[STATE_FP32]);
    assert_non_null(source_param(s, "4.mlp.dense_h_to_4h.weight")->state[STATE_FP32]);
    source_close(s);
    report_free(r);
}

static void cut_short(const char *name, off_t len)
{
    char path[700];

    in_tag(path, name);
    assert_int_equal(truncate(path, len), 0);
}

/* A file cut short, seen with its tables and from its size alone. */
static void test_cut_short(void **state)
{
    static const struct source_opts summary = { .no_tensors = true };
    struct ckptgen g = small(2, 2, 2);
    struct report *r = report_new();
    struct err e = {0};

    (void)state;
    g.hidden = 64;
    write_set(&g);
    cut_short(ZERO(1, 03), 5000);
    source_close(source_open(scratch, NULL, r, &e));
    assert_int_equal(report_n(r), 1);
    assert_string_equal(report_get(r, 0)->code, "unreadable");
    assert_non_null(strstr(report_get(r, 0)->text, ZERO(1, 03)));
    report_free(r);
    r = report_new();
    cut_short(LAYER(03, 00), 0);
    source_close(source_open(scratch, &summary, r, &e));
    assert_int_equal(report_n(r), 2);
    assert_string_equal(report_get(r, 0)->code, "short_file");
    assert_string_equal(report_get(r, 1)->code, "short_file");
    report_free(r);
}

/* ---- whole layouts ---- */

static void hold_weights(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "module", pk_dict(a));
}

static void hold_optimizer(struct arena *a, struct pk *root)
{
    pk_set_str(a, root, "optimizer", pk_dict(a));
}

static void no_save_optim(struct arena *a, struct pk *root)
{
    pk_set_str(a, pk_get(root, "args"), "no_save_optim", pk_bool(a, true));
}

/* Remove every file whose name begins so. */
static void remove_all(const char *prefix)
{
    char *command = str_fmt("rm -f '%s'/%s*", tag, prefix);

    assert_int_equal(system(command), 0);
    free(command);
}

static void expect_refusal(const char *path, const char *text)
{
    struct report *r = report_new();
    struct err e = {0};
    struct source *s = source_open(path, NULL, r, &e);

    if (s || strcmp(e.msg, text) != 0)
        fail_msg("got: %s\nwant: %s", s ? "(opened)" : e.msg, text);
    report_free(r);
}

static void test_refused(void **state)
{
    struct ckptgen g = small(1, 1, 1);
    struct report *r;
    struct source *s;
    struct err e = {0};
    char want[900];

    (void)state;
    write_set(&g);
    copy_to(MP0, "zero_pp_rank_0_mp_rank_00_model_states.pt");
    snprintf(want, sizeof want, "%s: zero_pp_rank_0_mp_rank_00_model_states.pt: holds weights of ZeRO-3 and layer files, so "
                                "the folder contains two saves; remove the files of one of them", tag);
    expect_refusal(scratch, want);
    remove_in_tag("zero_pp_rank_0_mp_rank_00_model_states.pt");

    copy_to(MP0, "layer_4_expert_0_mp_rank_00_model_states.pt");
    snprintf(want, sizeof want, "%s: layer_4_expert_0_mp_rank_00_model_states.pt: experts of DeepSpeed's MoE with "
             "layer files of the pipeline engine are not supported" SOURCE_NOT_CHECKED, tag);
    expect_refusal(scratch, want);
    remove_in_tag("layer_4_expert_0_mp_rank_00_model_states.pt");

    remove_all("bf16_zero_");
    edit(MP0, hold_optimizer);
    snprintf(want, sizeof want, "%s/" MP0 ": holds the optimizer state itself, and there are no zero_pp_rank_* files: "
             "fp16 without ZeRO is not supported", tag);
    expect_refusal(scratch, want);

    remove_all("layer_");
    edit(MP0, hold_weights);
    /* A run without ZeRO and without a pipeline is read; here the weights that param_shapes names are not there. */
    r = report_new();
    s = source_open(scratch, NULL, r, &e);
    if (!s)
        fail_msg("%s", e.msg);
    assert_ptr_equal(s->layout, &zero_layout);
    assert_int_equal(report_count(r, SEV_WARNING), 1);
    assert_string_equal(report_get(r, 0)->code, "no_optimizer");
    assert_int_equal(report_count(r, SEV_ERROR), s->n_params);
    assert_string_equal(report_get(r, 1)->code, "missing_key");
    source_close(s);
    report_free(r);
}

static void test_weights_only(void **state)
{
    struct ckptgen g = small(2, 1, 2);
    struct report *r = report_new();
    struct err e = {0};
    struct source *s;

    (void)state;
    write_set(&g);
    remove_all("bf16_zero_");
    s = source_open(scratch, NULL, r, &e);
    assert_non_null(s);
    assert_int_equal(report_count(r, SEV_ERROR), 1);
    assert_string_equal(report_get(r, 0)->code, "missing_file");
    assert_string_equal(report_get(r, 0)->text, "has no optimizer files such as "
                        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt: they are lost, or this is a backup of the "
                        "weights alone; export-hf writes the weights (with --config FILE if the model is neither BLOOM "
                        "nor GPT-2), reshape --weights-only writes a checkpoint for train --no-load-optim, and for "
                        "other models reshape --to dcp --ranks N --weights-only writes one");
    source_close(s);
    report_free(r);
    edit(MP0, no_save_optim);
    edit(MP1, no_save_optim);
    s = open_clean(scratch, NULL);
    assert_non_null(s->param[0].state[STATE_BF16]);
    source_close(s);
}

/* ---- variants ---- */

/* Rename by a shell pattern: what=with inside each matching name. */
static void rename_all(const char *pattern, const char *what, const char *with)
{
    char *command = str_fmt("cd '%s' && for f in %s; do mv $f $(echo $f | sed s/%s/%s/); "
                            "done", tag, pattern, what, with);

    assert_int_equal(system(command), 0);
    free(command);
}

/* Spellings of other times and tools. */
static void test_old_names(void **state)
{
    struct ckptgen g = small(2, 2, 2);
    struct source *s;

    (void)state;
    write_set(&g);
    rename_all("bf16_zero_*", "_optim_states", "optim_states");
    rename_all("layer_03*", "-model_states", "_model_states");
    s = open_clean(scratch, NULL);
    assert_int_equal(s->n_params, 29);
    for (int i = 0; i < s->n_params; i++)
        for (int st = 0; st < STATE_N; st++)
            assert_non_null(s->param[i].state[st]);
    source_close(s);
    rename_all("bf16_zero_*", "bf16_", "");
    source_close(open_clean(scratch, NULL));
    remove_in_tag("zero_pp_rank_1_mp_rank_00optim_states.pt");
    {
        char want[900];
        struct err e = {0};

        snprintf(want, sizeof want, "%s: missing zero_pp_rank_1_mp_rank_00optim_states.pt (expected PP=2, TP=2, "
                                    "DP=2)", tag);
        assert_null(source_open(scratch, NULL, NULL, &e));
        assert_string_equal(e.msg, want);
    }
}

static void test_numberings(void **state)
{
    static const struct { enum ckptgen_lnum lnum; const char *first, *last; } t[] = {
        { CKPTGEN_LNUM_NEW, "3.input_layernorm.weight", "6.bias" },
        { CKPTGEN_LNUM_OLD, "3.input_layernorm.weight", "7.bias" },
        { CKPTGEN_LNUM_MSMD, "2.input_layernorm.weight", "4.bias" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct ckptgen g = small(2, 2, 1);
        struct source *s;

        g.lnum = t[i].lnum;
        g.iteration += (int64_t)i;
        s = open_set(&g);
        assert_string_equal(s->param[3].name, t[i].first);
        assert_string_equal(s->param[s->n_params - 1].name, t[i].last);
        source_close(s);
    }
}

/* ZeRO-1's elastic form: the groups' states in a list, the step in a key of its own. */
static void make_elastic(struct arena *a, struct pk *root)
{
    struct pk *opt = opt_of(root), *state = pk_get(pk_get(opt, "base_optimizer_state"), "state"), *list = pk_list(a);

    for (uint32_t g = 0; g < 3; g++) {
        pk_remove(value_of(state, g), "step");
        pk_add(a, list, value_of(state, g));
    }
    pk_set_str(a, opt, "base_optimizer_state", list);
    pk_set_str(a, opt, "base_optimizer_state_step", pk_int(a, 21));
}

static void test_elastic(void **state)
{
    struct ckptgen g = small(1, 1, 2);
    struct source *s;

    (void)state;
    g.zero1 = true;
    write_set(&g);
    edit("zero_pp_rank_0_mp_rank_00_optim_states.pt", make_elastic);
    edit("zero_pp_rank_1_mp_rank_00_optim_states.pt", make_elastic);
    s = open_clean(scratch, NULL);
    assert_true(s->zero_stage_1);
    assert_int_equal(s->run.opt_step, 21);
    assert_false(s->run.step_in_state);
    assert_null(s->run.param_groups);
    for (int i = 0; i < s->n_params; i++)
        assert_non_null(s->param[i].state[STATE_EXP_AVG]);
    source_close(s);
}

/* A run whose files describe each slice of one weight as two stacked halves. */
static void say_halves(struct arena *a, struct pk *root)
{
    static const char *const copies[] = { "\\d+.input_layernorm.weight" };
    static const char *const halves[] = { "\\d+.mlp.dense_h_to_4h.weight" };
    struct pk *info = pk_dict(a), *list = pk_list(a);

    pk_add(a, list, pk_str(a, copies[0]));
    pk_set_str(a, info, "tp_replicated_parameter_patterns", list);
    list = pk_list(a);
    pk_add(a, list, pk_str(a, halves[0]));
    pk_set_str(a, info, "parameter_with_2_sub_params_cat_dim_0", list);
    pk_set_str(a, root, "universal_checkpoint_info", info);
}

/* [g0 u0 | g1 u1] becomes [g0 g1 | u0 u1], masters cut over DP 3 and bf16 alike. */
static void test_halves(void **state)
{
    struct ckptgen g = small(2, 2, 3);
    struct source *plain, *glu;

    (void)state;
    write_set(&g);
    plain = open_clean(scratch, NULL);
    for (int mp = 0; mp < 4; mp++) {
        char name[64];

        snprintf(name, sizeof name, "mp_rank_%02d_model_states.pt", mp);
        edit(name, say_halves);
    }
    glu = open_clean(scratch, NULL);
    for (int st = 0; st < STATE_N; st++) {
        const struct tmap *p = source_param(plain, "3.mlp.dense_h_to_4h.weight")->state[st];
        const struct tmap *h = source_param(glu, "3.mlp.dense_h_to_4h.weight")->state[st];
        uint8_t *a = merged(plain, p), *b = merged(glu, h);
        uint64_t q = p->len / 4;

        assert_int_equal(h->len, p->len);
        assert_memory_equal(b, a, q);
        assert_memory_equal(b + q, a + 2 * q, q);
        assert_memory_equal(b + 2 * q, a + q, q);
        assert_memory_equal(b + 3 * q, a + 3 * q, q);
        free(a);
        free(b);
    }
    assert_int_equal(source_param(glu, "3.mlp.dense_h_to_4h.weight")->merge, MERGE_CAT0_HALVES);
    source_close(plain);
    source_close(glu);
}

/* Ranks of two digits and more are numbers: 10 comes after 9, not after 1. */
static void test_many_ranks(void **state)
{
    struct ckptgen g = small(2, 1, 11);
    struct source *s = open_set(&g);
    const struct tmap *m = source_param(s, "tied_modules.embed.word_embeddings.weight")->state[STATE_FP32];
    int last = -1;

    (void)state;
    assert_int_equal(s->topo.dp, 11);
    for (int i = 0; i < m->slice[0].n_extents; i++) {
        int file = files_record(s->files, m->slice[0].extent[i].record)->file;

        for (int k = 0; k < s->n_files; k++)
            if (s->file[k].file == file) {
                assert_int_equal(s->file[k].dp, last + 1);
                last = s->file[k].dp;
            }
    }
    assert_true(last >= 1);
    source_close(s);
}

/* ---- paths ---- */

static void write_latest(const char *text)
{
    char *path = path_join(scratch, "latest");
    struct err e = {0};

    if (file_replace(path, text, strlen(text), &e) < 0)
        fail_msg("%s", e.msg);
    free(path);
}

static void test_latest(void **state)
{
    struct ckptgen g = small(1, 1, 1);
    char want[900], *path;

    (void)state;
    write_set(&g);
    path = path_join(scratch, "latest");
    write_latest(" \n");
    snprintf(want, sizeof want, "%s: is empty, but must contain the name of a checkpoint folder", path);
    expect_refusal(scratch, want);
    write_latest("global_step9");
    snprintf(want, sizeof want, "%s: names 'global_step9', but %s/global_step9 does not exist; give one of the "
                                "checkpoints next to it: global_step20", path, scratch);
    expect_refusal(scratch, want);
    write_latest("../elsewhere");
    snprintf(want, sizeof want, "%s: contains '../elsewhere', which is not the name of a folder next to it", path);
    expect_refusal(scratch, want);
    unlink(path);
    snprintf(want, sizeof want, "%s: has no file 'latest'; give one of the checkpoints in it: global_step20", scratch);
    expect_refusal(scratch, want);
    source_close(open_clean(tag, NULL));
    snprintf(want, sizeof want, "%s/nothing: cannot open: No such file or directory", scratch);
    path[0] = '\0';
    free(path);
    path = path_join(scratch, "nothing");
    expect_refusal(path, want);
    free(path);
}

/* A folder that contains itself through a link ends the walk; a link to a file is a file. */
static void test_links(void **state)
{
    struct ckptgen g = small(1, 1, 1);
    char a[700], b[700];

    (void)state;
    write_set(&g);
    in_tag(a, "loop");
    assert_int_equal(symlink(".", a), 0);
    in_tag(a, MP0);
    snprintf(b, sizeof b, "%s/elsewhere.pt", scratch);
    assert_int_equal(rename(a, b), 0);
    assert_int_equal(symlink(b, a), 0);
    source_close(open_clean(tag, NULL));
}

static void test_tar(void **state)
{
    struct ckptgen g = small(2, 1, 2);
    char *command, *archive = NULL, want[900];
    struct source *a, *b;

    (void)state;
    write_set(&g);
    archive = str_fmt("%s/all.tar", scratch);
    command = str_fmt("cd '%s' && tar cf all.tar latest global_step*", scratch);
    assert_int_equal(system(command), 0);
    free(command);
    a = open_clean(scratch, NULL);
    b = open_clean(archive, NULL);
    assert_string_equal(a->tag, b->tag);
    assert_int_equal(a->n_params, b->n_params);
    for (int i = 0; i < a->n_params; i++) {
        void *x = merged(a, a->param[i].state[STATE_FP32]), *y = merged(b, b->param[i].state[STATE_FP32]);

        assert_memory_equal(x, y, a->param[i].state[STATE_FP32]->len);
        free(x);
        free(y);
    }
    source_close(a);
    source_close(b);
    command = str_fmt("cd '%s' && rm all.tar && cp -r global_step* other && tar cf all.tar global_step* "
                      "other", scratch);
    assert_int_equal(system(command), 0);
    free(command);
    snprintf(want, sizeof want, "%s: holds more than one checkpoint ('%s/', 'other/') and no file 'latest'", archive,
             strrchr(tag, '/') + 1);
    expect_refusal(archive, want);
    free(archive);
}

int main(void)
{
#define SCRATCH(t) cmocka_unit_test_setup_teardown(t, make_scratch, remove_scratch)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bloom_is_the_references),
        cmocka_unit_test(test_gpt2_is_the_references),
        cmocka_unit_test(test_gpt2_positions),
        cmocka_unit_test(test_bf16_is_rounded_fp32),
        cmocka_unit_test(test_tied_copy),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_run_state),
        cmocka_unit_test(test_without_optimizer),
        cmocka_unit_test(test_numbers_are_stable),
        SCRATCH(test_worked_example),
        SCRATCH(test_one_rank),
        SCRATCH(test_wide_padding),
        SCRATCH(test_many_ranks),
        SCRATCH(test_faults),
        SCRATCH(test_rest_is_readable),
        SCRATCH(test_cut_short),
        SCRATCH(test_old_names),
        SCRATCH(test_numberings),
        SCRATCH(test_elastic),
        SCRATCH(test_halves),
        SCRATCH(test_refused),
        SCRATCH(test_weights_only),
        SCRATCH(test_latest),
        SCRATCH(test_links),
        SCRATCH(test_tar),
    };

    return cmocka_run_group_tests_name("deepspeed", tests, NULL, NULL);
}
