/*
 * hf_config.c - the supported architectures, and the reader of config.json
 */
#include "libcommon/layout/hf/hf_config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/report.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/model/config.h"

/* ---- arguments ---- */

static bool arg_flag(const struct source *s, const char *key, bool otherwise)
{
    int64_t v;

    return pk_as_int(pk_get(s->run.args, key), &v) ? v != 0 : otherwise;
}

static double arg_real(const struct source *s, const char *key, double otherwise)
{
    double v;

    return pk_as_double(pk_get(s->run.args, key), &v) ? v : otherwise;
}

/* The state of one call of hf_config_of(), and how to report arguments that contradict the architecture. */
struct hf_check {
    const struct source *s;
    bool insists;                       /* the user named the architecture, so contradictions are only warnings */
    struct report *r;
    struct err *e;
    bool refused;
};

/* Report an argument `key` for which Transformers has no setting. `why` is the reason, which ends the message. */
static void report_inexpressible_arg(struct hf_check *k, const char *key, const char *why)
{
    struct strbuf value = {0};
    const struct pk *v = pk_get(k->s->run.args, key);

    if (v)
        pk_text(v, &value);
    else
        strbuf_addf(&value, "absent");
    if (k->insists)
        report_add(k->r, SEV_WARNING, "architecture", NULL, ERR_NO_BYTE, NULL, "argument %s is %.60s: %s", key,
                   value.buf, why);
    else if (!k->refused)
        err_data(k->e, k->s->path, ERR_NO_BYTE, "argument %s is %.60s: %s", key, value.buf, why);
    k->refused |= !k->insists;
    strbuf_free(&value);
}

static void warn_config_drift(struct hf_check *k, const char *text)
{
    report_add(k->r, SEV_WARNING, "drift", NULL, ERR_NO_BYTE, NULL, "%s", text);
}

/* ---- the architectures ---- */

/* Refuse arguments that neither BLOOM nor GPT-2 supports in Transformers. */
static void check_common(struct hf_check *k, const struct hf_config *c)
{
    const struct source *s = k->s;
    const char *norm = pk_as_str(pk_get(s->run.args, "normalization"));

    if (s->config.glu)
        report_inexpressible_arg(k, pk_get(s->run.args, "swiglu") ? "swiglu" : "glu_activation",
                                 "the architecture has no gated MLPs");
    if (pk_int_or(pk_get(s->run.args, "kv_channels"), c->hidden / c->n_heads) != c->hidden / c->n_heads)
        report_inexpressible_arg(k, "kv_channels", "the architecture needs heads of size hidden / heads");
    if (arg_flag(s, "untie_embeddings_and_output_weights", false))
        report_inexpressible_arg(k, "untie_embeddings_and_output_weights",
                                 "the head of the architecture is its embedding");
    if (pk_int_or(pk_get(s->run.args, "num_key_value_heads"), c->n_heads) != c->n_heads)
        report_inexpressible_arg(k, "num_key_value_heads", "the architecture has keys and values for every head");
    if (norm && strcmp(norm, "layernorm") != 0 && strcmp(norm, "LayerNorm") != 0)
        report_inexpressible_arg(k, "normalization", "the architecture has LayerNorms");
    if (arg_flag(s, "fp32_residual_connection", false))
        warn_config_drift(
            k, "argument fp32_residual_connection is true, but Transformers keeps residuals in the type of the "
               "weights, so results differ slightly");
}

static void check_bloom(struct hf_check *k, const struct hf_config *c)
{
    const struct source *s = k->s;

    if (strcmp(s->config.position, "alibi") != 0)
        report_inexpressible_arg(k, "position_embedding_type", "BLOOM supports only ALiBi");
    if (!s->config.embed_layernorm && !arg_flag(s, "use_bnb_optimizer", false))
        report_inexpressible_arg(k, "embed_layernorm", "BLOOM always has a LayerNorm after its embedding");
    if (c->ffn != 4 * c->hidden)
        report_inexpressible_arg(k, "ffn_hidden_size", "BLOOM's MLP is 4 times as wide as the model");
    if (strcmp(c->activation, "gelu") == 0)
        warn_config_drift(
            k, "arguments bias_gelu_fusion and openai_gelu are false: the model was trained with the erf form of GELU, "
               "but Transformers uses the tanh form for BLOOM; activations differ by up to 4.7e-4");
    if (c->epsilon != 1e-5)
        warn_config_drift(k,
             "argument layernorm_epsilon is not 1e-05: the LayerNorm of the embedding was trained with 1e-05 "
             "nevertheless, but Transformers uses one epsilon for all");
}

