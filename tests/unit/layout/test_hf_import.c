/*
 * test_hf_import.c - import from Transformers: identity after export and import, and the input that is refused
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/check/verify.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "tests/lib/hfdo.h"
#include "tests/lib/resh.h"

static char *generated(bool gpt2, const char *name)
{
    struct ckptgen g;

    ckptgen_defaults(&g);
    g.topo = (struct topology){ .tp = 2, .pp = 1, .dp = 1 };
    g.n_layers = 6;
    g.hidden = 48;
    g.n_heads = 8;
    g.seq_len = 24;
    g.vocab_tokens = 90;
    g.vocab = 128;
    g.slim = true;
    g.absolute_positions = gpt2;
    g.embed_layernorm = !gpt2;
    g.threads = 2;
    return resh_generate(&g, name);
}

static struct ds_request to_topology(int tp, int pp, int dp)
{
    return (struct ds_request){ .topo = { tp, pp, dp }, .step = -1, .zero_moments = true };
}

/* ---- there and back ---- */

static void identity(void **state)
{
    static const struct topology topos[] = { { 1, 1, 1 }, { 2, 2, 2 }, { 4, 3, 1 }, { 8, 1, 3 }, { 2, 5, 4 }, { 1, 6,
                                                                                                                5 } };
    static const enum dtype dtypes[] = { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    char *a = resh_in_scratch("a"), *b = resh_in_scratch("b"), *ds = resh_in_scratch("ds");
    struct err e = {0};

    (void)state;
    for (int gpt2 = 0; gpt2 < 2; gpt2++) {
        char *in = generated(gpt2, "in");

        for (size_t i = 0; i < sizeof topos / sizeof *topos; i++) {
            struct ds_request q = to_topology(topos[i].tp, topos[i].pp, topos[i].dp);
            struct hfdo h = hfdo_defaults();

            q.numbering = (enum ds_numbering)(NUMBERING_NEW + i % 3);
            q.n_groups = 2 + (int)(i & 1);
            h.dtype = (int)dtypes[i % 3];
            resh_must(hfdo_export(in, a, &h, &e) == 0, &e);
            resh_must(hfdo_import(a, ds, &q, 0, &e) == 0, &e);
            resh_expect_sound(ds);
            resh_must(hfdo_export(ds, b, &h, &e) == 0, &e);
            resh_same_bytes(a, b, "model.safetensors");
            /* Weights alone, of the folder's type or rounded to bf16. */
            q.no_optimizer = true;
            q.zero_moments = false;
            h.dtype = DTYPE_BF16;
            resh_must(hfdo_import(a, ds, &q, 0, &e) == 0, &e);
            resh_must(hfdo_export(in, a, &h, &e) == 0 && hfdo_export(ds, b, &h, &e) == 0, &e);
            if (dtypes[i % 3] != DTYPE_F16)             /* rounded twice */
                resh_same_bytes(a, b, "model.safetensors");
        }
        free(in);
    }
    free(a);
    free(b);
    free(ds);
}

/* Every way of cutting a model into files reads the same. */
static void containers(void **state)
{
    char *in = generated(true, "in"), *a = resh_in_scratch("a"), *b = resh_in_scratch("b"), *ds = resh_in_scratch("ds");
    struct ds_request q = to_topology(2, 2, 1);
    struct err e = {0};
    struct hfdo plain = hfdo_defaults();

    (void)state;
    resh_must(hfdo_export(in, a, &plain, &e) == 0, &e);
    for (int v = 0; v < 6; v++) {
        struct hfdo h = hfdo_defaults();

        h.q.format = v & 1 ? HF_BIN : HF_SAFETENSORS;
        h.q.per_layer = v / 2 == 1;
        h.q.bare_names = v / 2 == 1;
        h.q.max_shard_bytes = v / 2 == 2 ? 5000 : 1 << 30;
        resh_must(hfdo_export(in, b, &h, &e) == 0, &e);
        resh_must(hfdo_import(b, ds, &q, 0, &e) == 0, &e);
        resh_must(hfdo_export(ds, b, &plain, &e) == 0, &e);
        resh_same_bytes(a, b, "model.safetensors");
    }
    free(in);
    free(a);
    free(b);
    free(ds);
}

/* Rows that only padding needs are zeros, or the last row again. */
static void new_rows(void **state)
{
    char *in = generated(false, "in"), *a = resh_in_scratch("a"), *b = resh_in_scratch("b"),
         *ds = resh_in_scratch("ds");
    struct hfdo h = hfdo_defaults();
    struct err e = {0};

    (void)state;
    h.strip = true;                     /* 90 rows */
    resh_must(hfdo_export(in, a, &h, &e) == 0, &e);
    for (int repeat = 0; repeat < 2; repeat++) {
        struct ds_request q = to_topology(2, 1, 1);
        struct hfdo all = hfdo_defaults();
        struct hfdo_tensor t;

        q.vocab = 100;
        resh_must(hfdo_import(a, ds, &q, repeat ? 100 : 0, &e) == 0, &e);
        resh_must(hfdo_export(ds, b, &all, &e) == 0, &e);
        resh_must(hfdo_tensor(b, "transformer.word_embeddings.weight", &t, &e) == 0, &e);
        assert_int_equal(t.shape[0], 100);
        for (int row = 90; row < 100; row++)
            for (int i = 0; i < 48 * 2; i++)
                assert_int_equal(t.bytes[row * 48 * 2 + i], repeat ? t.bytes[89 * 48 * 2 + i] : 0);
        free(t.bytes);
        /* Tokens are still those of the import. */
        resh_must(hfdo_export(ds, b, &h, &e) == 0, &e);
        resh_same_bytes(a, b, "model.safetensors");
    }
    free(in);
    free(a);
    free(b);
    free(ds);
}

/* ---- folders made by hand ---- */

enum { H = 4, HEADS = 2, V = 6, POSITIONS = 5, MOST = 40 };

/* A GPT-2 of one layer in fp32, to be spoiled by each test. */
struct hand {
    int n;
    struct safetensors_out t[MOST];
    const void *bytes[MOST];
    char config[400];
};

static const int64_t shapes[][2] = { { V, H }, { POSITIONS, H }, { H, 0 }, { H, 3 * H }, { 3 * H, 0 }, { H, H },
                                     { H, 4 * H }, { 4 * H, 0 }, { 4 * H, H } };
static float values[MOST][4 * H * H];

static void hand_add(struct hand *m, const char *name, int shape)
{
    m->t[m->n] = (struct safetensors_out){ .name = name, .dtype = DTYPE_F32, .ndim = shapes[shape][1] ? 2 : 1,
                                           .shape = shapes[shape] };
    m->bytes[m->n] = values[m->n];
    m->n++;
}

static void hand_start(struct hand *m)
{
    m->n = 0;
    for (int i = 0; i < MOST; i++)
        for (int k = 0; k < 4 * H * H; k++)
            values[i][k] = (float)(i + 1) + (float)k / 256;
    snprintf(m->config, sizeof m->config,
             "{\"model_type\":\"gpt2\",\"vocab_size\":%d,\"n_embd\":%d,\"n_layer\":1,\"n_head\":%d,"
             "\"n_positions\":%d}", V, H, HEADS, POSITIONS);
    hand_add(m, "wte.weight", 0);
    hand_add(m, "wpe.weight", 1);
    hand_add(m, "h.0.ln_1.weight", 2);
    hand_add(m, "h.0.ln_1.bias", 2);
    hand_add(m, "h.0.attn.c_attn.weight", 3);
    hand_add(m, "h.0.attn.c_attn.bias", 4);
    hand_add(m, "h.0.attn.c_proj.weight", 5);
    hand_add(m, "h.0.attn.c_proj.bias", 2);
    hand_add(m, "h.0.ln_2.weight", 2);
    hand_add(m, "h.0.ln_2.bias", 2);
    hand_add(m, "h.0.mlp.c_fc.weight", 6);
    hand_add(m, "h.0.mlp.c_fc.bias", 7);
    hand_add(m, "h.0.mlp.c_proj.weight", 8);
    hand_add(m, "h.0.mlp.c_proj.bias", 2);
    hand_add(m, "ln_f.weight", 2);
    hand_add(m, "ln_f.bias", 2);
}

static int hand_import(const struct hand *m, const char *ds, struct err *e)
{
    char *dir = resh_in_scratch("hand");
    struct ds_request q = to_topology(1, 1, 1);
    struct err e2 = {0};
    int rc;

    resh_must(hfdo_write(dir, m->config, m->t, m->bytes, m->n, &e2) == 0, &e2);
    rc = hfdo_import(dir, ds, &q, 0, e);
    free(dir);
    return rc;
}

static void hand_accepted(const struct hand *m)
{
    char *ds = resh_in_scratch("hand-ds");
    struct err e = {0};

    resh_must(hand_import(m, ds, &e) == 0, &e);
    free(ds);
}

static void hand_refused(const struct hand *m, const char *want)
{
    char *ds = resh_in_scratch("hand-refused");
    struct err e = {0};

    assert_int_equal(hand_import(m, ds, &e), -1);
    if (!strstr(e.msg, want))
        fail_msg("'%s', expected '%s'", e.msg, want);
    assert_int_equal(e.kind, ERR_DATA);
    assert_int_not_equal(access(ds, F_OK), 0);
    free(ds);
}

/* Where each element of a transposed, reordered weight lands, by the formula. */
static void by_hand(void **state)
{
    enum { D = H / HEADS };
    char *ds = resh_in_scratch("hand-ds");
    struct hand m;
    struct err e = {0};
    struct source *s;
    struct param *p;
    float got[3 * H * H], bias[3 * H];

    (void)state;
    hand_start(&m);
    hand_accepted(&m);
    s = source_open(ds, NULL, NULL, &e);
    resh_must(s != NULL, &e);
    p = source_param(s, "3.self_attention.query_key_value.weight");
    resh_must(tmap_read(p->state[STATE_FP32], s->files, (struct tmap_range){ 0, 0, sizeof got }, got, &e) == 0, &e);
    for (int kind = 0; kind < 3; kind++)
        for (int head = 0; head < HEADS; head++)
            for (int lane = 0; lane < D; lane++)
                for (int r = 0; r < H; r++)
                    assert_true(got[((head * 3 + kind) * D + lane) * H + r] ==
                                values[4][r * 3 * H + kind * H + head * D + lane]);
    p = source_param(s, "3.self_attention.query_key_value.bias");
    resh_must(tmap_read(p->state[STATE_FP32], s->files, (struct tmap_range){ 0, 0, sizeof bias }, bias, &e) == 0, &e);
    for (int i = 0; i < 3 * H; i++)
        assert_true(bias[(i % H / D * 3 + i / H) * D + i % D] == values[5][i]);
    source_close(s);
    free(ds);
}

static void tolerated(void **state)
{
    static const int64_t mask[] = { 1, 1 };
    struct hand m;

    (void)state;
    hand_start(&m);                     /* masks, as releases before 4.30 saved them */
    m.t[m.n] = (struct safetensors_out){ .name = "h.0.attn.bias", .dtype = DTYPE_BOOL, .ndim = 2, .shape = mask };
    m.bytes[m.n] = values[m.n];
    m.n++;
    hand_accepted(&m);
    hand_start(&m);                     /* the head, equal to the embedding */
    hand_add(&m, "lm_head.weight", 0);
    m.bytes[m.n - 1] = values[0];
    hand_accepted(&m);
    hand_start(&m);                     /* some names with the prefix */
    m.t[0].name = "transformer.wte.weight";
    hand_accepted(&m);
}

static void refusals(void **state)
{
    struct hand m;

    (void)state;
    hand_start(&m);
    m.n--;
    hand_refused(&m, "tensor ln_f.bias is missing");
    hand_start(&m);
    hand_add(&m, "h.0.crossattention.c_attn.weight", 3);
    hand_add(&m, "h.1.ln_1.weight", 2);
    hand_refused(&m, "2 tensors without an equivalent in Megatron: h.0.crossattention.c_attn.weight, "
                     "h.1.ln_1.weight");
    hand_start(&m);
    m.t[6].shape = shapes[6];
    hand_refused(&m, "tensor h.0.attn.c_proj.weight: has shape [4, 16], but config.json describes [4, 4]");
    hand_start(&m);
    m.t[2].dtype = DTYPE_I32;
    hand_refused(&m, "tensor h.0.ln_1.weight: is neither bf16, fp16 nor fp32");
    hand_start(&m);
    hand_add(&m, "lm_head.weight", 0);
    hand_refused(&m, "lm_head.weight differs from the embedding");
    hand_start(&m);
    hand_add(&m, "transformer.ln_f.bias", 2);
    hand_refused(&m, "tensor ln_f.bias exists twice");
}

static void refused_configs(void **state)
{
    static const char *const cases[][2] = {
        { "", "no JSON" },
        { "[]", "no JSON object" },
        { "{}", "'model_type' is 'absent'" },
        { "{\"model_type\":\"llama\"}", "'model_type' is 'llama': only bloom and gpt2 can be imported" },
        { "{\"model_type\":\"gpt2\"}", "'vocab_size' is absent" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":6,\"n_embd\":4,\"n_layer\":1,\"n_head\":2,\"n_positions\":\"5\"}",
          "'n_positions' is none, but must be a number of 1 or more" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":6,\"n_embd\":4,\"n_layer\":1,\"n_head\":3,\"n_positions\":5}",
          "hidden size 4 is not divisible by 3 heads" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":6,\"n_embd\":4,\"n_layer\":1000000000000,\"n_head\":2,\"n_positions\":5}",
          "config.json has 1000000000000 layers, but the files have 16 tensors" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":6,\"n_embd\":4,\"n_layer\":1,\"n_head\":2,\"n_positions\":5,"
          "\"activation_function\":\"relu\"}",
          "'activation_function' is 'relu', but Megatron supports only GELU" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":6,\"n_embd\":4,\"n_layer\":1,\"n_head\":2,\"n_positions\":5,"
          "\"tie_word_embeddings\":false}",
          "'tie_word_embeddings' is false" },
        { "{\"model_type\":\"gpt2\",\"vocab_size\":6,\"n_embd\":4,\"n_layer\":1,\"n_head\":2,\"n_positions\":5,"
          "\"add_cross_attention\":true}",
          "'add_cross_attention' is true" },
        { "{\"model_type\":\"bloom\",\"vocab_size\":6,\"hidden_size\":4,\"n_layer\":1,\"n_head\":2,"
          "\"layer_norm_epsilon\":1e-6}",
          "'layer_norm_epsilon' is 1e-06" },
    };
    struct hand m;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hand_start(&m);
        snprintf(m.config, sizeof m.config, "%s", cases[i][0]);
        hand_refused(&m, cases[i][1]);
    }
}

