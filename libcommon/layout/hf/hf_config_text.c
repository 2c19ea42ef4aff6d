/*
 * hf_config_text.c - write config.json and generation_config.json as Transformers does
 *
 * Keys are sorted by code point. A real is the shortest text that reads back as the same value. Transformers 5 refuses
 * an integer where it expects a real, so a real 0 is written as 0.0.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/hf/hf_config.h"

/* ---- text ---- */

static int by_key(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/*
 * Append v as Python's repr() prints it: with the fewest digits that read back as v, and with an exponent if it is
 * below 1e-4 or at least 1e16.
 */
static void append_hf_json_real(struct strbuf *sb, double v)
{
    char text[40];
    int digits = 1;

    do
        snprintf(text, sizeof text, "%.*g", digits, v);
    while (strtod(text, NULL) != v && digits++ < 17);
    if (fabs(v) >= 1 && fabs(v) < 1e16)
        snprintf(text, sizeof text, "%.*f", digits > (int)log10(fabs(v)) + 1 ? digits - (int)log10(fabs(v)) - 1 : 0, v);
    strbuf_addf(sb, "%s%s", text, strpbrk(text, ".e") ? "" : ".0");
}

static void append_hf_json_string(struct strbuf *sb, const char *s)
{
    json_t *v = json_string(s);
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;

    strbuf_addf(sb, "%s", text ? text : "\"\"");
    free(text);
    json_decref(v);
}

static void append_hf_json_value(struct strbuf *sb, const json_t *v, int indent);

static void put_object(struct strbuf *sb, const json_t *o, int indent)
{
    size_t n = json_object_size(o), i = 0;
    const char **keys = xmalloc(n * sizeof *keys + 1), *key;
    json_t *value;

    json_object_foreach((json_t *)o, key, value)
        keys[i++] = key;
    if (n)
        qsort(keys, n, sizeof *keys, by_key);
    strbuf_addf(sb, "{");
    for (i = 0; i < n; i++) {
        strbuf_addf(sb, "%s\n%*s", i ? "," : "", indent + 2, "");
        append_hf_json_string(sb, keys[i]);
        strbuf_addf(sb, ": ");
        append_hf_json_value(sb, json_object_get(o, keys[i]), indent + 2);
    }
    if (n)
        strbuf_addf(sb, "\n%*s", indent, "");
    strbuf_addf(sb, "}");
    free(keys);
}

static void put_array(struct strbuf *sb, const json_t *a, int indent)
{
    size_t n = json_array_size(a);

    strbuf_addf(sb, "[");
    for (size_t i = 0; i < n; i++) {
        strbuf_addf(sb, "%s\n%*s", i ? "," : "", indent + 2, "");
        append_hf_json_value(sb, json_array_get(a, i), indent + 2);
    }
    if (n)
        strbuf_addf(sb, "\n%*s", indent, "");
    strbuf_addf(sb, "]");
}

static void append_hf_json_value(struct strbuf *sb, const json_t *v, int indent)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT: put_object(sb, v, indent); break;
    case JSON_ARRAY: put_array(sb, v, indent); break;
    case JSON_STRING: append_hf_json_string(sb, json_string_value(v)); break;
    case JSON_INTEGER: strbuf_addf(sb, "%" JSON_INTEGER_FORMAT, json_integer_value(v)); break;
    case JSON_REAL: append_hf_json_real(sb, json_real_value(v)); break;
    case JSON_TRUE: strbuf_addf(sb, "true"); break;
    case JSON_FALSE: strbuf_addf(sb, "false"); break;
    case JSON_NULL: strbuf_addf(sb, "null"); break;
    }
}

char *hf_json_text(const json_t *v)
{
    struct strbuf sb = {0};

    append_hf_json_value(&sb, v, 0);
    strbuf_addf(&sb, "\n");
    return sb.buf;
}

/* ---- contents ---- */

const char *hf_dtype_word(enum dtype t)
{
    return t == DTYPE_F32 ? "float32" : t == DTYPE_F16 ? "float16" : "bfloat16";
}

static void set_json_int(json_t *o, const char *key, int64_t v)
{
    json_object_set_new(o, key, json_integer((json_int_t)v));
}

static void set_json_real(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, json_real(v));
}

static void set_tokens(json_t *o, const struct hf_config *c, int n)
{
    static const char *const keys[HF_TOKENS] = { "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id" };

    for (int i = 0; i < n; i++)
        if (c->token[i] >= 0)
            set_json_int(o, keys[i], c->token[i]);
}

static json_t *bloom(const struct hf_config *c)
{
    json_t *o = json_pack("{s:[s], s:b, s:s, s:b, s:b}", "architectures", "BloomForCausalLM",
                          "apply_residual_connection_post_layernorm", (int)c->post_layernorm_residual,
                          "model_type", "bloom", "slow_but_exact", 0, "use_cache", 1);

    /* The published BLOOM models all have 0 here, regardless of the dropout rate in their training. */
    set_json_real(o, "attention_dropout", 0);
    set_json_real(o, "hidden_dropout", 0);
    set_json_int(o, "hidden_size", c->hidden);
    set_json_int(o, "pretraining_tp", c->tp);
    set_tokens(o, c, HF_TOKENS);
    return o;
}

static json_t *gpt2(const struct hf_config *c)
{
    json_t *o = json_pack("{s:[s], s:s, s:s, s:b, s:b, s:b, s:b, s:s, s:n, s:b, s:b}", "architectures",
                          "GPT2LMHeadModel",
                          "model_type", "gpt2", "activation_function", c->activation,
                          "reorder_and_upcast_attn", 0, "scale_attn_by_inverse_layer_idx", 0, "scale_attn_weights", 1,
                          "use_cache", 1, "summary_type", "cls_index", "summary_activation",
                          "summary_proj_to_labels", 1, "summary_use_proj", 1);

    set_json_real(o, "attn_pdrop", c->attention_dropout);
    set_json_real(o, "embd_pdrop", c->hidden_dropout);
    set_json_real(o, "resid_pdrop", c->hidden_dropout);
    set_json_real(o, "summary_first_dropout", 0.1);
    set_json_int(o, "n_embd", c->hidden);
    set_json_int(o, "n_positions", c->positions);
    set_json_int(o, "n_inner", c->ffn);
    set_tokens(o, c, HF_UNK);
    return o;
}

char *hf_config_text(const struct hf_config *c, const json_t *changes)
{
    json_t *o = c->arch == HF_BLOOM ? bloom(c) : gpt2(c);
    char *text;

    set_json_int(o, "vocab_size", c->vocab);
    set_json_int(o, "n_layer", c->n_layers);
    set_json_int(o, "n_head", c->n_heads);
    set_json_real(o, "layer_norm_epsilon", c->epsilon);
    set_json_real(o, "initializer_range", c->init_std);
    json_object_set_new(o, "torch_dtype", json_string(hf_dtype_word(c->dtype)));
    if (changes)
        json_object_update(o, (json_t *)changes);
    text = hf_json_text(o);
    json_decref(o);
    return text;
}

char *hf_generation_text(const struct hf_config *c, const json_t *changes)
{
    static const char *const keys[] = { "bos_token_id", "eos_token_id", "pad_token_id" };
    json_t *o = json_pack("{s:b}", "_from_model_config", 1);
    char *text;

    set_tokens(o, c, HF_UNK);
    for (int i = 0; i < 3; i++)
        if (changes && json_object_get(changes, keys[i]))
            json_object_set(o, keys[i], json_object_get(changes, keys[i]));
    text = hf_json_text(o);
    json_decref(o);
    return text;
}
