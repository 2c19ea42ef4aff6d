/*
 * llama_litgpt.c - litgpt's form: lit_model.pth and model_config.yaml
 *
 * litgpt stores queries, keys and values as one tensor: all rows of queries, then those of keys, then those of values.
 * Before its version 0.5 the tensor had another name (attn.attn) and order, and is refused.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/llama/llama.h"

#define BLOCK "transformer.h.*."
#define LAYER "model.layers.*."
#define QKV(end) { LAYER "self_attn.q_proj." end, LAYER "self_attn.k_proj." end, LAYER "self_attn.v_proj." end }

static const struct llama_rule litgpt_rules[] = {
    { "transformer.wte.weight", { "model.embed_tokens.weight" }, LLAMA_EMBEDDING, false },
    { "transformer.ln_f.weight", { "model.norm.weight" }, LLAMA_WHOLE, false },
    { "lm_head.weight", { "lm_head.weight" }, LLAMA_ROWS, false },
    { BLOCK "attn.qkv.weight", QKV("weight"), LLAMA_ROWS, false },
    { BLOCK "attn.qkv.bias", QKV("bias"), LLAMA_ROWS, false },
    { BLOCK "attn.norm_q.weight", { LAYER "self_attn.q_norm.weight" }, LLAMA_WHOLE, false },
    { BLOCK "attn.norm_k.weight", { LAYER "self_attn.k_norm.weight" }, LLAMA_WHOLE, false },
    { BLOCK "attn.proj.weight", { LAYER "self_attn.o_proj.weight" }, LLAMA_COLUMNS, false },
    { BLOCK "mlp.fc_1.weight", { LAYER "mlp.gate_proj.weight" }, LLAMA_ROWS, false },
    { BLOCK "mlp.fc_2.weight", { LAYER "mlp.up_proj.weight" }, LLAMA_ROWS, false },
    { BLOCK "mlp.proj.weight", { LAYER "mlp.down_proj.weight" }, LLAMA_COLUMNS, false },
    { BLOCK "norm_1.weight", { LAYER "input_layernorm.weight" }, LLAMA_WHOLE, false },
    { BLOCK "norm_2.weight", { LAYER "post_attention_layernorm.weight" }, LLAMA_WHOLE, false },
};

static int litgpt_rank_of(const char *name)
{
    return strcmp(name, "lit_model.pth") == 0 ? 0 : -1;
}

bool litgpt_marks(const char *name)
{
    return litgpt_rank_of(name) == 0;
}

/*
 * ---- model_config.yaml: lines "key: value"; a value of several lines continues in lines that begin with a blank or a
 * dash ----
 */

/*
 * Returns the value of a key as text, in the arena. The text is "" if the value has several lines. Returns NULL if
 * there is no such key.
 */
static const char *yaml_value(const struct llama *x, const char *text, const char *key)
{
    const size_t n = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        const char *at;

        line += *line == '\n';
        if (strncmp(line, key, n) != 0 || line[n] != ':')
            continue;
        at = line + n + 1 + strspn(line + n + 1, " ");
        return arena_fmt(x->s->arena, "%.*s", (int)strcspn(at, " \r\n"), at);
    }
    return NULL;
}

static bool is_null(const char *value)
{
    return !value || strcmp(value, "null") == 0 || strcmp(value, "~") == 0;
}

/* Returns the integer under a key, `otherwise` if the key is missing, or -1 if the value is not an integer. */
static int64_t yaml_integer(const struct llama *x, const char *text, const char *key, int64_t otherwise)
{
    const char *value = yaml_value(x, text, key);
    char *end;
    long long n;

    if (is_null(value))
        return otherwise;
    n = strtoll(value, &end, 10);
    return *end ? -1 : n;
}

/* Returns the number under a key, `otherwise` if the key is missing, or -1 if the value is not a positive number. */
static double yaml_real(const struct llama *x, const char *text, const char *key, double otherwise)
{
    const char *value = yaml_value(x, text, key);
    char *end;
    double n;

    if (is_null(value))
        return otherwise;
    n = strtod(value, &end);
    return end != value && !*end && n > 0 && n < 1e18 ? n : -1;
}

static bool yaml_is_true(const struct llama *x, const char *text, const char *key)
{
    const char *value = yaml_value(x, text, key);

    return value && strcmp(value, "true") == 0;
}

/* ---- the model ---- */

/*
 * Settings that the classes of Llama, Qwen2 and Qwen3 in Transformers do not have, each with the only value that is
 * supported.
 */
