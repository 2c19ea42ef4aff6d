/*
 * params.c - the table of a GPT's parameters, and look-up of names in it
 */
#include "libcommon/model/params.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

static const char *const rule_names[] = {
    [MERGE_CAT0] = "concat_0", [MERGE_CAT1] = "concat_1", [MERGE_REPLICATED] = "replicated",
    [MERGE_VOCAB] = "vocabulary", [MERGE_CAT0_HALVES] = "concat_0_halves",
    [MERGE_SUM] = "sum",
};
enum { N_RULES = sizeof rule_names / sizeof *rule_names };

const char *merge_rule_name(enum merge_rule m)
{
    return rule_names[m];
}

int merge_rule_by_name(const char *name)
{
    for (int i = 0; i < N_RULES; i++)
        if (strcmp(rule_names[i], name) == 0)
            return i;
    return -1;
}

/* ---- the table ---- */

/*
 * The key is the module's name followed by the tail. In some checkpoints the module has another name, so the merge rule
 * is determined by the tail alone.
 */
#define KEY(module, end) .key = module end, .tail = end

static const struct param_row table[ROLE_N] = {
    { ROLE_WORD, PLACE_EMBEDDING, KEY("", "word_embeddings.weight"), MERGE_VOCAB, 2, "Vh",
      { { "word_embeddings.weight", HF_SAME }, { "wte.weight", HF_SAME } } },
    { ROLE_WORD_NORM_W, PLACE_EMBEDDING, KEY("", "word_embeddings.norm.weight"), MERGE_REPLICATED, 1, "h",
      { { "word_embeddings_layernorm.weight", HF_SAME }, { 0 } } },
    { ROLE_WORD_NORM_B, PLACE_EMBEDDING, KEY("", "word_embeddings.norm.bias"), MERGE_REPLICATED, 1, "h",
      { { "word_embeddings_layernorm.bias", HF_SAME }, { 0 } } },
    { ROLE_POSITION, PLACE_EMBEDDING, KEY("", "position_embeddings.weight"), MERGE_REPLICATED, 2, "sh",
      { { 0 }, { "wpe.weight", HF_SAME } } },
    { ROLE_NORM1_W, PLACE_BLOCK, KEY("", "input_layernorm.weight"), MERGE_REPLICATED, 1, "h",
      { { "input_layernorm.weight", HF_SAME }, { "ln_1.weight", HF_SAME } } },
    { ROLE_NORM1_B, PLACE_BLOCK, KEY("", "input_layernorm.bias"), MERGE_REPLICATED, 1, "h",
      { { "input_layernorm.bias", HF_SAME }, { "ln_1.bias", HF_SAME } } },
    { ROLE_QKV_W, PLACE_BLOCK, KEY("self_attention.", "query_key_value.weight"), MERGE_CAT0, 2, "qh",
      { { "self_attention.query_key_value.weight", HF_SAME }, { "attn.c_attn.weight", HF_QKV_TRANSPOSE } } },
    { ROLE_QKV_B, PLACE_BLOCK, KEY("self_attention.", "query_key_value.bias"), MERGE_CAT0, 1, "q",
      { { "self_attention.query_key_value.bias", HF_SAME }, { "attn.c_attn.bias", HF_QKV_ROWS } } },
    { ROLE_DENSE_W, PLACE_BLOCK, KEY("", "self_attention.dense.weight"), MERGE_CAT1, 2, "hh",
      { { "self_attention.dense.weight", HF_SAME }, { "attn.c_proj.weight", HF_TRANSPOSE } } },
    { ROLE_DENSE_B, PLACE_BLOCK, KEY("", "self_attention.dense.bias"), MERGE_REPLICATED, 1, "h",
      { { "self_attention.dense.bias", HF_SAME }, { "attn.c_proj.bias", HF_SAME } } },
    { ROLE_NORM2_W, PLACE_BLOCK, KEY("", "post_attention_layernorm.weight"), MERGE_REPLICATED, 1, "h",
      { { "post_attention_layernorm.weight", HF_SAME }, { "ln_2.weight", HF_SAME } } },
    { ROLE_NORM2_B, PLACE_BLOCK, KEY("", "post_attention_layernorm.bias"), MERGE_REPLICATED, 1, "h",
      { { "post_attention_layernorm.bias", HF_SAME }, { "ln_2.bias", HF_SAME } } },
    { ROLE_UP_W, PLACE_BLOCK, KEY("mlp.", "dense_h_to_4h.weight"), MERGE_CAT0, 2, "fh",
      { { "mlp.dense_h_to_4h.weight", HF_SAME }, { "mlp.c_fc.weight", HF_TRANSPOSE } } },
    { ROLE_UP_B, PLACE_BLOCK, KEY("mlp.", "dense_h_to_4h.bias"), MERGE_CAT0, 1, "f",
      { { "mlp.dense_h_to_4h.bias", HF_SAME }, { "mlp.c_fc.bias", HF_SAME } } },
    { ROLE_DOWN_W, PLACE_BLOCK, KEY("", "mlp.dense_4h_to_h.weight"), MERGE_CAT1, 2, "hf",
      { { "mlp.dense_4h_to_h.weight", HF_SAME }, { "mlp.c_proj.weight", HF_TRANSPOSE } } },
    { ROLE_DOWN_B, PLACE_BLOCK, KEY("", "mlp.dense_4h_to_h.bias"), MERGE_REPLICATED, 1, "h",
      { { "mlp.dense_4h_to_h.bias", HF_SAME }, { "mlp.c_proj.bias", HF_SAME } } },
    /* these names have only the layer number and no module, such as "74.weight" and "74.bias" */
    { ROLE_FINAL_NORM_W, PLACE_FINAL, .key = "weight", .merge = MERGE_REPLICATED, .ndim = 1, .dims = "h",
      .hf = { { "ln_f.weight", HF_SAME }, { "ln_f.weight", HF_SAME } } },
    { ROLE_FINAL_NORM_B, PLACE_FINAL, .key = "bias", .merge = MERGE_REPLICATED, .ndim = 1, .dims = "h",
      .hf = { { "ln_f.bias", HF_SAME }, { "ln_f.bias", HF_SAME } } },
};