static void check_gpt2(struct hf_check *k, const struct hf_config *c)
{
    const struct source *s = k->s;

    (void)c;
    if (strcmp(s->config.position, "absolute") != 0)
        report_inexpressible_arg(k, "position_embedding_type", "GPT-2 supports only learned positions");
    if (s->config.embed_layernorm)
        report_inexpressible_arg(k, "embed_layernorm", "GPT-2 has no LayerNorm after its embedding");
    if (arg_flag(s, "apply_residual_connection_post_layernorm", false))
        report_inexpressible_arg(k, "apply_residual_connection_post_layernorm",
                                 "GPT-2 applies the residual before its LayerNorms");
}

/* Returns the name of the MLP's activation function, derived from the fusion arguments. */
static const char *activation(const struct source *s)
{
    if (arg_flag(s, "onnx_safe", false))
        return "gelu";
    if (arg_flag(s, "bias_gelu_fusion", true))
        return "gelu_fast";
    return arg_flag(s, "openai_gelu", false) ? "gelu_new" : "gelu";
}

/*
 * Set the token ids of a model for which no tokenizer is given. An imported model has these ids in its arguments.
 * Otherwise BLOOM gets the ids of its published tokenizer. With GPT-2's tokenizer, the end-of-document token is the
 * last token of the vocabulary.
 */
static void default_tokens(const struct source *s, struct hf_config *c)
{
    static const int64_t of_bloom[HF_TOKENS] = { [HF_BOS] = 1, [HF_EOS] = 2, [HF_PAD] = 3, [HF_UNK] = 0 };
    const char *type = pk_as_str(pk_get(s->run.args, "tokenizer_type"));
    uint32_t n = 0;
    struct pk **kept = pk_items(pk_get(s->run.args, HF_TOKENS_ARG), &n);
    int64_t eod = s->config.vocab_tokens > 0 ? s->config.vocab_tokens - 1 : c->arch == HF_GPT2 ? 50256 : -1;

    for (int i = 0; i < HF_TOKENS; i++)
        c->token[i] = -1;
    if (kept && n == HF_TOKENS) {
        for (int i = 0; i < HF_TOKENS; i++)
            if (!pk_as_int(kept[i], &c->token[i]) || c->token[i] < 0)
                c->token[i] = -1;
        return;
    }
    if (c->arch == HF_BLOOM && !(type && strcmp(type, "GPT2BPETokenizer") == 0))
        memcpy(c->token, of_bloom, sizeof of_bloom);
    else
        c->token[HF_BOS] = c->token[HF_EOS] = eod;
}

int hf_config_of(const struct source *s, int arch, struct hf_config *c, struct report *r, struct err *e)
{
    struct hf_check k = { .s = s, .insists = arch >= 0, .r = r, .e = e };
    const struct model_config *m = &s->config;

    if (!s->run.args || m->hidden <= 0 || m->n_layers <= 0 || m->n_heads <= 0 || m->hidden % m->n_heads) {
        err_data(e, s->path, ERR_NO_BYTE,
                 "the training arguments lack the number of layers, the hidden size or the number of heads");
        return -1;
    }
    *c = (struct hf_config){
        .arch = arch >= 0 ? (enum hf_arch)arch : strcmp(m->position, "absolute") == 0 ? HF_GPT2 : HF_BLOOM,
        .vocab = m->vocab, .hidden = m->hidden, .n_layers = m->n_layers, .n_heads = m->n_heads,
        .ffn = m->ffn_hidden > 0 ? m->ffn_hidden : 4 * m->hidden, .positions = m->max_positions,
        .attention_dropout = arg_real(s, "attention_dropout", 0.1),
        .hidden_dropout = arg_real(s, "hidden_dropout", 0.1),
        .epsilon = arg_real(s, "layernorm_epsilon", 1e-5), .init_std = arg_real(s, "init_method_std", 0.02),
        .post_layernorm_residual = arg_flag(s, "apply_residual_connection_post_layernorm", false),
        .tp = s->topo.tp > 0 ? s->topo.tp : 1, .activation = activation(s),
    };
    default_tokens(s, c);
    check_common(&k, c);
    if (c->arch == HF_BLOOM)
        check_bloom(&k, c);
    else
        check_gpt2(&k, c);
    return k.refused ? -1 : 0;
}

