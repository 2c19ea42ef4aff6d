/*
 * test_params.c - merge rules: the table of names, and the pattern lists that a checkpoint may contain
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/mem.h"
#include "libcommon/model/config.h"
#include "libcommon/model/merge_patterns.h"
#include "libcommon/model/params.h"

static const struct {
    const char *name;
    enum merge_rule rule;
    bool known;
} rules[] = {
    { "tied_modules.embed.word_embeddings.weight", MERGE_VOCAB, true },
    { "tied_modules.embed.word_embeddings.norm.weight", MERGE_REPLICATED, true },
    { "tied_modules.embed.word_embeddings.norm.bias", MERGE_REPLICATED, true },
    { "tied_modules.embed.position_embeddings.weight", MERGE_REPLICATED, true },
    { "3.input_layernorm.weight", MERGE_REPLICATED, true },
    { "3.self_attention.query_key_value.weight", MERGE_CAT0, true },
    { "3.self_attention.query_key_value.bias", MERGE_CAT0, true },
    { "3.self_attention.dense.weight", MERGE_CAT1, true },
    { "3.self_attention.dense.bias", MERGE_REPLICATED, true },
    { "72.post_attention_layernorm.bias", MERGE_REPLICATED, true },
    { "72.mlp.dense_h_to_4h.weight", MERGE_CAT0, true },
    { "72.mlp.dense_h_to_4h.bias", MERGE_CAT0, true },
    { "72.mlp.dense_4h_to_h.weight", MERGE_CAT1, true },
    { "72.mlp.dense_4h_to_h.bias", MERGE_REPLICATED, true },
    { "74.weight", MERGE_REPLICATED, true },
    { "74.bias", MERGE_REPLICATED, true },
    { "74.weights", MERGE_CAT0, false },
    { ".weight", MERGE_CAT0, false },
    { "3.xdense_h_to_4h.bias", MERGE_CAT0, false },
    { "3.adapter.weight", MERGE_CAT0, false },
};

static void test_table(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (merge_rule_of(rules[i].name) != rules[i].rule)
            fail_msg("%s: got %s, want %s", rules[i].name, merge_rule_name(merge_rule_of(rules[i].name)),
                     merge_rule_name(rules[i].rule));
        if (merge_rule_known(rules[i].name) != rules[i].known)
            fail_msg("%s: known is wrong", rules[i].name);
    }
}

static void test_rule_names(void **state)
{
    (void)state;
    for (int m = MERGE_CAT0; m <= MERGE_CAT0_HALVES; m++)
        assert_int_equal(merge_rule_by_name(merge_rule_name(m)), m);
    assert_string_equal(merge_rule_name(MERGE_VOCAB), "vocabulary");
    assert_int_equal(merge_rule_by_name("concat"), -1);
}

static void test_kind(void **state)
{
    static const struct { const char *name, *kind; int layer; } t[] = {
        { "3.input_layernorm.weight", "input_layernorm.weight", 3 },
        { "72.self_attention.dense.bias", "self_attention.dense.bias", 72 },
        { "8.weight", "final_layernorm.weight", 8 },
        { "74.bias", "final_layernorm.bias", 74 },
        { "tied_modules.embed.word_embeddings.norm.bias", "word_embeddings.norm.bias", -1 },
        { "tied_modules.embed", "tied_modules.embed", -1 },
        { "99999999999999999999.x", "99999999999999999999.x", -1 },
    };
    char buf[128];
    int layer;

    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_string_equal(param_kind(t[i].name, &layer, buf), t[i].kind);
        assert_int_equal(layer, t[i].layer);
    }
    assert_true(param_is_tied("tied_modules.embed.word_embeddings.weight"));
    assert_false(param_is_tied("3.input_layernorm.weight"));
}

/* ---- patterns ---- */

