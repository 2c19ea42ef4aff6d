/*
 * hf_source_state.c - create the run state for the weights of an imported model
 *
 * The state is as a trainer would have saved it at iteration 0. It has Megatron's optimizer groups and those training
 * arguments that a trainer compares or a tool reads. A trainer that continues from it takes all others from its command
 * line.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/layout/hf/hf_source_impl.h"

static void set_arg_real(struct arena *a, struct pk *d, const char *key, double v)
{
    pk_set_str(a, d, key, pk_float(a, v));
}

static void set_arg_flag(struct arena *a, struct pk *d, const char *key, bool v)
{
    pk_set_str(a, d, key, pk_bool(a, v));
}

static struct pk *tuple_of_one(struct arena *a, struct pk *v)
{
    struct pk *t = pk_tuple(a);

    pk_add(a, t, v);
    return t;
}

/* ---- arguments ---- */

/*
 * Returns a member of Megatron's enum PositionEmbeddingType. The pickle holds the member's value, as for any Python
 * enum.
 */
static struct pk *make_hf_position_type(struct arena *a, enum hf_arch arch)
{
    enum { ABSOLUTE = 2, ALIBI = 3 };

    return pk_call(a, pk_global(a, "megatron.enums", "PositionEmbeddingType"),
                   tuple_of_one(a, pk_int(a, arch == HF_BLOOM ? ALIBI : ABSOLUTE)));
}

static void model_args(struct arena *a, struct pk *d, const struct hf_config *c)
{
    int64_t positions = c->arch == HF_BLOOM ? 2048 : c->positions;

    pk_set_int(a, d, "num_layers", c->n_layers);
    pk_set_int(a, d, "hidden_size", c->hidden);
    pk_set_int(a, d, "ffn_hidden_size", c->ffn);
    pk_set_int(a, d, "num_attention_heads", c->n_heads);
    pk_set_int(a, d, "kv_channels", c->hidden / c->n_heads);
    pk_set_int(a, d, "max_position_embeddings", positions);
    pk_set_int(a, d, "seq_length", positions);
    pk_set_int(a, d, "encoder_seq_length", positions);
    pk_set_int(a, d, "make_vocab_size_divisible_by", 128);
    pk_set_str(a, d, "pad_vocab_size_to", pk_none(a));
    pk_set_int(a, d, "padded_vocab_size", c->vocab);
    set_arg_real(a, d, "layernorm_epsilon", c->epsilon);
    set_arg_flag(a, d, "apply_residual_connection_post_layernorm", c->post_layernorm_residual);
    set_arg_flag(a, d, "embed_layernorm", c->arch == HF_BLOOM);
    set_arg_flag(a, d, "bias_gelu_fusion", strcmp(c->activation, "gelu_fast") == 0);
    set_arg_flag(a, d, "openai_gelu", strcmp(c->activation, "gelu_new") == 0);
    pk_set_str(a, d, "onnx_safe", pk_none(a));
    pk_set_str(a, d, "position_embedding_type", make_hf_position_type(a, c->arch));
    pk_set_str(a, d, "glu_activation", pk_none(a));
    set_arg_real(a, d, "init_method_std", c->init_std);
    set_arg_flag(a, d, "apply_query_key_layer_scaling", false);
    set_arg_flag(a, d, "attention_softmax_in_fp32", false);
    set_arg_flag(a, d, "fp32_residual_connection", false);
}

static void training_args(struct arena *a, struct pk *d, const struct hf_config *c)
{
    set_arg_real(a, d, "attention_dropout", c->attention_dropout);
    set_arg_real(a, d, "hidden_dropout", c->hidden_dropout);
    pk_set_str(a, d, "optimizer", pk_str(a, "adam"));
    set_arg_real(a, d, "lr", 0);
    set_arg_real(a, d, "min_lr", 0);
    pk_set_str(a, d, "lr_decay_style", pk_str(a, "cosine"));
    set_arg_real(a, d, "weight_decay", 0.1);
    set_arg_real(a, d, "clip_grad", 1);
    set_arg_real(a, d, "adam_beta1", 0.9);
    set_arg_real(a, d, "adam_beta2", 0.95);
    set_arg_real(a, d, "adam_eps", 1e-8);
    set_arg_flag(a, d, "fp16", c->dtype == DTYPE_F16);
    set_arg_flag(a, d, "bf16", c->dtype == DTYPE_BF16);
    pk_set_str(a, d, "params_dtype", pk_global(a, "torch", hf_dtype_word(c->dtype)));
    pk_set_int(a, d, "zero_stage", c->dtype == DTYPE_F16);
    set_arg_flag(a, d, "deepspeed", true);
    pk_set_str(a, d, "pp_partition_method", pk_none(a));
    pk_set_str(a, d, "tokenizer_type", pk_str(a, "PretrainedFromHF"));
    pk_set_str(a, d, "tokenizer_name_or_path", pk_none(a));
    pk_set_str(a, d, "no_save_optim", pk_none(a));
}

static void topology_args(struct arena *a, struct pk *d)
{
    pk_set_int(a, d, "tensor_model_parallel_size", 1);
    pk_set_int(a, d, "pipeline_model_parallel_size", 1);
    pk_set_int(a, d, "data_parallel_size", 1);
    pk_set_int(a, d, "world_size", 1);
    pk_set_int(a, d, "rank", 0);
    pk_set_int(a, d, "local_rank", 0);
    pk_set_int(a, d, "iteration", 0);
    pk_set_int(a, d, "consumed_train_samples", 0);
    pk_set_int(a, d, "consumed_valid_samples", 0);
    pk_set_int(a, d, "consumed_train_tokens", 0);
    set_arg_real(a, d, "gigaflos_no_embeds", 0);
}

