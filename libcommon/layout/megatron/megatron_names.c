/*
 * megatron_names.c - names of parameters, and how tensor ranks share them
 *
 * Sources: Megatron-core's ColumnParallelLinear, RowParallelLinear and VocabParallelEmbedding, and the keys that
 * TransformerLayer.sharded_state_dict() gives its norms.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/layout/core_args.h"
#include "libcommon/layout/megatron/megatron.h"

static const char layers[] = "decoder.layers.";

const char *megatron_param_name(struct arena *a, const char *name, int first_layer, bool dense)
{
    static const struct { const char *in_file, *in_torch_dist; bool of_mlp; } norms[] = {
        { "input_layernorm.", "self_attention.linear_qkv.layer_norm_", false },
        { "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_", true },
    };
    const int layer = core_layer_of(name);
    const char *rest, *begin = "";

    if (layer < 0)
        return arena_fmt(a, "%s", name);
    rest = strchr(name + sizeof layers - 1, '.') + 1;
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (str_starts(rest, norms[i].in_file) && (dense || !norms[i].of_mlp)) {
            rest += strlen(norms[i].in_file);
            begin = norms[i].in_torch_dist;
            break;
        }
    return arena_fmt(a, "%s%d.%s%s", layers, first_layer + layer, begin, rest);
}

/* Returns true if the name ends with ".<module>.<what>". `what` may be followed by digits, as in "weight3". */
static bool ends_with_module(const char *name, const char *module, const char *what)
{
    size_t n = strlen(name);
    const size_t w = strlen(what), m = strlen(module);

    while (n > 0 && isdigit((unsigned char)name[n - 1]))
        n--;
    if (n < w + m + 1 || strncmp(name + n - w, what, w) != 0 || name[n - w - 1] != '.')
        return false;
    n -= w + 1;
    return strncmp(name + n - m, module, m) == 0 && (n == m || name[n - m - 1] == '.');
}

enum megatron_cut megatron_cut_of(const char *name, bool gated)
{
    static const struct { const char *module, *what; enum megatron_cut cut; } rows[] = {
        { "word_embeddings", "weight", CUT_ROWS }, { "output_layer", "weight", CUT_ROWS },
        { "output_layer", "bias", CUT_ROWS },
        { "linear_qkv", "weight", CUT_ROWS }, { "linear_qkv", "bias", CUT_ROWS },
        { "linear_q_proj", "weight", CUT_ROWS }, { "linear_q_up_proj", "weight", CUT_ROWS },
        { "linear_kv_up_proj", "weight", CUT_ROWS },
        { "linear_fc1", "weight", CUT_GATED_ROWS }, { "linear_fc1", "bias", CUT_GATED_ROWS },
        { "linear_proj", "weight", CUT_COLUMNS }, { "linear_fc2", "weight", CUT_COLUMNS },
        { "linear_proj", "bias", CUT_NONE }, { "linear_fc2", "bias", CUT_NONE },
        /* The modules of Megatron-core cut these weights; those of Transformer Engine do not. */
        { "linear_q_down_proj", "weight", CUT_UNKNOWN }, { "linear_kv_down_proj", "weight", CUT_UNKNOWN },
        { "position_embeddings", "weight", CUT_NONE }, { "router", "weight", CUT_NONE },
        { "router", "bias", CUT_NONE }, { "router", "expert_bias", CUT_NONE },
    };
    const char *end = strrchr(name, '.');

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (ends_with_module(name, rows[i].module, rows[i].what))
            return rows[i].cut == CUT_GATED_ROWS && !gated ? CUT_ROWS : rows[i].cut;
    /* norms: "input_layernorm.weight", "linear_qkv.layer_norm_weight", "q_layernorm.weight" */
    if (end && (str_starts(end, ".layer_norm_") || (end - name > 4 && strncmp(end - 4, "norm", 4) == 0)))
        return CUT_NONE;
    return CUT_UNKNOWN;
}
