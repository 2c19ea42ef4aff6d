/*
 * core_args.c - compare the parameters of a Megatron-core model with the saved arguments (args)
 *
 * Only what args states and the tensors refute is reported; an argument that is missing or None states nothing. Models
 * with blocks of other kinds (Mamba, a heterogeneous list of layers), with an encoder, or with attention of other
 * forms, have other tensors, which are not compared.
 */
#include "libcommon/layout/core_args.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pickle/pickle.h"

static const char layers[] = "decoder.layers.", embedding[] = "embedding.word_embeddings.weight";

struct core_claims {
    const struct source *s;
    const struct pk *args;
    bool tied_head;
    enum severity severity;
    struct report *r;
};

int core_layer_of(const char *name)
{
    const char *digits = name + sizeof layers - 1;
    const size_t n = str_starts(name, layers) ? strspn(digits, "0123456789") : 0;

    return n > 0 && n < 7 && digits[n] == '.' ? atoi(digits) : -1;
}

/* Returns the number that is the value of an argument, or -1 if the argument is missing, None or not a number. */
static int64_t claimed_number(const struct core_claims *c, const char *key)
{
    return pk_int_or(pk_get(c->args, key), -1);
}

static bool claims_true(const struct core_claims *c, const char *key)
{
    return claimed_number(c, key) > 0;
}

static bool has_tensor(const struct core_claims *c, const char *name)
{
    return source_param(c->s, name) != NULL;
}

/* Returns the first parameter whose name within a decoder layer is `in_layer`, or NULL. */
static const struct param *param_in_layers(const struct core_claims *c, const char *in_layer)
{
    for (int i = 0; i < c->s->n_params; i++) {
        const char *name = c->s->param[i].name;

        if (core_layer_of(name) >= 0 && strcmp(strchr(name + sizeof layers - 1, '.') + 1, in_layer) == 0)
            return &c->s->param[i];
    }
    return NULL;
}

