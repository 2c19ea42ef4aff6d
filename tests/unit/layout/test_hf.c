/*
 * test_hf.c - export to Transformers
 *
 * Golden sets are compared with an independent merge in Python (tests/data/hf), generated sets with the formula of
 * their values, in every form and topology.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/layout/universal/universal.h"
#include "libcommon/write/convert.h"
#include "libcommon/write/sink.h"
#include "tests/lib/hfdo.h"
#include "tests/lib/resh.h"

#define BLOOM "tests/data/bloom-tp2pp2dp2/global_step20"
#define GPT2  "tests/data/gpt2-tp2pp2dp1/global_step20"

static void export(const char *in, const char *out, const struct hfdo *h)
{
    struct err e = {0};

    resh_must(hfdo_export(in, out, h, &e) == 0, &e);
}

static void expect_refused(const char *in, const struct hfdo *h, enum err_kind kind, const char *want)
{
    char *out = resh_in_scratch("refused");
    struct err e = {0};

    assert_int_equal(hfdo_export(in, out, h, &e), -1);
    if (!strstr(e.msg, want))
        fail_msg("'%s', expected '%s'", e.msg, want);
    assert_int_equal(e.kind, kind);
    assert_int_not_equal(access(out, F_OK), 0);
    free(out);
}

static char *slurp(const char *dir, const char *name, uint64_t *len)
{
    char *path = path_join(dir, name), *text;
    struct err e = {0};

    text = file_slurp(path, 1 << 28, len, &e);
    resh_must(text != NULL, &e);
    free(path);
    return text;
}

/* ---- golden ---- */

/* "name dtype 512x64 crc32" of every tensor. */
static void matches_list(const char *dir, const char *list)
{
    FILE *f = fopen(list, "r");
    char name[128], dtype[16], shape[32], got[32];
    unsigned crc;
    int n = 0;

    assert_non_null(f);
    while (fscanf(f, "%127s %15s %31s %x", name, dtype, shape, &crc) == 4) {
        struct hfdo_tensor t;
        struct err e = {0};

        resh_must(hfdo_tensor(dir, name, &t, &e) == 0, &e);
        assert_int_equal(t.dtype, DTYPE_BF16);
        snprintf(got, sizeof got, t.ndim == 2 ? "%lldx%lld" : "%lld", (long long)t.shape[0], (long long)t.shape[1]);
        if (strcmp(got, shape) != 0 || crc_bytes(0, t.bytes, t.len) != crc)
            fail_msg("%s: %s %08x, expected %s %08x", name, got, crc_bytes(0, t.bytes, t.len), shape, crc);
        free(t.bytes);
        n++;
    }
    fclose(f);
    assert_int_equal(n, hfdo_count(dir));
}

static void golden(void **state)
{
    static const char *const sets[][2] = { { BLOOM, "tests/data/hf/bloom.tensors" }, { GPT2,
                                                                                       "tests/data/hf/gpt2.tensors" } };
    struct hfdo h = hfdo_defaults();
    char *out = resh_in_scratch("golden");

    (void)state;
    for (int i = 0; i < 2; i++) {
        export(sets[i][0], out, &h);
        matches_list(out, sets[i][1]);
    }
    /* The reference's universal form has masters only: rounded they are the weights. */
    export("tests/data/bloom-tp2pp2dp2/global_step20_universal", out, &h);
    matches_list(out, sets[0][1]);
    free(out);
}

/* ---- generated ---- */

static struct ckptgen small_model(bool gpt2)
{
    struct ckptgen g;

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = 2, .pp = 2, .dp = 2 };
    g.n_layers = 4;
    g.hidden = 48;
    g.n_heads = 8;
    g.seq_len = 24;
    g.vocab_tokens = 33;
    g.vocab = 48;
    g.slim = true;
    g.absolute_positions = gpt2;
    g.embed_layernorm = !gpt2;
    g.threads = 2;
    return g;
}

static enum hf_arch arch_of(const struct ckptgen *g) { return g->absolute_positions ? HF_GPT2 : HF_BLOOM; }