static const char *const names[] = {
    "tied_modules.embed.word_embeddings.weight", "3.input_layernorm.weight", "3.self_attention.dense.weight",
    "3.self_attention.dense.bias", "3.mlp.dense_4h_to_h.weight", "3.mlp.dense_h_to_4h.weight", "12.weight",
};
enum { N_NAMES = sizeof names / sizeof *names };

static void set_list(struct arena *a, struct pk *info, const char *key, const char *const *text, int n)
{
    struct pk *list = pk_list(a);

    for (int i = 0; i < n; i++)
        pk_add(a, list, pk_str(a, text[i]));
    pk_set_str(a, info, key, list);
}

/* The block that a newer trainer writes. */
static struct pk *good_info(struct arena *a)
{
    static const char *const vocab[] = { "tied_modules.embed.word_embeddings.weight" };
    static const char *const row[] = { "\\d+.mlp.dense_4h_to_h.weight", "\\d+.self_attention.dense.weight" };
    static const char *const copy[] = { "\\d+.input_layernorm.weight", "\\d+.self_attention.dense.bias",
                                        "\\d+.weight" };
    struct pk *info = pk_dict(a);

    pk_set_str(a, info, "universal_checkpoint_version", pk_float(a, 0.2));
    set_list(a, info, "vocabulary_parameter_patterns", vocab, 1);
    set_list(a, info, "parameter_with_row_parallelism_patterns", row, 2);
    set_list(a, info, "tp_replicated_parameter_patterns", copy, 3);
    return info;
}

static void expect(const struct report *r, int i, enum severity severity, const char *code, const char *text)
{
    assert_true(i < report_n(r));
    assert_int_equal(report_get(r, i)->severity, severity);
    assert_string_equal(report_get(r, i)->code, code);
    assert_string_equal(report_get(r, i)->text, text);
}

static void test_patterns(void **state)
{
    struct arena *a = arena_new(0);
    struct report *r = report_new();
    struct pk *info = good_info(a);
    struct merge_patterns *p;

    (void)state;
    p = merge_patterns_new(info, names, N_NAMES, false, "f.pt", r);
    assert_non_null(p);
    assert_int_equal(report_n(r), 0);
    for (int i = 0; i < N_NAMES; i++)
        assert_int_equal(merge_patterns_rule(p, names[i]), merge_rule_of(names[i]));
    /* Anchored at the start, not at the end; '.' is any character; \d+ may give a digit back. */
    assert_int_equal(merge_patterns_rule(p, "12.weight_and_more"), MERGE_REPLICATED);
    assert_int_equal(merge_patterns_rule(p, "12345weight"), MERGE_REPLICATED);
    assert_int_equal(merge_patterns_rule(p, "x12.weight"), MERGE_CAT0);
    assert_int_equal(merge_patterns_rule(p, ".weight"), MERGE_CAT0);
    merge_patterns_free(p);
    report_free(r);
    arena_free(a);
}

/* AutoTP's: whole names, escaped, anchored at both ends; as many as there are parameters. */
static void test_whole_names(void **state)
{
    enum { LAYERS = 200 };
    struct arena *a = arena_new(0);
    struct report *r = report_new();
    struct pk *info = pk_dict(a), *row = pk_list(a), *copy = pk_list(a);
    const char *model[3 * LAYERS];
    struct merge_patterns *p;

    (void)state;
    for (int i = 0; i < LAYERS; i++) {
        model[3 * i] = arena_fmt(a, "model.layers.%d.mlp.down_proj.weight", i);
        model[3 * i + 1] = arena_fmt(a, "model.layers.%d.mlp.down-proj.bias", i);
        model[3 * i + 2] = arena_fmt(a, "model.layers.%d.mlp.up_proj.weight", i);
        pk_add(a, row, pk_str(a, arena_fmt(a, "^model\\.layers\\.%d\\.mlp\\.down_proj\\.weight$", i)));
        pk_add(a, copy, pk_str(a, arena_fmt(a, "^model\\.layers\\.%d\\.mlp\\.down\\-proj\\.bias$", i)));
    }
    pk_set_str(a, info, "parameter_with_row_parallelism_patterns", row);
    pk_set_str(a, info, "tp_replicated_parameter_patterns", copy);
    pk_set_str(a, info, "affine_map", pk_dict(a));
    p = merge_patterns_new(info, model, 3 * LAYERS, false, "f.pt", r);
    assert_non_null(p);
    assert_int_equal(report_n(r), 0);
    for (int i = 0; i < LAYERS; i++) {
        assert_int_equal(merge_patterns_rule(p, model[3 * i]), MERGE_CAT1);
        assert_int_equal(merge_patterns_rule(p, model[3 * i + 1]), MERGE_REPLICATED);
        assert_int_equal(merge_patterns_rule(p, model[3 * i + 2]), MERGE_CAT0);
    }
    assert_int_equal(merge_patterns_rule(p, "model.layers.1.mlp.down_proj.weight2"), MERGE_CAT0);
    merge_patterns_free(p);
    report_free(r);
    arena_free(a);
}