static void put(const char *dir, const char *name, const char *text)
{
    char *path = path_join(dir, name);
    struct err e = {0};

    resh_must(file_replace(path, text, strlen(text), &e) == 0, &e);
    free(path);
}

static void refused_indices(void **state)
{
    static const char *const cases[][2] = {
        { "{", "no JSON" }, { "{}", "has no weight_map" },
        { "{\"weight_map\":{\"a\":\"../m.safetensors\"}}", "'../m.safetensors' is not a file next to the index" },
        { "{\"weight_map\":{\"a\":\"m.bin\"}}", "'m.bin' is not a file next to the index" },
        { "{\"weight_map\":{\"a\":1}}", "'?' is not a file next to the index" },
        { "{\"weight_map\":{\"ln_f.bias\":\"m.safetensors\"}}", "is in the file m.safetensors, but the map lists no file for it" },
    };
    char *dir = resh_in_scratch("index"), *ds = resh_in_scratch("index-ds"), *from, *to;
    struct ds_request q = to_topology(1, 1, 1);
    struct hand m;
    struct err e = {0};

    (void)state;
    hand_start(&m);
    resh_must(hfdo_write(dir, m.config, m.t, m.bytes, m.n, &e) == 0, &e);
    from = path_join(dir, "model.safetensors");
    to = path_join(dir, "m.safetensors");
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(hfdo_import(dir, ds, &q, 0, &e), -1);
    assert_non_null(strstr(e.msg, "holds no model"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err_clear(&e);
        put(dir, "model.safetensors.index.json", cases[i][0]);
        assert_int_equal(hfdo_import(dir, ds, &q, 0, &e), -1);
        if (!strstr(e.msg, cases[i][1]))
            fail_msg("'%s', expected '%s'", e.msg, cases[i][1]);
    }
    /* Right, and with one name too many. */
    for (int extra = 0; extra < 2; extra++) {
        struct strbuf sb = {0};

        strbuf_addf(&sb, "{\"weight_map\":{");
        for (int i = 0; i < m.n; i++)
            strbuf_addf(&sb, "%s\"%s\":\"m.safetensors\"", i ? "," : "", m.t[i].name);
        strbuf_addf(&sb, "%s}}", extra ? ",\"ln_f.more\":\"m.safetensors\"" : "");
        put(dir, "model.safetensors.index.json", sb.buf);
        err_clear(&e);
        assert_int_equal(hfdo_import(dir, ds, &q, 0, &e), extra ? -1 : 0);
        assert_true(!extra || strstr(e.msg, "weight_map lists 17 tensors, its files hold 16"));
        strbuf_free(&sb);
    }
    free(dir);
    free(ds);
    free(from);
    free(to);
}

/* The type of the weights: that of the files, else that of config.json, else bf16; or the requested one. */
static void weights_types(void **state)
{
    static const struct { const char *said; int type; bool given; enum dtype asked, want; } cases[] = {
        { NULL, DTYPE_BF16, false, 0, DTYPE_BF16 },             { NULL, DTYPE_F16, false, 0, DTYPE_F16 },
        { NULL, DTYPE_F32, false, 0, DTYPE_BF16 },              { "float16", DTYPE_F32, false, 0, DTYPE_F16 },
        { "float16", DTYPE_BF16, false, 0, DTYPE_BF16 },        { "float32", DTYPE_F16, false, 0, DTYPE_F16 },
        { NULL, DTYPE_F16, true, DTYPE_BF16, DTYPE_BF16 },      { NULL, DTYPE_BF16, true, DTYPE_F16, DTYPE_F16 },
        { NULL, DTYPE_F16, true, DTYPE_F32, DTYPE_F32 },        { NULL, DTYPE_F32, true, DTYPE_F32, DTYPE_F32 },
    };
    static const char *const keys[] = { "torch_dtype", "dtype" };
    char *in = generated(false, "in"), *dir = resh_in_scratch("typed");
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        struct hf_source_opts o = { .n_groups = 3, .dtype_given = cases[i / 2].given, .dtype = cases[i / 2].asked };
        const char *said = cases[i / 2].said;
        const enum dtype want = cases[i / 2].want;
        struct hfdo h = hfdo_defaults();
        struct report *notes = report_new();
        json_t *changes = json_pack("{s:n}", "torch_dtype");
        struct source *s;

        h.dtype = cases[i / 2].type;
        json_object_set_new(changes, keys[i % 2], said ? json_string(said) : json_null());
        h.q.override = changes;
        resh_must(hfdo_export(in, dir, &h, &e) == 0, &e);
        s = hf_source_open(dir, &o, notes, &e);
        resh_must(s != NULL, &e);
        assert_true(pk_is_class(pk_get(s->run.args, "params_dtype"), "torch", hf_dtype_word(want)));
        assert_true(s->zero_stage_1 == (want == DTYPE_F16));
        assert_true((s->param[0].state[STATE_BF16] != NULL) == ((int)want == h.dtype));
        source_close(s);
        report_free(notes);
        json_decref(changes);
    }
    free(in);
    free(dir);
}