/* Element of the merged Megatron parameter that Transformers' element (row, col) of a GPT-2 tensor is. */
static int64_t gpt2_element(const struct ckptgen *g, const struct param_row *r, int64_t rows, int64_t cols, int64_t row,
                            int64_t col)
{
    enum hf_change change = r->hf[arch_of(g)].change;
    int64_t d = g->hidden / g->n_heads, h = g->hidden, o = change == HF_QKV_ROWS ? row * cols + col : col;
    int64_t s = o / h, i = o % h / d, lane = o % d, source_row = (i * 3 + s) * d + lane;

    switch (change) {
    case HF_QKV_ROWS: return source_row;
    case HF_QKV_TRANSPOSE: return source_row * rows + row;
    case HF_TRANSPOSE: return col * rows + row;
    default: return row * cols + col;
    }
}

static void check_tensor(const struct ckptgen *g, const struct ckptgen_set *set, int param, const char *dir,
                         enum dtype dtype)
{
    const struct ckptgen_param *p = ckptgen_param(set, param);
    int layer, first = g->lnum == CKPTGEN_LNUM_MSMD ? 2 : 3;
    const struct param_row *r = hf_row_of(arch_of(g), p->name, &layer);
    char *name = hf_name(arch_of(g), r, layer - first, true);
    float *want = xmalloc((size_t)p->n_elems * sizeof *want);
    struct hfdo_tensor t;
    struct err e = {0};
    int64_t cols;

    resh_must(hfdo_tensor(dir, name, &t, &e) == 0, &e);
    ckptgen_values(set, param, STATE_FP32, 0, p->n_elems, want);
    assert_int_equal(t.dtype, dtype);
    assert_int_equal(t.len, (uint64_t)p->n_elems * (uint64_t)dtype_size(dtype));
    cols = t.ndim == 2 ? t.shape[1] : t.shape[0];
    for (int64_t i = 0; i < p->n_elems; i++) {
        int64_t from = gpt2_element(g, r, t.ndim == 2 ? t.shape[0] : 1, cols, i / cols, i % cols);
        float x = want[from];
        uint16_t half = dtype == DTYPE_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
        const uint8_t *got = t.bytes + (size_t)i * (size_t)dtype_size(dtype);

        if (memcmp(got, dtype == DTYPE_F32 ? (void *)&x : (void *)&half, (size_t)dtype_size(dtype)) != 0)
            fail_msg("%s: element %lld of %s", name, (long long)i, dtype_name(dtype));
    }
    free(want);
    free(t.bytes);
    free(name);
}

static void check_values(const struct ckptgen *g, const char *dir, enum dtype dtype)
{
    struct err e = {0};
    struct ckptgen_set *set = ckptgen_new(g, &e);

    resh_must(set != NULL, &e);
    assert_int_equal(ckptgen_n_params(set), hfdo_count(dir));
    for (int i = 0; i < ckptgen_n_params(set); i++)
        check_tensor(g, set, i, dir, dtype);
    ckptgen_free(set);
}