static void test_halves(void **state)
{
    static const char *const halves[] = { "\\d+.mlp.dense_h_to_4h.weight" };
    struct arena *a = arena_new(0);
    struct report *r = report_new();
    struct pk *info = good_info(a);
    struct merge_patterns *p;

    (void)state;
    set_list(a, info, "parameter_with_2_sub_params_cat_dim_0", halves, 1);
    p = merge_patterns_new(info, names, N_NAMES, false, "f.pt", r);
    assert_non_null(p);
    assert_int_equal(report_n(r), 0);
    assert_int_equal(merge_patterns_rule(p, "3.mlp.dense_h_to_4h.weight"), MERGE_CAT0_HALVES);
    merge_patterns_free(p);
    report_free(r);
    arena_free(a);
}

/* No block is nothing to talk about; the two defective kinds are passed over with a warning. */
static void test_unusable(void **state)
{
    static const char *const bare[] = { "dense_4h_to_h.weight", "self_attention.dense.weight" };
    struct arena *a = arena_new(0);
    struct report *r = report_new();
    struct pk *info = good_info(a);

    (void)state;
    assert_null(merge_patterns_new(NULL, names, N_NAMES, false, "f.pt", r));
    assert_int_equal(report_n(r), 0);
    assert_null(merge_patterns_new(pk_dict(a), names, N_NAMES, false, "f.pt", r));
    expect(r, 0, SEV_WARNING, "universal_info",
           "universal_checkpoint_info has no tensor-parallel patterns: merging by the GPT table instead");
    set_list(a, info, "parameter_with_row_parallelism_patterns", bare, 2);
    assert_null(merge_patterns_new(info, names, N_NAMES, false, "f.pt", r));
    expect(r, 1, SEV_WARNING, "universal_info",
           "universal_checkpoint_info has row-parallel patterns that match no parameter (old un-anchored form?): "
           "merging by the GPT table instead");
    assert_int_equal(report_n(r), 2);
    report_free(r);
    arena_free(a);
}

