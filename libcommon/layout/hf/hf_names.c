/*
 * hf_names.c - Transformers' names of parameters, from the parameter table
 */
#include "libcommon/layout/hf/hf_names.h"

#include <string.h>

const char *hf_arch_name(enum hf_arch a)
{
    return a == HF_BLOOM ? "bloom" : "gpt2";
}

int hf_arch_by_name(const char *name)
{
    return strcmp(name, "bloom") == 0 ? HF_BLOOM : strcmp(name, "gpt2") == 0 ? HF_GPT2 : -1;
}

const struct param_row *hf_row_of(enum hf_arch a, const char *param, int *layer)
{
    const struct param_row *r = param_find(param, layer);

    return r && r->hf[a].name ? r : NULL;
}

bool hf_is_transposed(enum hf_arch a, const struct param_row *r)
{
    return r->hf[a].change == HF_TRANSPOSE || r->hf[a].change == HF_QKV_TRANSPOSE;
}

bool hf_is_head(const char *name)
{
    return str_ends(name, PARAM_HEAD) || str_ends(name, "embed_out.weight") || str_ends(name, "output_layer.weight");
}

bool hf_is_buffer(const char *name)
{
    static const char *const ends[] = { ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
                                        ".rotary_emb.inv_freq" };

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (str_ends(name, ends[i]))
            return true;
    return false;
}

char *hf_name(enum hf_arch a, const struct param_row *r, int block, bool prefix)
{
    const char *first = prefix ? "transformer." : "", *name = r->hf[a].name;

    return r->place == PLACE_BLOCK ? str_fmt("%sh.%d.%s", first, block, name) : str_fmt("%s%s", first, name);
}

char *hf_param_name(const struct param_row *r, int layer)
{
    return r->place == PLACE_EMBEDDING ? xstrdup(param_embedding_name(r->role)) : str_fmt("%d.%s", layer, r->key);
}
