#include "libcommon/layout/hf_names.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static const char embed[] = "tied_modules.embed.";

static const struct hf_rule bloom[] = {
    { HF_EMBEDDING, "word_embeddings.weight", "word_embeddings.weight", HF_SAME, 2, "Vh" },
    { HF_EMBEDDING, "word_embeddings.norm.weight", "word_embeddings_layernorm.weight", HF_SAME, 1, "h" },
    { HF_EMBEDDING, "word_embeddings.norm.bias", "word_embeddings_layernorm.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "input_layernorm.weight", "input_layernorm.weight", HF_SAME, 1, "h" },
    { HF_BLOCK, "input_layernorm.bias", "input_layernorm.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "self_attention.query_key_value.weight", "self_attention.query_key_value.weight", HF_SAME, 2, "qh" },
    { HF_BLOCK, "self_attention.query_key_value.bias", "self_attention.query_key_value.bias", HF_SAME, 1, "q" },
    { HF_BLOCK, "self_attention.dense.weight", "self_attention.dense.weight", HF_SAME, 2, "hh" },
    { HF_BLOCK, "self_attention.dense.bias", "self_attention.dense.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "post_attention_layernorm.weight", "post_attention_layernorm.weight", HF_SAME, 1, "h" },
    { HF_BLOCK, "post_attention_layernorm.bias", "post_attention_layernorm.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "mlp.dense_h_to_4h.weight", "mlp.dense_h_to_4h.weight", HF_SAME, 2, "fh" },
    { HF_BLOCK, "mlp.dense_h_to_4h.bias", "mlp.dense_h_to_4h.bias", HF_SAME, 1, "f" },
    { HF_BLOCK, "mlp.dense_4h_to_h.weight", "mlp.dense_4h_to_h.weight", HF_SAME, 2, "hf" },
    { HF_BLOCK, "mlp.dense_4h_to_h.bias", "mlp.dense_4h_to_h.bias", HF_SAME, 1, "h" },
    { HF_FINAL, "weight", "ln_f.weight", HF_SAME, 1, "h" },
    { HF_FINAL, "bias", "ln_f.bias", HF_SAME, 1, "h" },
};

static const struct hf_rule gpt2[] = {
    { HF_EMBEDDING, "word_embeddings.weight", "wte.weight", HF_SAME, 2, "Vh" },
    { HF_EMBEDDING, "position_embeddings.weight", "wpe.weight", HF_SAME, 2, "sh" },
    { HF_BLOCK, "input_layernorm.weight", "ln_1.weight", HF_SAME, 1, "h" },
    { HF_BLOCK, "input_layernorm.bias", "ln_1.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "self_attention.query_key_value.weight", "attn.c_attn.weight", HF_QKV_TRANSPOSE, 2, "qh" },
    { HF_BLOCK, "self_attention.query_key_value.bias", "attn.c_attn.bias", HF_QKV_ROWS, 1, "q" },
    { HF_BLOCK, "self_attention.dense.weight", "attn.c_proj.weight", HF_TRANSPOSE, 2, "hh" },
    { HF_BLOCK, "self_attention.dense.bias", "attn.c_proj.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "post_attention_layernorm.weight", "ln_2.weight", HF_SAME, 1, "h" },
    { HF_BLOCK, "post_attention_layernorm.bias", "ln_2.bias", HF_SAME, 1, "h" },
    { HF_BLOCK, "mlp.dense_h_to_4h.weight", "mlp.c_fc.weight", HF_TRANSPOSE, 2, "fh" },
    { HF_BLOCK, "mlp.dense_h_to_4h.bias", "mlp.c_fc.bias", HF_SAME, 1, "f" },
    { HF_BLOCK, "mlp.dense_4h_to_h.weight", "mlp.c_proj.weight", HF_TRANSPOSE, 2, "hf" },
    { HF_BLOCK, "mlp.dense_4h_to_h.bias", "mlp.c_proj.bias", HF_SAME, 1, "h" },
    { HF_FINAL, "weight", "ln_f.weight", HF_SAME, 1, "h" },
    { HF_FINAL, "bias", "ln_f.bias", HF_SAME, 1, "h" },
};

const char *hf_arch_name(enum hf_arch a)
{
    return a == HF_BLOOM ? "bloom" : "gpt2";
}

int hf_arch_by_name(const char *name)
{
    return strcmp(name, "bloom") == 0 ? HF_BLOOM : strcmp(name, "gpt2") == 0 ? HF_GPT2 : -1;
}

const struct hf_rule *hf_rules(enum hf_arch a, int *n)
{
    *n = a == HF_BLOOM ? sizeof bloom / sizeof *bloom : sizeof gpt2 / sizeof *gpt2;
    return a == HF_BLOOM ? bloom : gpt2;
}

const struct hf_rule *hf_rule_of(enum hf_arch a, const char *param, int *layer)
{
    int n;
    const struct hf_rule *r = hf_rules(a, &n);
    const char *dot = strchr(param, '.');
    enum hf_place place = HF_EMBEDDING;

    *layer = -1;
    if (str_starts(param, embed)) {
        param += sizeof embed - 1;
    } else if (dot && isdigit((unsigned char)*param) && dot - param < 9) {
        *layer = atoi(param);
        param = dot + 1;
        place = strchr(param, '.') ? HF_BLOCK : HF_FINAL;
    } else {
        return NULL;
    }
    for (int i = 0; i < n; i++)
        if (r[i].place == place && strcmp(r[i].key, param) == 0)
            return &r[i];
    return NULL;
}

char *hf_name(const struct hf_rule *r, int block, bool prefix)
{
    const char *first = prefix ? "transformer." : "";

    return r->place == HF_BLOCK ? str_fmt("%sh.%d.%s", first, block, r->hf) : str_fmt("%s%s", first, r->hf);
}

char *hf_param_name(const struct hf_rule *r, int layer)
{
    return r->place == HF_EMBEDDING ? str_fmt("%s%s", embed, r->key) : str_fmt("%d.%s", layer, r->key);
}