static const struct { const char *key, *value; } only[] = {
    { "mlp_class_name", "LLaMAMLP" }, { "norm_class_name", "RMSNorm" }, { "n_expert", "0" },
    { "parallel_residual", "false" }, { "shared_attention_norm", "false" }, { "bias", "false" },
    { "lm_head_bias", "false" }, { "rotary_percentage", "1.0" }, { "scale_embeddings", "false" },
    { "post_attention_norm", "false" }, { "post_mlp_norm", "false" }, { "norm_1", "true" }, { "norm_2", "true" },
    { "rope_condense_ratio", "1" }, { "rope_interleave", "false" }, { "attention_logit_softcapping", "null" },
    { "attention_scores_scalar", "null" }, { "final_logit_softcapping", "null" }, { "latent_attention", "null" },
    { "sliding_window_size", "null" },
};

static int check_litgpt_settings(const struct llama *x, const char *text, struct err *e)
{
    for (size_t i = 0; i < sizeof only / sizeof *only; i++) {
        const char *value = yaml_value(x, text, only[i].key);

        if (!value || strcmp(value, only[i].value) == 0 || (strcmp(only[i].value, "null") == 0 && is_null(value)))
            continue;
        err_data(e, x->settings_path, ERR_NO_BYTE, "%s is %.40s; only models with %s are read: litgpt "
                 "convert_from_litgpt IN OUT gives this one the names of Transformers", only[i].key,
                 *value ? value : "a list", only[i].value);
        return -1;
    }
    if (is_null(yaml_value(x, text, "mlp_class_name")) || is_null(yaml_value(x, text, "norm_class_name")))
        return llama_refuse_settings(x, e, "states no class of the MLP or of the norms (mlp_class_name, "
                                           "norm_class_name)");
    return 0;
}

/* Returns true if the positions are scaled. config.json states the scaling in another form. */
static bool has_other_rope(const struct llama *x, const char *text)
{
    const char *value = yaml_value(x, text, "rope_adjustments");

    return value && (!*value || (!is_null(value) && strcmp(value, "{}") != 0));
}

static int read_model_config_yaml(struct llama *x, const char *text, struct err *e)
{
    struct llama_sizes *z = &x->sizes;
    const double eps = yaml_real(x, text, "norm_eps", 1e-5), base = yaml_real(x, text, "rope_base", 10000);
    const char *type;

    z->hidden = yaml_integer(x, text, "n_embd", 0);
    z->layers = yaml_integer(x, text, "n_layer", 0);
    z->heads = yaml_integer(x, text, "n_head", 0);
    z->groups = yaml_integer(x, text, "n_query_groups", z->heads);
    z->lanes = yaml_integer(x, text, "head_size", 0);
    z->vocab = yaml_integer(x, text, "padded_vocab_size", -1);
    z->ffn = yaml_integer(x, text, "intermediate_size", -1);
    z->norms = yaml_is_true(x, text, "norm_qk");
    z->biases = yaml_is_true(x, text, "attn_bias");
    type = z->norms ? "qwen3" : z->biases ? "qwen2" : "llama";
    if (check_litgpt_settings(x, text, e) < 0 || llama_set_sizes(x, e) < 0)
        return -1;
    if (eps < 0 || base < 0)
        return llama_refuse_settings(x, e, "norm_eps or rope_base is no positive number");
    if (z->norms && z->biases)
        return llama_refuse_settings(x, e, "states both norms and biases of queries (norm_qk, attn_bias), which no "
                                           "class of Transformers has with these names");
    json_object_update_new(x->config, json_pack("{s:[s], s:s, s:f, s:f}", "architectures",
                                                z->norms ? "Qwen3ForCausalLM" : z->biases ? "Qwen2ForCausalLM"
                                                                                          : "LlamaForCausalLM",
                                                "model_type", type, "rms_norm_eps", eps, "rope_theta", base));
    if (yaml_integer(x, text, "block_size", -1) > 0)
        json_object_set_new(x->config, "max_position_embeddings",
                            json_integer(yaml_integer(x, text, "block_size", -1)));
    if (has_other_rope(x, text))
        x->s->config_lacks = "rope_adjustments in it are scaled positions, which are omitted; --config "
                             "'rope_scaling={\"rope_type\": \"llama3\", ...}' sets them";
    return 0;
}

int litgpt_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                       struct report *r, struct err *e)
{
    static const struct llama_form form = { &litgpt_layout, "model_config.yaml", litgpt_rules,
                                            sizeof litgpt_rules / sizeof *litgpt_rules, litgpt_rank_of,
                                            read_model_config_yaml };
    struct llama x = { .s = s, .l = l, .o = o, .r = r, .form = &form };

    return llama_open(&x, e);
}
