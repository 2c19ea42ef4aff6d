/*
 * llama_meta.c - Meta's form: consolidated.<NN>.pth and params.json
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/llama/llama.h"

#define LAYER "model.layers.*."

static const struct llama_rule meta_rules[] = {
    { "tok_embeddings.weight", { "model.embed_tokens.weight" }, LLAMA_EMBEDDING, false },
    { "norm.weight", { "model.norm.weight" }, LLAMA_WHOLE, false },
    { "output.weight", { "lm_head.weight" }, LLAMA_ROWS, false },
    { "layers.*.attention.wq.weight", { LAYER "self_attn.q_proj.weight" }, LLAMA_ROWS, true },
    { "layers.*.attention.wk.weight", { LAYER "self_attn.k_proj.weight" }, LLAMA_ROWS, true },
    { "layers.*.attention.wv.weight", { LAYER "self_attn.v_proj.weight" }, LLAMA_ROWS, false },
    { "layers.*.attention.wo.weight", { LAYER "self_attn.o_proj.weight" }, LLAMA_COLUMNS, false },
    { "layers.*.feed_forward.w1.weight", { LAYER "mlp.gate_proj.weight" }, LLAMA_ROWS, false },
    { "layers.*.feed_forward.w2.weight", { LAYER "mlp.down_proj.weight" }, LLAMA_COLUMNS, false },
    { "layers.*.feed_forward.w3.weight", { LAYER "mlp.up_proj.weight" }, LLAMA_ROWS, false },
    { "layers.*.attention_norm.weight", { LAYER "input_layernorm.weight" }, LLAMA_WHOLE, false },
    { "layers.*.ffn_norm.weight", { LAYER "post_attention_layernorm.weight" }, LLAMA_WHOLE, false },
    { "rope.freqs", { NULL }, LLAMA_WHOLE, false },
    { "layers.*.attention.inner_attention.rope.freqs", { NULL }, LLAMA_WHOLE, false },
};

/* Returns the rank in a name such as "consolidated.00.pth", or -1. */
static int meta_rank_of(const char *name)
{
    static const char prefix[] = "consolidated.";
    const char *digits = str_starts(name, prefix) ? name + sizeof prefix - 1 : "";

    return strspn(digits, "0123456789") == 2 && strcmp(digits + 2, ".pth") == 0 ? atoi(digits) : -1;
}

bool meta_marks(const char *name)
{
    return meta_rank_of(name) >= 0;
}

/* Returns the integer under a key, `otherwise` if the key is missing, or -1 if the value is not an integer. */
static int64_t params_integer(const json_t *params, const char *key, int64_t otherwise)
{
    const json_t *v = json_object_get(params, key);

    return !v || json_is_null(v) ? otherwise : json_is_integer(v) ? json_integer_value(v) : -1;
}

/* Returns the number under a key, `otherwise` if the key is missing, or -1 if the value is not a positive number. */
static double params_real(const json_t *params, const char *key, double otherwise)
{
    const json_t *v = json_object_get(params, key);

    if (!v || json_is_null(v))
        return otherwise;
    return json_is_number(v) && json_number_value(v) > 0 ? json_number_value(v) : -1;
}

/* Returns true if the key exists and its value is neither null nor false. */
static bool states(const json_t *params, const char *key)
{
    const json_t *v = json_object_get(params, key);

    return v && !json_is_null(v) && !json_is_false(v);
}

static int read_params_json(struct llama *x, const char *text, struct err *e)
{
    json_error_t why;
    json_t *params = json_loads(text, 0, &why);
    const double eps = params_real(params, "norm_eps", 1e-5), theta = params_real(params, "rope_theta", 10000);
    struct llama_sizes *z = &x->sizes;
    int rc;

    if (!json_is_object(params)) {
        json_decref(params);
        return llama_refuse_settings(x, e, "is not a JSON object");
    }
    z->hidden = params_integer(params, "dim", 0);
    z->layers = params_integer(params, "n_layers", 0);
    z->heads = params_integer(params, "n_heads", 0);
    z->groups = params_integer(params, "n_kv_heads", z->heads);
    z->lanes = params_integer(params, "head_dim", 0);
    z->vocab = params_integer(params, "vocab_size", -1);
    z->ffn = params_integer(params, "hidden_dim", -1);
    json_object_update_new(x->config, json_pack("{s:[s], s:s}", "architectures", "LlamaForCausalLM", "model_type",
                                                "llama"));
    rc = llama_set_sizes(x, e);
    if (rc == 0 && (states(params, "moe") || states(params, "sliding_window")))
        rc = llama_refuse_settings(x, e, "states experts or a sliding window (moe, sliding_window), which Meta's "
                                         "models do not have");
    if (rc == 0 && (eps < 0 || theta < 0))
        rc = llama_refuse_settings(x, e, "norm_eps or rope_theta is no positive number");
    json_object_set_new(x->config, "rms_norm_eps", json_real(eps));
    json_object_set_new(x->config, "rope_theta", json_real(theta));
    if (states(params, "use_scaled_rope"))
        x->s->config_lacks = "use_scaled_rope in it states scaled positions without their factor, which are omitted; "
                             "--config 'rope_scaling={\"rope_type\": \"llama3\", ...}' sets them";
    json_decref(params);
    return rc;
}

int meta_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                     struct err *e)
{
    static const struct llama_form form = { &meta_layout, "params.json", meta_rules,
                                            sizeof meta_rules / sizeof *meta_rules, meta_rank_of, read_params_json };
    struct llama x = { .s = s, .l = l, .o = o, .r = r, .form = &form };

    return llama_open(&x, e);
}