/*
 * Returns the token ids as a list. Megatron has no such argument. A later export uses the list if no tokenizer gives
 * the ids.
 */
static struct pk *token_ids(struct arena *a, const struct hf_config *c)
{
    struct pk *list = pk_list(a);

    for (int i = 0; i < HF_TOKENS; i++)
        pk_add(a, list, pk_int(a, c->token[i]));
    return list;
}

static struct pk *arguments(struct arena *a, const struct hf_config *c)
{
    struct pk *d = pk_dict(a);

    model_args(a, d, c);
    training_args(a, d, c);
    topology_args(a, d);
    pk_set_str(a, d, HF_TOKENS_ARG, token_ids(a, c));
    return pk_object(a, "argparse", "Namespace", d);
}

/* ---- the arguments of a run whose own ones are lost ---- */

static json_t *config_member(const json_t *o, const char *key, const char *alias)
{
    json_t *v = json_object_get(o, key);

    return v ? v : json_object_get(o, alias);
}

static void copy_config_int(struct arena *a, struct pk *d, const char *arg, const json_t *v)
{
    if (json_is_integer(v))
        pk_set_int(a, d, arg, json_integer_value(v));
}

/*
 * Returns the training arguments that readers of a checkpoint use. They are made for a model that is neither BLOOM nor
 * GPT-2.
 */
static struct pk *other_arguments(struct arena *a, const json_t *o)
{
    static const char *const keys[][3] = {
        { "num_layers", "num_hidden_layers", "n_layer" }, { "hidden_size", "hidden_size", "n_embd" },
        { "num_attention_heads", "num_attention_heads", "n_head" },
        { "num_key_value_heads", "num_key_value_heads", "num_key_value_heads" },
        { "ffn_hidden_size", "intermediate_size", "n_inner" }, { "padded_vocab_size", "vocab_size", "vocab_size" },
        { "max_position_embeddings", "max_position_embeddings", "n_positions" },
    };
    const json_t *tied = json_object_get(o, "tie_word_embeddings");
    const json_t *parallel = json_object_get(o, "use_parallel_residual");
    const char *act = json_string_value(json_object_get(o, "hidden_act"));
    struct pk *d = pk_dict(a);

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        copy_config_int(a, d, keys[i][0], config_member(o, keys[i][1], keys[i][2]));
    if (json_is_boolean(tied))
        set_arg_flag(a, d, "untie_embeddings_and_output_weights", !json_is_true(tied));
    if (json_is_boolean(parallel))
        set_arg_flag(a, d, "gpt_j_residual", json_is_true(parallel));
    if (act && strcmp(act, "silu") == 0)
        set_arg_flag(a, d, "swiglu", true);
    if (json_object_get(o, "rms_norm_eps"))
        pk_set_str(a, d, "normalization", pk_str(a, "rmsnorm"));
    topology_args(a, d);
    return pk_object(a, "argparse", "Namespace", d);
}

/* Check that config.json states the number of layers, the hidden size and the number of heads. */
static int check_sizes(const char *path, const json_t *o, struct err *e)
{
    static const char *const keys[][2] = { { "num_hidden_layers", "n_layer" }, { "hidden_size", "n_embd" },
                                           { "num_attention_heads", "n_head" } };

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *v = config_member(o, keys[i][0], keys[i][1]);

        if (!json_is_integer(v) || json_integer_value(v) < 1) {
            err_data(e, path, ERR_NO_BYTE, "'%s' is %s, a number of 1 or more is expected", keys[i][0],
                     v ? "none" : "absent");
            return -1;
        }
    }
    return 0;
}

static struct pk *parse_run_args(const char *path, const char *text, size_t len, struct arena *a, struct err *e)
{
    json_error_t why;
    json_t *o = json_loadb(text, len, 0, &why);
    const char *type = json_string_value(json_object_get(o, "model_type"));
    struct hf_config c;
    struct pk *args = NULL;

    if (!json_is_object(o)) {
        err_data(e, path, ERR_NO_BYTE, "no JSON object: %s", o ? "another value" : why.text);
    } else if (type && hf_arch_by_name(type) >= 0) {
        if (hf_config_read(path, text, len, &c, e) == 0)
            args = arguments(a, &c);
    } else if (check_sizes(path, o, e) == 0) {
        args = other_arguments(a, o);
    }
    json_decref(o);
    return args;
}

struct pk *hf_run_args(const char *path, struct arena *a, struct err *e)
{
    enum { MOST = 1 << 24 };
    char *file = hf_config_file(path), *text;
    struct pk *args = NULL;
    uint64_t len;

    text = file_slurp(file, MOST, &len, e);
    if (text)
        args = parse_run_args(file, text, len, a, e);
    free(text);
    free(file);
    return args;
}

/* ---- the state ---- */

void hf_make_state(struct source *s, const struct hf_config *c, int64_t tokens, int n_groups)
{
    run_state_begin(s, arguments(s->arena, c));
    s->config.vocab = c->vocab;
    s->config.vocab_tokens = tokens;
    s->groups = optim_groups_by_decay(s, n_groups);
    s->run.n_groups = n_groups;
    s->zero_stage_1 = c->dtype == DTYPE_F16;
}
