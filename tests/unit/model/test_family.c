/*
 * test_family.c - rules of families: the grammar, every error a file can have, and the shipped files with real
 * models
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/model/family.h"

#define HEAD "family x\n"

static struct family *parse(const char *text, struct err *e)
{
    return family_parse("x.rules", text, strlen(text), e);
}

static void test_grammar(void **state)
{
    static const char text[] =
        "# a comment\n"
        "family toy   # behind it, too\n"
        "models  toy toy2\n"
        "\n"
        "concat_0,qkv  m.layers.*.{q,k,v}.weight\n"
        "              layers.*.qkv.weight   *.qkv.weight\n"
        "concat_1,turned  m.layers.*.o.weight layers.*.o.weight\r\n"
        "concat_0_halves,experts  m.layers.*.e.#.{g,u}.weight layers.*.e.fc1.weight # each\n"
        "concat_0_halves,turned,experts,interleaved  m.layers.*.e.g layers.*.f.fc1.weight\n"
        "replicated,dense,fp32  m.layers.*.bias  -\n"
        "vocabulary  head.weight  *.head.weight";
    struct err e = {0};
    struct family *r = parse(text, &e);
    struct arena *a = arena_new(0);
    struct family_hit h;

    (void)state;
    assert_string_equal(e.msg, "");
    assert_string_equal(family_name(r), "toy");
    assert_true(family_has_model(r, "toy2") && family_has_model(r, "toy") && !family_has_model(r, "toy3"));
    assert_int_equal(family_n(r), 6);
    assert_int_equal(family_at(r, 0)->line, 5);
    assert_int_equal(family_at(r, 1)->line, 7);
    assert_true(family_at(r, 1)->transposed && !family_at(r, 1)->qkv && family_at(r, 1)->merge == MERGE_CAT1);

    assert_true(family_at(r, 2)->experts && family_at(r, 2)->each_expert && family_at(r, 2)->moe);
    assert_true(family_at(r, 3)->experts && !family_at(r, 3)->each_expert && family_at(r, 3)->interleaved);
    assert_true(family_at(r, 4)->dense && family_at(r, 4)->fp32 && family_at(r, 4)->n_spellings == 0);
    assert_null(family_core_name(family_at(r, 4)));
    assert_true(family_find(r, "m.layers.3.e.25.u.weight", &h));
    assert_true(!h.in_shards && h.part == 1 && h.layer == 3 && h.expert == 25);
    assert_string_equal(family_expert_name(a, h.rule->part[1], 3, 25), "m.layers.3.e.25.u.weight");
    assert_false(family_find(r, "m.layers.3.e.x.u.weight", &h));
    assert_true(family_find(r, "layers.e.fc1.weight", &h) && h.stacked && h.expert == -1);
    assert_true(family_find(r, "m.layers.12.v.weight", &h));
    assert_true(!h.in_shards && h.part == 2 && h.layer == 12 && h.rule == family_at(r, 0));
    assert_true(family_find(r, "3.qkv.weight", &h));
    assert_true(h.in_shards && !h.stacked && h.layer == 3 && h.rule == family_at(r, 0));
    assert_true(family_find(r, "layers.qkv.weight", &h));
    assert_true(h.in_shards && h.stacked && h.layer == -1);
    assert_true(family_find(r, "head.weight", &h) && !h.in_shards && h.layer == -1);
    assert_true(family_find(r, "9.head.weight", &h) && h.in_shards && h.layer == 9);
    assert_false(family_find(r, "m.layers..v.weight", &h));
    assert_false(family_find(r, "m.layers.x.v.weight", &h));
    assert_false(family_find(r, "m.layers.99999999999.v.weight", &h));
    assert_false(family_find(r, "qkv.weight", &h));
    assert_string_equal(family_layer_name(a, family_at(r, 0)->part[1], 7), "m.layers.7.k.weight");
    arena_free(a);
    family_free(r);
}

static void test_refused(void **state)
{
    static const struct { const char *text, *msg; } cases[] = {
        { "", "x.rules:0: no 'family NAME'" },
        { HEAD, "x.rules:1: no rule" },
        { HEAD HEAD, "x.rules:2: expected 'family NAME', once" },
        { HEAD "concat_2 a.b c.d", "x.rules:2: unknown merge rule 'concat_2': concat_0, concat_1, concat_0_halves, "
          "vocabulary, replicated and sum are known" },
        { HEAD "sum,qkv a.b c.d", "x.rules:2: qkv is a concat_0 of one name, or of three parts in Transformers" },
        { HEAD "sum,turned a.b c.d", "x.rules:2: turned and sum exclude each other" },
        { HEAD "concat_0,rotated a.b c.d", "x.rules:2: unknown word 'rotated' after the merge rule: expected qkv, "
          "turned, experts, interleaved, moe, dense, fp32 or optional" },
        { HEAD "concat_0 a.b", "x.rules:2: a merge rule, the name in Transformers and one in shards or more, or '-' "
          "for none, are meant" },
        { HEAD "concat_0 a.(b) c.d", "x.rules:2: pattern 'a.(b)': '(' is no part of a name (letters, digits, '.', '_', "
          "'-', one '*' for a layer's number, and in Transformers' names one '#' for an expert's number and {a,b} for "
          "parts are)" },
        { HEAD "concat_0 a.b {c,d}.e", "x.rules:2: pattern '{c,d}.e': '{' is no part of a name (letters, digits, '.', "
          "'_', '-', one '*' for a layer's number, and in Transformers' names one '#' for an expert's number and {a,b} "
          "for parts are)" },
        { HEAD "concat_0 a.*.#.b c.*.d", "x.rules:2: '#' is the number of an expert, in a rule with the word "
          "experts" },
        { HEAD "concat_0,experts a.*.#.#.b c.*.d", "x.rules:2: pattern 'a.*.#.#.b': more than one '#', an expert has "
          "one number" },
        { HEAD "concat_0,experts a.*.x#.b c.*.d", "x.rules:2: pattern 'a.*.x#.b': '#' is a number between dots" },
        { HEAD "concat_0,experts a.*.#.b c.*.#.d", "x.rules:2: c.*.#.d: '#' is only in names of Transformers" },
        { HEAD "concat_0,experts a.b c.d", "x.rules:2: experts excludes qkv, vocabulary and sum, and needs a layer's "
          "number" },
        { HEAD "concat_0,interleaved a.b c.d", "x.rules:2: interleaved is a concat_0_halves of one name" },
        { HEAD "concat_0,experts,dense a.*.b c.*.d", "x.rules:2: moe (and experts) and dense exclude each other" },
        { HEAD "concat_0,experts a.*.#.b c.*.d\nconcat_1 a.*.5.b c.*.e", "x.rules:3: a.*.5.b is matched by the rule of "
          "line 2, too" },
        { HEAD "\n# \nconcat_0 a.*.b\n c.*.*.d", "x.rules:4: pattern 'c.*.*.d': more than one '*', a layer has one "
          "number" },
        { HEAD "concat_0 a.l*.b c.*.d", "x.rules:2: pattern 'a.l*.b': '*' is a number between dots" },
        { HEAD "concat_0 a..b c.d", "x.rules:2: pattern 'a..b': an empty word between dots" },
        { HEAD "concat_0,qkv a.{q,k c.d", "x.rules:2: pattern 'a.{q,k': parts are named once, as "
          "{q_proj,k_proj,v_proj}" },
        { HEAD "concat_0,qkv a.{q,,v} c.d", "x.rules:2: pattern 'a.{q,,v}': one to 3 names of parts are meant, none "
          "empty" },
        { HEAD "concat_0,qkv a.{q,k,v,w} c.d", "x.rules:2: pattern 'a.{q,k,v,w}': one to 3 names of parts are meant, "
          "none empty" },
        { HEAD "concat_1,qkv a.{q,k,v} c.d", "x.rules:2: qkv is a concat_0 of one name, or of three parts in "
          "Transformers" },
        { HEAD "concat_0_halves a.{b,c,d} c.d", "x.rules:2: concat_0_halves has one name in Transformers, or two "
          "parts, as {gate_proj,up_proj}" },
        { HEAD "concat_1 a.{b,c} c.d", "x.rules:2: only qkv and concat_0_halves are made of parts" },
        { HEAD "concat_0,qkv,turned a.{q,k,v} c.d", "x.rules:2: turned and parts exclude each other" },
        { HEAD "concat_0 a.*.b c.d", "x.rules:2: a.*.b has a layer's number, c.d none" },
        { HEAD "concat_0 a.*.b c.*.d\nconcat_1 a.5.b c.5.e", "x.rules:3: a.5.b is matched by the rule of line 2, too" },
        { HEAD "concat_0 a.*.b c.*.d\nconcat_1 b.*.b x.*.d c.d", "x.rules:3: b.*.b has a layer's number, c.d none" },
        { HEAD "concat_0 a.*.b c.*.d\nconcat_1 a.b c.d", "x.rules:3: a.b is matched by the rule of line 2, too" },
        { HEAD "concat_0 a b c d e f g h i", "x.rules:2: more than 7 names in a rule" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct family *r = parse(cases[i].text, &e);

        if (r || strcmp(e.msg, cases[i].msg) != 0)
            fail_msg("case %zu: got '%s', want '%s'", i, e.msg, cases[i].msg);
    }
}

static void test_hostile(void **state)
{
    struct strbuf sb = {0};
    struct err e = {0};

    (void)state;
    strbuf_addf(&sb, HEAD);
    for (int i = 0; i < 300; i++)
        strbuf_addf(&sb, "concat_0 a.b%d c.d%d\n", i, i);
    assert_null(family_parse("x.rules", sb.buf, sb.len, &e));
    assert_string_equal(e.msg, "x.rules:258: more than 256 rules");
    strbuf_free(&sb);
    err_clear(&e);
    strbuf_addf(&sb, HEAD "concat_0 ");
    for (int i = 0; i < 300; i++)
        strbuf_addf(&sb, "a");
    assert_null(family_parse("x.rules", sb.buf, sb.len, &e));
    assert_string_equal(e.msg, "x.rules:2: a word of 300 characters, at most 200 are meant");
    strbuf_free(&sb);
    err_clear(&e);
    assert_null(family_parse("x.rules", "family\0x", 8, &e));
    assert_string_equal(e.msg, "x.rules:1: expected text, found bytes of 0");
    err_clear(&e);
    assert_null(family_open("there/is.none", &e));
    assert_int_equal(e.kind, ERR_SYS);
    err_clear(&e);
    assert_null(family_open("nothing", &e));
    assert_int_equal(e.kind, ERR_NONE);
}

/* What is built in is what is installed. */
static void test_builtin(void **state)
{
    int n = 0;

    (void)state;
    for (; family_builtin(n); n++) {
        char *path = str_fmt("rules/%s.rules", family_builtin(n));
        struct err e = {0};
        struct family *a = family_open(family_builtin(n), &e), *b = family_open(path, &e);

        assert_string_equal(e.msg, "");
        assert_string_equal(family_name(a), family_builtin(n));
        assert_int_equal(family_n(a), family_n(b));
        for (int i = 0; i < family_n(a); i++) {
            assert_int_equal(family_at(a, i)->line, family_at(b, i)->line);
            assert_string_equal(family_at(a, i)->part[0], family_at(b, i)->part[0]);
        }
        family_free(a);
        family_free(b);
        free(path);
    }
    assert_int_equal(n, 15);
}