/* fp16 cannot hold what fp32 can. */
static void lossy(void **state)
{
    char *ds = resh_in_scratch("hand-ds"), *out = resh_in_scratch("lossy");
    struct hfdo h = hfdo_defaults();
    struct hand m;
    struct hfdo_tensor t;
    struct err e = {0};

    (void)state;
    hand_start(&m);
    values[14][1] = 1e6f;
    values[14][2] = 65519.0f;           /* rounds down to 65504 */
    values[14][3] = 1e-9f;
    hand_accepted(&m);
    h.dtype = DTYPE_F16;
    assert_int_equal(hfdo_export(ds, out, &h, &e), -1);
    assert_non_null(strstr(e.msg, "parameter 5.weight: 1 values are above 65504"));
    assert_int_not_equal(access(out, F_OK), 0);
    err_clear(&e);
    h.q.lossy = true;
    resh_must(hfdo_export(ds, out, &h, &e) == 0, &e);
    resh_must(hfdo_tensor(out, "transformer.ln_f.weight", &t, &e) == 0, &e);
    assert_int_equal(get_le16(t.bytes + 2), 0x7c00);
    assert_int_equal(get_le16(t.bytes + 4), 0x7bff);
    assert_int_equal(get_le16(t.bytes + 6), 0);
    free(t.bytes);
    snprintf(strrchr(m.config, '}'), 24, ",\"dtype\":\"float16\"}");
    hand_refused(&m, "parameter 5.weight: 1 values are above 65504, the largest number of fp16 weights");
    free(ds);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(identity), cmocka_unit_test(containers), cmocka_unit_test(new_rows), cmocka_unit_test(by_hand),
        cmocka_unit_test(tolerated), cmocka_unit_test(refusals), cmocka_unit_test(refused_configs),
        cmocka_unit_test(refused_indices), cmocka_unit_test(weights_types), cmocka_unit_test(lossy),
    };

    return cmocka_run_group_tests(tests, resh_make_scratch, resh_remove_scratch);
}
