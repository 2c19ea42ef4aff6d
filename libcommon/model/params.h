/*
 * params.h - the parameters of a GPT: the one table of their names, order, shapes and merge rules
 *
 * A parameter's canonical name is the one that the pipeline engine's files give it:
 * "tied_modules.embed.word_embeddings.weight", "3.mlp.dense_h_to_4h.weight" (blocks by the number of their layer
 * file), "8.weight" (the final LayerNorm). What Hugging Face Transformers calls it and how it keeps it there is a
 * column.
 * A checkpoint whose universal_checkpoint_info says other rules: merge_patterns.h.
 */
#ifndef SHARDKIT_MODEL_PARAMS_H
#define SHARDKIT_MODEL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

enum merge_rule {
    MERGE_CAT0,                 /* column-parallel: concatenate on dim 0 */
    MERGE_CAT1,                 /* row-parallel: concatenate on dim 1 */
    MERGE_REPLICATED,           /* every rank holds a copy */
    MERGE_VOCAB,                /* vocabulary-parallel: dim 0, rows padded to V */
    MERGE_CAT0_HALVES,          /* GLU: each slice is two stacked halves */
    MERGE_SUM,                  /* every rank holds a part, the sum is the parameter: GPT-NeoX's row-parallel biases */
};
/* "concat_0", "concat_1", "replicated", "vocabulary", "concat_0_halves", "sum". */
const char *merge_rule_name(enum merge_rule m);
int merge_rule_by_name(const char *name);               /* -1: none */

/* A parameter's part in the model, in the order of the model and inside a layer file. */
enum role {
    ROLE_WORD, ROLE_WORD_NORM_W, ROLE_WORD_NORM_B, ROLE_POSITION,
    ROLE_NORM1_W, ROLE_NORM1_B, ROLE_QKV_W, ROLE_QKV_B, ROLE_DENSE_W, ROLE_DENSE_B,
    ROLE_NORM2_W, ROLE_NORM2_B, ROLE_UP_W, ROLE_UP_B, ROLE_DOWN_W, ROLE_DOWN_B,
    ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B,
    ROLE_N
};

enum param_place { PLACE_EMBEDDING, PLACE_BLOCK, PLACE_FINAL };

/* Transformers' architectures, and what has to be done to the merged parameter to get theirs. */
enum hf_arch { HF_BLOOM, HF_GPT2, HF_N };
enum hf_change {
    HF_SAME,
    HF_TRANSPOSE,               /* [out, in] -> [in, out] */
    HF_QKV_ROWS,                /* rows by (head, kind, lane) -> by (kind, head, lane) */
    HF_QKV_TRANSPOSE,           /* those rows, then the transpose */
};

struct param_row {
    enum role role;
    enum param_place place;
    const char *key;            /* inside its layer: "mlp.dense_h_to_4h.weight", of the final LayerNorm "weight" */
    const char *tail;           /* the end of it that tells its merge rule, whatever module it is in; NULL: none */
    enum merge_rule merge;
    int ndim;                   /* matrices decay, vectors do not */
    char dims[3];               /* a letter a dimension: V rows of vocabulary, s positions, h hidden, q 3h, f ffn */
    struct {
        const char *name;       /* "mlp.c_fc.weight"; of a block, behind "h.K."; NULL: it has no such parameter */
        enum hf_change change;
    } hf[HF_N];
};
const struct param_row *param_row(enum role r);

struct param_dims { int64_t vocab, positions, hidden, ffn; };
int64_t param_dim(const struct param_dims *d, char letter);

#define PARAM_EMBEDDING "tied_modules.embed."           /* in front of the embedding's keys */
#define PARAM_HEAD      "lm_head.weight"                /* a head of its own: not in the table, we have tied ones */
/* "tied_modules.embed.word_embeddings.weight"; of a role in the embedding. */
const char *param_embedding_name(enum role r);

/* The row of a canonical name, and the number of its layer (-1 for the embedding); NULL: it is in no GPT of ours. */
const struct param_row *param_find(const char *param, int *layer);
/* Does `param` end in the role's tail, in whole components? For names that need not be canonical. */
bool param_ends(const char *param, enum role r);
/* Where `param` stands among those of its layer: a role, or ROLE_N for what only its neighbours can tell. */
int param_order(const char *param);

/* By the table. A name it does not know is concatenated on dim 0, as the reference does. */
enum merge_rule merge_rule_of(const char *param);
bool merge_rule_known(const char *param);               /* false: merge_rule_of() guesses */
/* True for the tied embedding family, which lives on the first and the last stage. */
bool param_is_tied(const char *param);
/* "3.input_layernorm.weight" -> "input_layernorm.weight" with *layer = 3; "8.weight" -> "final_layernorm.weight";
 * "tied_modules.embed.x" -> "x" with *layer = -1. The kind by which replicas are counted. Into buf. */
const char *param_kind(const char *param, int *layer, char buf[128]);

#endif