/* The table of the two that are trained here (params.c) and their files say the same. */
/* Of each shipped rule the name that Megatron-core has, and where the parameter is in the model. */
static void test_core_names(void **state)
{
    static const struct { const char *family, *part, *core; int place; } cases[] = {
        { "llama", "model.embed_tokens.weight", "embedding.word_embeddings.weight", -1 },
        { "llama", "model.layers.0.self_attn.k_proj.bias", "decoder.layers.*.self_attention.linear_qkv.bias", 0 },
        { "llama", "lm_head.weight", "output_layer.weight", 1 },
        { "gpt2", "transformer.wpe.weight", "embedding.position_embeddings.weight", -1 },
        { "gpt2", "transformer.h.3.ln_1.bias", "decoder.layers.*.self_attention.linear_qkv.layer_norm_bias", 0 },
        { "gpt_neox", "gpt_neox.final_layer_norm.bias", "decoder.final_layernorm.bias", 1 },
        { "bloom", "transformer.word_embeddings_layernorm.weight", NULL, -1 },
        { "mixtral", "model.layers.0.block_sparse_moe.experts.3.w3.weight",
          "decoder.layers.*.mlp.experts.experts.linear_fc1.weight", 0 },
        { "deepseek_v3", "model.layers.1.self_attn.kv_a_layernorm.weight",
          "decoder.layers.*.self_attention.kv_layernorm.weight", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct family *f = family_open(cases[i].family, &e);
        struct family_hit h;

        assert_true(family_find(f, cases[i].part, &h));
        if (cases[i].core)
            assert_string_equal(family_core_name(h.rule), cases[i].core);
        else
            assert_null(family_core_name(h.rule));
        assert_int_equal(family_place(f, h.rule), cases[i].place);
        family_free(f);
    }
}

static void test_table(void **state)
{
    static const char *const family[HF_N] = { [HF_BLOOM] = "bloom", [HF_GPT2] = "gpt2" };

    (void)state;
    for (int a = 0; a < HF_N; a++) {
        struct err e = {0};
        struct family *r = family_open(family[a], &e);
        int seen = 0;

        for (int i = 0; i < ROLE_N; i++) {
            const struct param_row *row = param_row((enum role)i);
            const char *before = row->place == PLACE_EMBEDDING ? PARAM_EMBEDDING : "3.";
            char *name = str_fmt("%s%s", before, row->key);
            char *hf = str_fmt("transformer.%s%s", row->place == PLACE_BLOCK ? "h.*." : "",
                               row->hf[a].name ? row->hf[a].name : "");
            enum hf_change c = row->hf[a].change;
            struct family_hit h;
            bool found = family_find(r, name, &h);

            if (found != (row->hf[a].name != NULL))
                fail_msg("%s: %s: %s", family[a], name, found ? "only a rule has it" : "no rule has it");
            if (found) {
                assert_string_equal(h.rule->part[0], hf);
                assert_int_equal(h.rule->merge, row->merge);
                assert_int_equal(h.rule->qkv, c == HF_QKV_ROWS || c == HF_QKV_TRANSPOSE);
                assert_int_equal(h.rule->transposed, c == HF_TRANSPOSE || c == HF_QKV_TRANSPOSE);
                seen++;
            }
            free(name);
            free(hf);
        }
        /* lm_head.weight alone is not in the table: the models of the table have the embedding for it. */
        assert_int_equal(seen, family_n(r) - 1);
        family_free(r);
    }
}

/* Every parameter of a small model of Transformers is matched by a rule: tests/data/families/MODEL.names. */
static void test_models(void **state)
{
    static const char *const models[] = {
        "gpt2", "bloom", "llama", "mistral", "qwen2", "qwen3", "gpt_neox", "gemma", "gemma2", "gemma3_text", "phi3",
        "olmo2", "olmo3", "nemotron", "arcee", "starcoder2", "granite", "smollm3", "ernie4_5", "seed_oss", "mixtral",
        "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "dots1", "gpt_oss", "llama4_text",
    };

    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char *path = str_fmt("tests/data/families/%s.names", models[i]), *save = NULL;
        struct err e = {0};
        struct family *r = family_open(models[i], &e);
        uint64_t len;
        char *text = file_slurp(path, 1 << 20, &len, &e);
        int n = 0;

        assert_string_equal(e.msg, "");
        assert_non_null(r);
        for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save), n++) {
            struct family_hit h;

            *strchrnul(l, ' ') = 0;
            if (!family_find(r, l, &h) || h.in_shards)
                fail_msg("%s: %s: no rule", models[i], l);
        }
        assert_true(n > 10);
        free(text);
        free(path);
        family_free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grammar), cmocka_unit_test(test_refused), cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_builtin), cmocka_unit_test(test_core_names), cmocka_unit_test(test_table),
        cmocka_unit_test(test_models),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