static void test_refused(void **state)
{
    static const char *const bad[] = { "\\d+.(mlp|attn).weight", "\\w+.bias", "3.x" };
    static const char *const twice[] = { "\\d+.input_layernorm.weight", "3.input_layernorm.weight" };
    struct arena *a = arena_new(0);
    struct report *r = report_new();
    struct pk *info = good_info(a), *sub = pk_list(a);
    struct merge_patterns *p;

    (void)state;
    set_list(a, info, "tp_replicated_parameter_patterns", bad, 2);
    pk_set_str(a, info, "made_up", pk_int(a, 1));
    pk_add(a, sub, pk_dict(a));
    pk_set_str(a, info, "parameter_with_sub_params", sub);
    assert_null(merge_patterns_new(info, names, N_NAMES, false, "f.pt", r));
    expect(r, 0, SEV_WARNING, "universal_info", "universal_checkpoint_info has an unknown key 'made_up'");
    expect(r, 1, SEV_ERROR, "universal_info",
           "universal_checkpoint_info uses parameter_with_sub_params, which is not supported");
    expect(r, 2, SEV_ERROR, "pattern", "pattern '\\d+.(mlp|attn).weight' in tp_replicated_parameter_patterns: '(' is "
           "not supported (only literals, '.', \\d+ and '$' at the end are)");
    expect(r, 3, SEV_ERROR, "pattern", "pattern '\\w+.bias' in tp_replicated_parameter_patterns: '\\' is "
           "not supported (only literals, '.', \\d+ and '$' at the end are)");
    report_free(r);

    r = report_new();
    info = good_info(a);
    set_list(a, info, "parameter_to_average_patterns", twice, 2);
    set_list(a, info, "vocabulary_parameter_patterns", &bad[2], 1);
    p = merge_patterns_new(info, names, N_NAMES, false, "f.pt", r);
    assert_non_null(p);
    expect(r, 0, SEV_WARNING, "pattern", "pattern '3.x' of vocabulary_parameter_patterns matches no parameter");
    expect(r, 1, SEV_WARNING, "pattern",
           "the checkpoint's patterns give it the rule concat_0, its name gives vocabulary: the patterns are used");
    expect(r, 2, SEV_ERROR, "pattern",
           "matches '\\d+.input_layernorm.weight' and another pattern of parameter_to_average_patterns");
    merge_patterns_free(p);
    report_free(r);
    arena_free(a);
}

/* Many \d+ on many digits: length times length steps, not two to the length. */
static void test_no_explosion(void **state)
{
    char pattern[64 * 3 + 2] = "", name[201];
    const char *one = pattern;
    struct arena *a = arena_new(0);
    struct report *r = report_new();
    struct pk *info = good_info(a);

    (void)state;
    for (int i = 0; i < 64; i++)
        strcat(pattern, "\\d+");
    strcat(pattern, "x");
    memset(name, '1', 200);
    name[200] = '\0';
    set_list(a, info, "parameter_to_average_patterns", &one, 1);
    merge_patterns_free(merge_patterns_new(info, (const char *const[]){ name, names[2] }, 2, false, "f.pt", r));
    report_free(r);
    arena_free(a);
}

/* ---- configuration ---- */

static void test_config(void **state)
{
    struct arena *a = arena_new(0);
    struct pk *d = pk_dict(a), *args;
    struct model_config c;

    (void)state;
    pk_set_str(a, d, "num_layers", pk_int(a, 70));
    pk_set_str(a, d, "hidden_size", pk_int(a, 14336));
    pk_set_str(a, d, "num_attention_heads", pk_int(a, 112));
    pk_set_str(a, d, "ffn_hidden_size", pk_int(a, 57344));
    pk_set_str(a, d, "padded_vocab_size", pk_int(a, 250880));
    pk_set_str(a, d, "embed_layernorm", pk_bool(a, true));
    pk_set_str(a, d, "glu_activation", pk_none(a));
    pk_set_str(a, d, "position_embedding_type", pk_str(a, "alibi"));
    args = pk_object(a, "argparse", "Namespace", d);
    model_config_from_args(&c, args);
    assert_string_equal(c.position, "alibi");
    assert_true(c.embed_layernorm);
    assert_false(c.glu);
    /* The published count of BLOOM-176B. */
    assert_true(model_n_params(&c) == 176247271424);
    pk_set_str(a, d, "hidden_size", pk_int(a, INT64_MAX));
    model_config_from_args(&c, args);
    assert_int_equal(model_n_params(&c), 0);
    model_config_from_args(&c, NULL);
    assert_int_equal(c.n_layers, 0);
    arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_rule_names),
        cmocka_unit_test(test_kind),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_whole_names), cmocka_unit_test(test_halves),
        cmocka_unit_test(test_unusable),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_no_explosion),
        cmocka_unit_test(test_config),
    };

    return cmocka_run_group_tests_name("params", tests, NULL, NULL);
}