/* Every element of every tensor is where Transformers looks for it. */
static void values(void **state)
{
    static const enum dtype dtypes[] = { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    char *out = resh_in_scratch("values");

    (void)state;
    for (int v = 0; v < 8; v++) {
        struct ckptgen g = small_model(v & 1);
        struct hfdo h = hfdo_defaults();
        char *in;

        g.topo = (struct topology){ .tp = v < 2 ? 1 : v < 4 ? 2 : v < 6 ? 4 : 8, .pp = v % 4 + 1, .dp = v % 3 + 1 };
        g.lnum = (enum ckptgen_lnum)(v % 3);
        g.partition = "type:transformer";
        in = resh_generate(&g, "in");
        for (int k = 0; k < 3; k++) {
            h.dtype = (int)dtypes[k];
            export(in, out, &h);
            check_values(&g, out, dtypes[k]);
        }
        free(in);
    }
    free(out);
}

/* Rows wider than the executor's are turned round in blocks of columns, chunk by chunk. */
static void wide_matrices(void **state)
{
    struct ckptgen g = small_model(true);
    struct hfdo h = hfdo_defaults();
    char *in, *out = resh_in_scratch("wide");

    (void)state;
    g.topo = (struct topology){ .tp = 2, .pp = 1, .dp = 2 };
    g.n_layers = 1;
    g.hidden = 520;                     /* 4h fp32: 8320 bytes */
    in = resh_generate(&g, "in");
    h.dtype = DTYPE_F32;
    export(in, out, &h);
    check_values(&g, out, DTYPE_F32);
    h.dtype = DTYPE_BF16;
    h.mem_bytes = 64 << 20;
    export(in, out, &h);
    check_values(&g, out, DTYPE_BF16);
    free(in);
    free(out);
}

/* The same bytes out of every form. */
static void forms(void **state)
{
    static struct sink *(*const makes[])(const struct sink_opts *) = { universal_pt_sink, universal_hdf5_sink,
                                                                       universal_virtual_sink };
    char *a = resh_in_scratch("a"), *b = resh_in_scratch("b"), *uni = resh_in_scratch("uni");
    struct hfdo h = hfdo_defaults();

    (void)state;
    for (int gpt2 = 0; gpt2 < 2; gpt2++) {
        struct ckptgen g = small_model(gpt2);
        char *in = resh_generate(&g, "in");

        for (int d = 0; d < 2; d++) {
            h.dtype = d ? DTYPE_F32 : DTYPE_BF16;
            export(in, a, &h);
            for (int i = 0; i < 3; i++) {
                resh_to_universal(in, uni, makes[i]);
                export(uni, b, &h);
                resh_same_bytes(a, b, "model.safetensors");
                resh_same_bytes(a, b, "config.json");
            }
        }
        free(in);
    }
    free(a);
    free(b);
    free(uni);
}

/* ---- files ---- */

/* The worked example: h 16, 2 heads, 2 layers, 96 of 128 rows. */
static struct ckptgen example(void)
{
    struct ckptgen g = small_model(false);

    g.topo = (struct topology){ .tp = 2, .pp = 1, .dp = 1 };
    g.n_layers = 2;
    g.hidden = 16;
    g.n_heads = 2;
    g.vocab_tokens = 96;
    g.vocab = 128;
    return g;
}

static const char example_config[] =
    "{\n"
    "  \"apply_residual_connection_post_layernorm\": false,\n"
    "  \"architectures\": [\n"
    "    \"BloomForCausalLM\"\n"
    "  ],\n"
    "  \"attention_dropout\": 0.0,\n"
    "  \"bos_token_id\": 1,\n"
    "  \"eos_token_id\": 2,\n"
    "  \"hidden_dropout\": 0.0,\n"
    "  \"hidden_size\": 16,\n"
    "  \"initializer_range\": 0.02,\n"
    "  \"layer_norm_epsilon\": 1e-05,\n"
    "  \"model_type\": \"bloom\",\n"
    "  \"n_head\": 2,\n"
    "  \"n_layer\": 2,\n"
    "  \"pad_token_id\": 3,\n"
    "  \"pretraining_tp\": 2,\n"
    "  \"slow_but_exact\": false,\n"
    "  \"torch_dtype\": \"bfloat16\",\n"
    "  \"unk_token_id\": 0,\n"
    "  \"use_cache\": true,\n"
    "  \"vocab_size\": 96\n"
    "}\n";

static void expect_text(const char *dir, const char *name, const char *want)
{
    uint64_t n;
    char *got = slurp(dir, name, &n);

    if (strcmp(got, want) != 0)
        fail_msg("%s: %s\nexpected: %s", name, got, want);
    free(got);
}

/* Tensors and data bytes of each file of a plan, from its header; then a look into the index. */
static void expect_files(const char *dir, int n, const char *const *names, const int *tensors, const uint64_t *bytes)
{
    uint64_t len;
    char *index = slurp(dir, "model.safetensors.index.json", &len);

    assert_non_null(strstr(index, "\"total_size\": 16320\n"));
    for (int i = 0; i < n; i++) {
        struct files *f = files_new();
        struct err e = {0};
        char *path = path_join(dir, names[i]);
        int file = files_add_path(f, path, &e);
        struct safetensors *st;

        resh_must(file >= 0, &e);
        st = safetensors_open(f, file, &e);
        resh_must(st != NULL, &e);
        assert_int_equal(safetensors_n(st), tensors[i]);
        assert_int_equal(files_size(f, file) - 8 - safetensors_header_bytes(st), bytes[i]);
        assert_string_equal(safetensors_meta(st, "format"), "pt");
        for (int k = 0; k < safetensors_n(st); k++) {
            char *line = str_fmt("\n    \"%s\": \"%s\"", safetensors_tensor(st, k)->name, names[i]);

            assert_non_null(strstr(index, line));
            free(line);
        }
        safetensors_close(st);
        files_free(f);
        free(path);
    }
    free(index);
}

static void shard_plans(void **state)
{
    static const char *const by_size[] = { "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                           "model-00003-of-00003.safetensors" };
    static const char *const by_layer[] = { "model_00001-of-00004.safetensors", "model_00002-of-00004.safetensors",
                                            "model_00003-of-00004.safetensors", "model_00004-of-00004.safetensors" };
    /* The embedding is larger than a file may be: a file of its own, numbered before the one under way. */
    static const char *const tiny[] = { "model-00001-of-00012.safetensors", "model-00002-of-00012.safetensors" };
    struct ckptgen g = example();
    char *in = resh_generate(&g, "in"), *out = resh_in_scratch("out");
    struct hfdo h = hfdo_defaults();

    (void)state;
    h.strip = true;
    export(in, out, &h);
    expect_text(out, "config.json", example_config);
    expect_text(out, "generation_config.json", "{\n  \"_from_model_config\": true,\n  \"bos_token_id\": 1,\n"
                "  \"eos_token_id\": 2,\n  \"pad_token_id\": 3\n}\n");
    h.q.max_shard_bytes = 6000;
    export(in, out, &h);
    expect_files(out, 3, by_size, (const int[]){ 11, 8, 10 }, (const uint64_t[]){ 5440, 5952, 4928 });
    h.q.max_shard_bytes = 2048;
    export(in, out, &h);
    expect_files(out, 2, tiny, (const int[]){ 1, 6 }, (const uint64_t[]){ 3072, 1760 });
    h.q.per_layer = true;
    export(in, out, &h);
    expect_files(out, 4, by_layer, (const int[]){ 3, 12, 12, 2 }, (const uint64_t[]){ 3136, 6560, 6560, 64 });
    free(in);
    free(out);
}

static void bare_names(void **state)
{
    struct ckptgen g = example();
    char *in = resh_generate(&g, "in"), *out = resh_in_scratch("out");
    struct hfdo h = hfdo_defaults();
    struct hfdo_tensor t;
    struct err e = {0};

    (void)state;
    h.q.bare_names = true;
    export(in, out, &h);
    resh_must(hfdo_tensor(out, "h.1.mlp.dense_4h_to_h.weight", &t, &e) == 0, &e);
    free(t.bytes);
    assert_int_equal(hfdo_tensor(out, "transformer.ln_f.weight", &t, &e), -1);
    free(in);
    free(out);
}

/* ---- refusals ---- */

static void refusals(void **state)
{
    struct ckptgen g = small_model(false);
    struct hfdo h = hfdo_defaults();
    char *in;

    (void)state;
    g.embed_layernorm = false;
    in = resh_generate(&g, "in");
    expect_refused(in, &h, ERR_DATA,
                   "argument embed_layernorm is false: BLOOM always has a LayerNorm after its embedding");
    h.arch = HF_BLOOM;
    expect_refused(in, &h, ERR_DATA, "parameter tied_modules.embed.word_embeddings.norm.weight is missing");
    h.arch = HF_GPT2;
    expect_refused(in, &h, ERR_DATA, "parameter tied_modules.embed.position_embeddings.weight is missing");
    free(in);

    g = small_model(true);
    g.embed_layernorm = true;
    in = resh_generate(&g, "in");
    h.arch = -1;
    expect_refused(in, &h, ERR_DATA, "argument embed_layernorm is true: GPT-2 has no LayerNorm after its embedding");
    h.arch = HF_GPT2;
    expect_refused(in, &h, ERR_DATA, "GPT-2 of Transformers has no equivalent");
    h.arch = HF_BLOOM;
    expect_refused(in, &h, ERR_DATA, "BLOOM of Transformers has no equivalent");
    free(in);
}

/* A position table that the reference's converter spoiled is known by its shape, or by who wrote it. */
static void spoiled_positions(void **state)
{
    struct ckptgen g = small_model(true);
    char *in = resh_generate(&g, "in"), *uni = resh_in_scratch("uni"), *manifest;
    struct hfdo h = hfdo_defaults();

    (void)state;
    resh_to_universal(in, uni, universal_pt_sink);
    manifest = path_join(uni, "manifest.json");
    assert_int_equal(unlink(manifest), 0);
    expect_refused(uni, &h, ERR_DATA,
                   "position_embeddings.weight: the converter that wrote this universal checkpoint "
                   "corrupts position tables");
    free(manifest);
    free(in);
    free(uni);
}

static void drifted_replicas(void **state)
{
    struct ckptgen g = small_model(false);
    struct hfdo h = hfdo_defaults();
    char *in, *a = resh_in_scratch("a"), *b = resh_in_scratch("b");

    (void)state;
    in = resh_generate(&g, "in");
    export(in, a, &h);
    free(in);
    assert_int_equal(ckptgen_add_drift(&g, "4.input_layernorm.weight:bf16:1:3"), 0);
    in = resh_generate(&g, "in");
    expect_refused(in, &h, ERR_DATA, "3 of 48 elements differ between the 2 tensor-parallel copies");
    h.replicas = REPLICAS_FIRST;
    export(in, b, &h);
    resh_same_bytes(a, b, "model.safetensors");
    free(in);
    free(a);
    free(b);
}

/* ---- tokenizers ---- */

static void put(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);
    struct err e = {0};

    resh_must(file_replace(path, text, strlen(text), &e) == 0, &e);
    free(path);
}

static void tokenizers(void **state)
{
    char *dir = resh_in_scratch("tok"), *to = resh_in_scratch("to");
    struct hf_tokenizer t;
    struct err e = {0};

    (void)state;
    resh_must(dir_make(dir, &e) == 0 && dir_make(to, &e) == 0, &e);
    assert_int_equal(hf_tokenizer_open(&t, dir, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "holds no tokenizer"));
    err_clear(&e);
    put(dir, "tokenizer.json", "{\"added_tokens\":[{\"id\":7,\"content\":\"<s>\"},{\"id\":300,\"content\":\"<pad>\"}],"
        "\"model\":{\"vocab\":{\"a\":0,\"</s>\":9}}}");
    put(dir, "tokenizer_config.json",
        "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\",\"unk_token\":null}");
    put(dir, "special_tokens_map.json", "{\"pad_token\":\"<pad>\"}");
    put(dir, "secret.bin", "not a tokenizer's");
    resh_must(hf_tokenizer_open(&t, dir, NULL, &e) == 0, &e);
    assert_int_equal(t.n, 3);
    assert_int_equal(t.token[HF_BOS], 7);
    assert_int_equal(t.token[HF_EOS], 9);
    assert_int_equal(t.token[HF_PAD], 300);
    assert_int_equal(t.token[HF_UNK], -1);
    assert_int_equal(t.largest_id, 300);
    resh_must(hf_tokenizer_copy(&t, to, &e) == 0, &e);
    resh_same_bytes(dir, to, "tokenizer.json");
    hf_tokenizer_free(&t);
    put(dir, "tokenizer.json", "{");
    assert_int_equal(hf_tokenizer_open(&t, dir, NULL, &e), -1);
    assert_non_null(strstr(e.msg, "tokenizer.json: at byte"));
    free(dir);
    free(to);
}

static void reals(void **state)
{
    static const struct { double v; const char *text; } cases[] = {
        { 0, "0.0" }, { 1, "1.0" }, { 0.02, "0.02" }, { 1e-5, "1e-05" }, { 1e-4, "0.0001" }, { 10.5, "10.5" },
        { 1e15, "1000000000000000.0" }, { 1e16, "1e+16" }, { 0.1 + 0.2, "0.30000000000000004" }, { -2.5, "-2.5" },
        { 12345.678, "12345.678" }, { 100, "100.0" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *v = json_real(cases[i].v);
        char *got = hf_json_text(v), *want = str_fmt("%s\n", cases[i].text);

        assert_string_equal(got, want);
        free(got);
        free(want);
        json_decref(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden), cmocka_unit_test(values), cmocka_unit_test(wide_matrices), cmocka_unit_test(forms),
        cmocka_unit_test(shard_plans), cmocka_unit_test(bare_names), cmocka_unit_test(refusals),
        cmocka_unit_test(spoiled_positions), cmocka_unit_test(drifted_replicas), cmocka_unit_test(tokenizers),
        cmocka_unit_test(reals),
    };

    return cmocka_run_group_tests(tests, resh_make_scratch, resh_remove_scratch);
}
