/*
 * hf_translate.c - what is known of parameters of shards before they become Transformers'
 */
#include "libcommon/layout/hf/hf_translate.h"

/* A block has some dozens of parameters, a layer's number comes from a name: what a model may have of both. */
enum { LAYERS_MAX = 1 << 16 };

/* ---- config.json ---- */

static int64_t number_of(const json_t *config, const char *key, const char *alias, int64_t otherwise)
{
    const json_t *v = json_object_get(config, key);

    v = v && !json_is_null(v) ? v : alias ? json_object_get(config, alias) : NULL;
    return v && json_is_integer(v) ? json_integer_value(v) : otherwise;
}

int hf_sizes_read(const json_t *config, const char *path, struct hf_sizes *z, struct err *e)
{
    int64_t hidden = number_of(config, "hidden_size", "n_embd", 0);

    z->layers = number_of(config, "num_hidden_layers", "n_layer", 0);
    z->heads = number_of(config, "num_attention_heads", "n_head", 0);
    z->groups = number_of(config, "num_key_value_heads", NULL, z->heads);
    z->lanes = number_of(config, "head_dim", NULL, z->heads > 0 ? hidden / z->heads : 0);
    z->vocab = number_of(config, "vocab_size", NULL, 0);
    if (z->layers >= 1 && z->layers <= LAYERS_MAX && z->heads >= 1 && z->groups >= 1 && z->heads % z->groups == 0 &&
        z->heads <= 1 << 20 && z->lanes >= 1 && z->lanes <= 1 << 20 && z->vocab >= 1)
        return 0;
    err_data(e, path, ERR_NO_BYTE,
             "its layers (%lld), heads (%lld) and their groups (%lld), lanes of a head (%lld) and vocab_size (%lld) "
             "describe no model", (long long)z->layers, (long long)z->heads, (long long)z->groups,
             (long long)z->lanes, (long long)z->vocab);
    return -1;
}

/* ---- which parameters ---- */

bool hf_is_in_shards(const struct source *s, const struct family *f)
{
    struct family_hit h;

    for (int i = 0; i < s->n_params; i++)
        if (family_find(f, s->param[i].name, &h) && h.in_shards)
            return true;
    return false;
}