/* ---- reading config.json ---- */

struct hf_reading {
    const char *path;
    const json_t *o;
    struct err *e;
};

static const json_t *hf_config_value(const struct hf_reading *x, const char *key, const char *alias)
{
    const json_t *v = alias ? json_object_get(x->o, alias) : NULL;

    v = v && !json_is_null(v) ? v : json_object_get(x->o, key);
    return v && !json_is_null(v) ? v : NULL;
}

static int read_dim(const struct hf_reading *x, const char *key, const char *alias, int64_t *out)
{
    const json_t *v = hf_config_value(x, key, alias);

    *out = v && json_is_integer(v) ? json_integer_value(v) : 0;
    if (*out >= 1 && *out <= (int64_t)1 << 40)
        return 0;
    err_data(x->e, x->path, ERR_NO_BYTE, "'%s' is %s, but must be a number of 1 or more", key, v ? "none" : "absent");
    return -1;
}

static double read_real(const struct hf_reading *x, const char *key, double otherwise)
{
    const json_t *v = hf_config_value(x, key, NULL);

    return v && json_is_number(v) ? json_number_value(v) : otherwise;
}

static bool read_hf_config_flag(const struct hf_reading *x, const char *key, bool otherwise)
{
    const json_t *v = hf_config_value(x, key, NULL);

    return v && json_is_boolean(v) ? json_boolean_value(v) : otherwise;
}

static int refuse_flag(const struct hf_reading *x, const char *key, bool bad, const char *why)
{
    if (read_hf_config_flag(x, key, !bad) != bad)
        return 0;
    err_data(x->e, x->path, ERR_NO_BYTE, "'%s' is %s: %s", key, bad ? "true" : "false", why);
    return -1;
}

static int read_activation(const struct hf_reading *x, struct hf_config *c)
{
    /* the three forms of GELU that Megatron supports: { name in Transformers, name in hf_config.activation } */
    static const char *const names[][2] = {
        { "gelu_fast", "gelu_fast" }, { "gelu_new", "gelu_new" }, { "gelu_pytorch_tanh", "gelu_new" },
        { "gelu", "gelu" },
    };
    const char *word = json_string_value(hf_config_value(x, "activation_function", NULL));

    c->activation = c->arch == HF_BLOOM ? "gelu_fast" : word ? NULL : "gelu_new";
    for (int i = 0; i < 4 && !c->activation; i++)
        if (strcmp(names[i][0], word) == 0)
            c->activation = names[i][1];
    if (c->activation)
        return 0;
    err_data(x->e, x->path, ERR_NO_BYTE, "'activation_function' is '%.60s', but Megatron supports only GELU", word);
    return -1;
}

static void read_tokens(const struct hf_reading *x, struct hf_config *c)
{
    static const char *const keys[HF_TOKENS] = { "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id" };

    for (int i = 0; i < HF_TOKENS; i++) {
        const json_t *v = hf_config_value(x, keys[i], NULL);

        c->token[i] = v && json_is_integer(v) ? json_integer_value(v) : -1;
    }
}

/*
 * Read the type of the weights from config.json. Transformers 5 writes `dtype`, all earlier releases write
 * `torch_dtype`.
 */
static enum dtype read_hf_weights_dtype(const struct hf_reading *x)
{
    static const enum dtype dtypes[] = { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };
    const char *word = json_string_value(hf_config_value(x, "dtype", "torch_dtype"));

    for (int i = 0; word && i < 3; i++)
        if (strcmp(word, hf_dtype_word(dtypes[i])) == 0)
            return dtypes[i];
    return DTYPE_N;
}