__attribute__((format(printf, 3, 4)))
static void refute(const struct core_claims *c, const char *param, const char *fmt, ...)
{
    char why[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    report_add(c->r, c->severity, "config", c->s->path, ERR_NO_BYTE, param, "%s", why);
}

/* ---- shapes ---- */

/*
 * Check that the first linear module of an MLP has as many rows as the second one has columns, or twice as many if the
 * MLP is gated.
 */
static void check_claimed_gates(const struct core_claims *c)
{
    const bool gated = claims_true(c, "swiglu") || claims_true(c, "gated_linear_unit") || claims_true(c, "quick_geglu");

    for (int i = 0; i < c->s->n_params; i++) {
        const struct param *p = &c->s->param[i], *second;
        const char *at = strstr(p->name, ".linear_fc1.weight");
        char *name;

        if (!at || p->ndim != 2 || !pk_get(c->args, "swiglu"))
            continue;
        name = str_fmt("%.*s.linear_fc2%s", (int)(at - p->name), p->name, at + strlen(".linear_fc1"));
        second = source_param(c->s, name);
        free(name);
        if (!second || second->ndim != 2 || p->shape[0] == (gated ? 2 : 1) * second->shape[1])
            continue;
        refute(c, p->name, "has %" PRId64 " rows and linear_fc2 has %" PRId64 " columns, but args.swiglu is %s",
               p->shape[0], second->shape[1], gated ? "true" : "false");
        return;
    }
}

/* Report a dimension of a parameter that differs from the size stated in the arguments. */
static void check_claimed_size(const struct core_claims *c, const struct param *p, int dim, const char *what,
                               int64_t stated)
{
    if (p && p->ndim > dim && stated > 0 && p->shape[dim] != stated)
        refute(c, p->name, "has %" PRId64 " %s, but by %s in args it has %" PRId64, p->shape[dim],
               dim ? "columns" : "rows", what, stated);
}

static void check_claimed_sizes(const struct core_claims *c)
{
    const int64_t hidden = claimed_number(c, "hidden_size"), heads = claimed_number(c, "num_attention_heads");
    const int64_t groups = claims_true(c, "group_query_attention") ? claimed_number(c, "num_query_groups") : heads;
    const bool plain = !claims_true(c, "attention_output_gate") && !claims_true(c, "multi_latent_attention");
    int64_t lanes = claimed_number(c, "kv_channels");

    if (lanes < 0 && hidden > 0 && heads > 0 && hidden % heads)
        refute(c, NULL, "args.hidden_size %" PRId64 " is no multiple of args.num_attention_heads %" PRId64 ", and "
               "there is no args.kv_channels", hidden, heads);
    if (lanes < 0 && hidden > 0 && heads > 0)
        lanes = hidden / heads;
    check_claimed_size(c, source_param(c->s, embedding), 1, "hidden_size", hidden);
    check_claimed_size(c, source_param(c->s, embedding), 0, "padded_vocab_size",
                       claimed_number(c, "padded_vocab_size"));
    for (int i = 0; i < c->s->n_params; i++) {
        const struct param *p = &c->s->param[i];
        const bool in_layer = core_layer_of(p->name) >= 0;

        if (!in_layer)
            continue;
        if (str_ends(p->name, ".self_attention.linear_qkv.weight") && heads > 0 && groups > 0 && lanes > 0 && plain &&
            heads < INT32_MAX && groups < INT32_MAX && lanes < INT32_MAX / 4)
            check_claimed_size(c, p, 0, "heads and groups", (heads + 2 * groups) * lanes);
        if (str_ends(p->name, ".mlp.linear_fc2.weight"))
            check_claimed_size(c, p, 1, "ffn_hidden_size", claimed_number(c, "ffn_hidden_size"));
        if (str_ends(p->name, ".mlp.router.weight"))
            check_claimed_size(c, p, 0, "num_experts", claimed_number(c, "num_experts"));
    }
}

/* ---- names ---- */

/*
 * Report a tensor that the arguments require but the model lacks, or one that the model has but the arguments exclude.
 * `there`: the model has the tensor. `stated`: the arguments require it.
 */
static void check_claimed_tensor(const struct core_claims *c, bool there, bool stated, const char *name,
                                 const char *key)
{
    if (there != stated)
        refute(c, name, stated ? "is missing, but args state that there is one (%s)"
                               : "is there, but args state that there is none (%s)", key);
}

/* Check the tensors that an argument adds to a module of every layer: biases, and the norm of queries. */
static void check_claimed_modules(const struct core_claims *c)
{
    const bool biases = claims_true(c, "add_bias_linear"), qkv = param_in_layers(c, "self_attention.linear_qkv.weight");
    const struct param *norm = param_in_layers(c, "self_attention.q_layernorm.weight");

    if (qkv && pk_get(c->args, "add_qkv_bias"))
        check_claimed_tensor(c, param_in_layers(c, "self_attention.linear_qkv.bias") != NULL,
                             biases || claims_true(c, "add_qkv_bias"),
                             "decoder.layers.0.self_attention.linear_qkv.bias", "add_qkv_bias, add_bias_linear");
    if (qkv && pk_get(c->args, "add_bias_linear"))
        check_claimed_tensor(c, param_in_layers(c, "self_attention.linear_proj.bias") != NULL, biases,
                             "decoder.layers.0.self_attention.linear_proj.bias", "add_bias_linear");
    if (qkv && pk_get(c->args, "qk_layernorm"))
        check_claimed_tensor(c, norm != NULL, claims_true(c, "qk_layernorm"),
                             "decoder.layers.0.self_attention.q_layernorm.weight", "qk_layernorm");
}

static void check_claimed_ends(const struct core_claims *c)
{
    const char *norm = pk_as_str(pk_get(c->args, "normalization"));
    const char *positions = pk_as_str(pk_get(c->args, "position_embedding_type"));
    const bool has_bias = has_tensor(c, "decoder.final_layernorm.bias"), head = has_tensor(c, "output_layer.weight");
    const bool untied = claims_true(c, "untie_embeddings_and_output_weights");

    if (norm && has_tensor(c, "decoder.final_layernorm.weight") && (strcmp(norm, "RMSNorm") == 0) == has_bias)
        refute(c, "decoder.final_layernorm.bias", "is %s, but args.normalization is %s",
               has_bias ? "there" : "missing", norm);
    if (positions && has_tensor(c, embedding) && strcmp(positions, "learned_absolute") != 0 &&
        has_tensor(c, "embedding.position_embeddings.weight"))
        refute(c, "embedding.position_embeddings.weight", "is there, but args.position_embedding_type is %s",
               positions);
    if (positions && has_tensor(c, embedding) && strcmp(positions, "learned_absolute") == 0 &&
        !has_tensor(c, "embedding.position_embeddings.weight"))
        refute(c, "embedding.position_embeddings.weight", "is missing: a model with these arguments has it");
    if (untied && has_tensor(c, embedding) && !head)
        refute(c, "output_layer.weight", "is missing: a model with these arguments has it");
    if (!untied && !c->tied_head && pk_get(c->args, "untie_embeddings_and_output_weights") && head)
        refute(c, "output_layer.weight", "is there, but args state that the embedding is the head "
               "(untie_embeddings_and_output_weights)");
}

/*
 * Check that layers have experts if the arguments state experts, and that the model has layers that predict several
 * tokens (mtp) if the arguments state such layers.
 */
static void check_claimed_kinds(const struct core_claims *c)
{
    const int64_t experts = claimed_number(c, "num_experts");
    bool layer = false, router = false, mtp = false;

    for (int i = 0; i < c->s->n_params; i++) {
        const char *name = c->s->param[i].name;

        layer |= core_layer_of(name) >= 0;
        router |= core_layer_of(name) >= 0 && strstr(name, ".mlp.router.") != NULL;
        mtp |= str_starts(name, "mtp.");
    }
    if (layer && pk_get(c->args, "num_experts") && router != (experts > 0))
        refute(c, NULL, router ? "layers have experts, but args.num_experts states none"
                               : "no layer has experts, but args.num_experts states some");
    if (layer && pk_get(c->args, "mtp_num_layers") && mtp != claims_true(c, "mtp_num_layers"))
        refute(c, NULL, mtp ? "there are layers that predict several tokens (mtp), but args.mtp_num_layers states none"
                            : "args.mtp_num_layers states layers that predict several tokens, but there are none");
}

/* ---- numbers of ranks ---- */

static void check_divides(const struct core_claims *c, const char *what, const char *of_ranks)
{
    const int64_t n = claimed_number(c, what), ranks = claimed_number(c, of_ranks);

    if (n > 0 && ranks > 0 && n % ranks)
        refute(c, NULL, "args.%s is %" PRId64 ", which args.%s, %" PRId64 ", does not divide", what, n, of_ranks,
               ranks);
}

/*
 * Check that each number of ranks divides the number of heads, rows or experts that these ranks share, and that the
 * product of the numbers of ranks is args.world_size.
 */
static void check_claimed_ranks(const struct core_claims *c)
{
    static const char *const degree[] = { "tensor_model_parallel_size", "pipeline_model_parallel_size",
                                          "data_parallel_size" };
    const int64_t context = claimed_number(c, "context_parallel_size"), world = claimed_number(c, "world_size");
    int64_t product = context > 0 ? context : 1;

    check_divides(c, "num_attention_heads", degree[0]);
    check_divides(c, "padded_vocab_size", degree[0]);
    check_divides(c, "num_experts", "expert_model_parallel_size");
    for (size_t i = 0; i < sizeof degree / sizeof *degree; i++) {
        const int64_t n = claimed_number(c, degree[i]);

        if (n < 1 || n > INT32_MAX || product > INT32_MAX)
            return;
        product *= n;
    }
    if (world > 0 && product != world && claimed_number(c, "encoder_tensor_model_parallel_size") <= 0)
        refute(c, NULL, "args.world_size is %" PRId64 ", but the numbers of tensor, pipeline, context and data ranks "
               "in args make %" PRId64, world, product);
}

void core_args_check(const struct source *s, bool tied_head, enum severity severity, struct report *r)
{
    const struct core_claims c = { s, s->run.args, tied_head, severity, r };

    if (claimed_number(&c, "num_layers") < 0)
        return;
    check_claimed_gates(&c);
    check_claimed_sizes(&c);
    check_claimed_ranks(&c);
    if (!pk_is_none(pk_get(c.args, "heterogeneous_layers_config_path")))
        return;
    for (int i = 0; i < s->n_params; i++)
        if (strstr(s->param[i].name, ".mixer.") || str_starts(s->param[i].name, "encoder."))
            return;
    check_claimed_modules(&c);
    check_claimed_ends(&c);
    check_claimed_kinds(&c);
}

void core_args_check_layers(const struct source *s, enum severity severity, struct report *r)
{
    const struct core_claims c = { s, s->run.args, false, severity, r };
    const int64_t stated = claimed_number(&c, "num_layers");
    int n = 0;

    for (int i = 0; i < s->n_params; i++) {
        const int layer = core_layer_of(s->param[i].name);

        n = layer >= n ? layer + 1 : n;
        if (str_starts(s->param[i].name, "encoder."))
            return;                     /* args.num_layers may be that of the encoder */
    }
    if (stated >= 0 && n > 0 && stated != n)
        refute(&c, NULL, "args.num_layers is %" PRId64 ", but the files have %d layers", stated, n);
}