const struct param_row *param_row(enum role r) { return &table[r]; }

int64_t param_dim(const struct param_dims *d, char letter)
{
    switch (letter) {
    case 'V': return d->vocab;
    case 's': return d->positions;
    case 'q': return 3 * d->hidden;
    case 'f': return d->ffn;
    default: return d->hidden;
    }
}

/* ---- names ---- */

const char *param_embedding_name(enum role r)
{
    static const char *const names[] = {
        [ROLE_WORD] = PARAM_EMBEDDING "word_embeddings.weight",
        [ROLE_WORD_NORM_W] = PARAM_EMBEDDING "word_embeddings.norm.weight",
        [ROLE_WORD_NORM_B] = PARAM_EMBEDDING "word_embeddings.norm.bias",
        [ROLE_POSITION] = PARAM_EMBEDDING "position_embeddings.weight",
    };

    return names[r];
}

/* Returns true for names such as "74.weight" and "74.bias". Only the final LayerNorm has names without a module. */
static bool is_final_layernorm(const char *param)
{
    const char *p = param;

    while (isdigit((unsigned char)*p))
        p++;
    return p > param && (strcmp(p, ".weight") == 0 || strcmp(p, ".bias") == 0);
}

/*
 * Returns true if `param` ends in the tail, as a sequence of whole components. For example, "xdense_h_to_4h.bias" does
 * not end in "dense_h_to_4h.bias", because it belongs to another module.
 */
static bool has_component_tail(const char *param, const char *tail)
{
    size_t n = strlen(param), k = strlen(tail);

    return str_ends(param, tail) && (n == k || param[n - k - 1] == '.');
}

bool param_ends(const char *param, enum role r)
{
    return has_component_tail(param, table[r].tail ? table[r].tail : table[r].key);
}

static const struct param_row *row_by_tail(const char *param)
{
    for (int i = 0; i < ROLE_N; i++)
        if (table[i].tail && has_component_tail(param, table[i].tail))
            return &table[i];
    return NULL;
}

const struct param_row *param_find(const char *param, int *layer)
{
    const char *dot = strchr(param, '.');
    enum param_place place = PLACE_EMBEDDING;

    *layer = -1;
    if (str_starts(param, PARAM_EMBEDDING)) {
        param += sizeof PARAM_EMBEDDING - 1;
    } else if (dot && isdigit((unsigned char)*param) && dot - param < 9) {
        *layer = atoi(param);
        param = dot + 1;
        place = strchr(param, '.') ? PLACE_BLOCK : PLACE_FINAL;
    } else {
        return NULL;
    }
    for (int i = 0; i < ROLE_N; i++)
        if (table[i].place == place && strcmp(table[i].key, param) == 0)
            return &table[i];
    return NULL;
}

int param_order(const char *param)
{
    const struct param_row *row = row_by_tail(param);

    if (row)
        return row->role;
    return str_ends(param, ".weight") ? ROLE_FINAL_NORM_W : str_ends(param, ".bias") ? ROLE_FINAL_NORM_B : ROLE_N;
}

enum merge_rule merge_rule_of(const char *param)
{
    const struct param_row *row = row_by_tail(param);

    if (row)
        return row->merge;
    return has_component_tail(param, PARAM_HEAD) ? MERGE_VOCAB
           : is_final_layernorm(param)           ? MERGE_REPLICATED
                                                 : MERGE_CAT0;
}

bool merge_rule_known(const char *param)
{
    return row_by_tail(param) || has_component_tail(param, PARAM_HEAD) || is_final_layernorm(param);
}

bool param_is_tied(const char *param)
{
    return str_starts(param, "tied_modules.");
}

const char *param_kind(const char *param, int *layer, char buf[128])
{
    const char *rest = param;
    char *end;
    long n;

    *layer = -1;
    if (param_is_tied(param)) {
        /* skip "tied_modules.<key>." */
        const char *dot = strchr(param + strlen("tied_modules."), '.');

        rest = dot ? dot + 1 : param;
    } else if (isdigit((unsigned char)*param)) {
        n = strtol(param, &end, 10);
        if (*end == '.' && n <= INT_MAX) {
            *layer = (int)n;
            rest = end + 1;
        }
    }
    snprintf(buf, 128, "%s%.100s", is_final_layernorm(param) ? "final_layernorm." : "", rest);
    return buf;
}
