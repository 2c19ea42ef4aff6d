/*
 * config.c - read the model's configuration from the training arguments of a checkpoint
 */
#include "libcommon/model/config.h"

#include <stdio.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* Maximum of a dimension. A larger number is regarded as damage of the file. */
#define DIM_MAX ((int64_t)1 << 40)

/* Returns the argument `key` if it is a plausible dimension, from 1 to DIM_MAX. Otherwise (None, missing) returns 0. */
static int64_t dim_of(const struct pk *args, const char *key)
{
    int64_t v;

    return pk_as_int(pk_get(args, key), &v) && v > 0 && v <= DIM_MAX ? v : 0;
}

static bool flag_of(const struct pk *args, const char *key)
{
    int64_t v;

    return pk_as_int(pk_get(args, key), &v) && v != 0;
}

const char *config_position_name(int64_t value)
{
    static const char *const by_value[] = { "rotary", "absolute", "alibi" };

    return value >= 1 && value <= 3 ? by_value[value - 1] : NULL;
}

/* Read the type of the position embedding. Megatron stores an enum member or its value; some forks store a string. */
static void read_position_embedding(struct model_config *c, const struct pk *args)
{
    const struct pk *v = pk_get(args, "position_embedding_type");
    int64_t value = 0;
    const char *name;

    if (!v || pk_is_none(v))
        return;
    name = pk_as_str(v);
    if (!name)
        name = pk_enum(v, &value);
    if (!name)
        name = config_position_name(value);
    snprintf(c->position, sizeof c->position, "%s", name ? name : "");
}

/*
 * Returns true if the MLP is gated. GPT-NeoX stores the name of the activation (geglu, reglu, swiglu, bilinear and glu
 * are gated), or a flag `geglu`.
 */
static bool is_gated(const struct pk *args)
{
    const char *a = pk_as_str(pk_get(args, "activation"));

    return flag_of(args, "geglu") || (a && (str_ends(a, "glu") || strcmp(a, "bilinear") == 0));
}

void model_config_from_args(struct model_config *c, const struct pk *args)
{
    memset(c, 0, sizeof *c);
    if (!args)
        return;
    c->n_layers = dim_of(args, "num_layers");
    c->hidden = dim_of(args, "hidden_size");
    c->n_heads = dim_of(args, "num_attention_heads");
    c->ffn_hidden = dim_of(args, "ffn_hidden_size");
    c->seq_len = dim_of(args, "seq_length");
    c->max_positions = dim_of(args, "max_position_embeddings");
    c->vocab = dim_of(args, "padded_vocab_size");
    c->vocab_tokens = dim_of(args, "vocab_size");
    c->embed_layernorm = flag_of(args, "embed_layernorm");
    c->glu = flag_of(args, "swiglu") || pk_as_str(pk_get(args, "glu_activation")) || is_gated(args);
    read_position_embedding(c, args);
}

/* Add a * b to *sum. Returns false on overflow. */
static bool add_product(int64_t *sum, int64_t a, int64_t b)
{
    int64_t v;

    return !__builtin_mul_overflow(a, b, &v) && !__builtin_add_overflow(*sum, v, sum);
}

int64_t model_n_params(const struct model_config *c)
{
    int64_t h = c->hidden, f = c->ffn_hidden, up = c->glu ? 2 * f : f;
    int64_t layer = 0, sum = 0;
    bool ok = c->n_layers > 0 && h > 0 && f > 0 && c->vocab > 0;

    /* the weights of attention (QKV and output) and of the MLP; then LayerNorms and biases */
    ok = ok && add_product(&layer, 4 * h, h) && add_product(&layer, h, up) && add_product(&layer, f, h) &&
         add_product(&layer, 9, h) && add_product(&layer, 1, up);
    ok = ok && add_product(&sum, c->vocab, h) && add_product(&sum, c->n_layers, layer) &&
         add_product(&sum, c->embed_layernorm ? 4 : 2, h);
    if (ok && strcmp(c->position, "absolute") == 0)
        ok = add_product(&sum, c->max_positions, h);
    return ok ? sum : 0;
}