static int read_bloom(const struct hf_reading *x, struct hf_config *c)
{
    if (read_dim(x, "hidden_size", "n_embed", &c->hidden) < 0 ||
        read_dim(x, "n_layer", "num_hidden_layers", &c->n_layers) < 0 ||
        read_dim(x, "n_head", "num_attention_heads", &c->n_heads) < 0)
        return -1;
    c->ffn = 4 * c->hidden;
    c->post_layernorm_residual = read_hf_config_flag(x, "apply_residual_connection_post_layernorm", false);
    if (c->epsilon == 1e-5)
        return 0;
    err_data(x->e, x->path, ERR_NO_BYTE, "'layer_norm_epsilon' is %g, but Megatron always uses 1e-05 for the LayerNorm "
                                         "of the embedding",
             c->epsilon);
    return -1;
}

static int read_gpt2(const struct hf_reading *x, struct hf_config *c)
{
    if (read_dim(x, "n_embd", "hidden_size", &c->hidden) < 0 ||
        read_dim(x, "n_layer", "num_hidden_layers", &c->n_layers) < 0 ||
        read_dim(x, "n_head", "num_attention_heads", &c->n_heads) < 0 ||
        read_dim(x, "n_positions", "max_position_embeddings", &c->positions) < 0)
        return -1;
    c->ffn = 4 * c->hidden;
    if (hf_config_value(x, "n_inner", NULL) && read_dim(x, "n_inner", NULL, &c->ffn) < 0)
        return -1;
    return refuse_flag(x, "add_cross_attention", true, "Megatron's decoder has no cross-attention") < 0 ||
           refuse_flag(x, "scale_attn_by_inverse_layer_idx", true,
                       "Megatron does not scale attention in this way") < 0 ||
           refuse_flag(x, "scale_attn_weights", false, "Megatron always scales by the square root of the head size") < 0
           ? -1 : 0;
}

static int read_hf_config_object(const struct hf_reading *x, struct hf_config *c)
{
    const char *type = json_string_value(hf_config_value(x, "model_type", NULL));
    int arch = type ? hf_arch_by_name(type) : -1;

    if (arch < 0) {
        err_data(x->e, x->path, ERR_NO_BYTE, "'model_type' is '%.60s': only bloom and gpt2 can be imported",
                 type ? type : "absent");
        return -1;
    }
    *c = (struct hf_config){ .arch = (enum hf_arch)arch, .tp = 1 };
    c->epsilon = read_real(x, "layer_norm_epsilon", 1e-5);
    c->init_std = read_real(x, "initializer_range", 0.02);
    c->attention_dropout = arch == HF_GPT2 ? read_real(x, "attn_pdrop", 0.1) : read_real(x, "attention_dropout", 0);
    c->hidden_dropout = arch == HF_GPT2 ? read_real(x, "resid_pdrop", 0.1) : read_real(x, "hidden_dropout", 0);
    c->dtype = read_hf_weights_dtype(x);
    read_tokens(x, c);
    if (read_dim(x, "vocab_size", NULL, &c->vocab) < 0 || read_activation(x, c) < 0 ||
        refuse_flag(x, "tie_word_embeddings", false, "the head of Megatron is the embedding") < 0 ||
        (arch == HF_BLOOM ? read_bloom(x, c) : read_gpt2(x, c)) < 0)
        return -1;
    if (c->hidden % c->n_heads == 0)
        return 0;
    err_data(x->e, x->path, ERR_NO_BYTE, "hidden size %lld is not divisible by %lld heads", (long long)c->hidden,
             (long long)c->n_heads);
    return -1;
}

char *hf_config_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? path_join(path, "config.json") : xstrdup(path);
}

int hf_config_read(const char *path, const char *text, size_t len, struct hf_config *c, struct err *e)
{
    json_error_t je;
    json_t *o = json_loadb(text, len, 0, &je);
    struct hf_reading x = { path, o, e };
    int rc = -1;

    if (!o)
        err_data(e, path, (uint64_t)(je.position > 0 ? je.position : 0), "no JSON: %s", je.text);
    else if (!json_is_object(o))
        err_data(e, path, 0, "no JSON object");
    else
        rc = read_hf_config_object(&x, c);
    json_decref(o);
    return rc;
}
