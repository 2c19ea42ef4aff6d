/*
 * params.h - the parameters of a GPT: one table of their names, order, shapes and merge rules
 *
 * A parameter's canonical name is that in the pipeline engine's files: "tied_modules.embed.word_embeddings.weight",
 * "3.mlp.dense_h_to_4h.weight" (blocks by the number of their layer file), "8.weight" (the final LayerNorm). A column
 * of the table has its name and storage form in Hugging Face Transformers.
 * If a checkpoint's universal_checkpoint_info has other rules, see merge_patterns.h.
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
    MERGE_SUM,                  /* every rank has a summand of the parameter: GPT-NeoX's row-parallel biases */
};
/* Returns "concat_0", "concat_1", "replicated", "vocabulary", "concat_0_halves" or "sum". */
const char *merge_rule_name(enum merge_rule m);
int merge_rule_by_name(const char *name);               /* -1: there is no such rule */

/* What to do with the padding rows of the vocabulary: keep them, or write only the first V0 rows. */
enum vocab_policy { VOCAB_KEEP, VOCAB_STRIP };

/* A parameter's function in the model, in the order of the model and of a layer file. */
enum role {
    ROLE_WORD, ROLE_WORD_NORM_W, ROLE_WORD_NORM_B, ROLE_POSITION,
    ROLE_NORM1_W, ROLE_NORM1_B, ROLE_QKV_W, ROLE_QKV_B, ROLE_DENSE_W, ROLE_DENSE_B,
    ROLE_NORM2_W, ROLE_NORM2_B, ROLE_UP_W, ROLE_UP_B, ROLE_DOWN_W, ROLE_DOWN_B,
    ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B,
    ROLE_N
};

enum param_place { PLACE_EMBEDDING, PLACE_BLOCK, PLACE_FINAL };

/* Transformers' architectures, and the conversion from the merged parameter to theirs. */
enum hf_arch { HF_BLOOM, HF_GPT2, HF_N };
enum hf_change {
    HF_SAME,
    HF_TRANSPOSE,               /* [out, in] -> [in, out] */
    HF_QKV_ROWS,                /* rows ordered by (head, kind, lane) -> by (kind, head, lane) */
    HF_QKV_TRANSPOSE,           /* reorder the rows that way, then transpose */
};

struct param_row {
    enum role role;
    enum param_place place;
    /* name within its layer: "mlp.dense_h_to_4h.weight"; for the final LayerNorm "weight" */
    const char *key;
    const char *tail;           /* the end of the name, which determines the merge rule in any module; NULL: none */
    enum merge_rule merge;
    int ndim;                   /* weight decay applies to matrices, not to vectors */
    char dims[3];               /* one letter per dimension: V rows of vocabulary, s positions, h hidden, q 3h, f ffn */
    struct {
        /* such as "mlp.c_fc.weight"; for a block, after "h.K."; NULL: there is no such parameter */
        const char *name;
        enum hf_change change;
    } hf[HF_N];
};
const struct param_row *param_row(enum role r);

struct param_dims { int64_t vocab, positions, hidden, ffn; };
int64_t param_dim(const struct param_dims *d, char letter);

#define PARAM_EMBEDDING "tied_modules.embed."           /* prefix of the embedding's keys */
/* A separate head, which is not in the table because the heads of this program are tied. */
#define PARAM_HEAD      "lm_head.weight"
/* Returns the canonical name of a role in the embedding, such as "tied_modules.embed.word_embeddings.weight". */
const char *param_embedding_name(enum role r);

/*
 * Returns the row of a canonical name and sets *layer to the number of its layer (-1 for the embedding). Returns NULL
 * if no supported GPT has it.
 */
const struct param_row *param_find(const char *param, int *layer);
/* Returns true if `param` ends in the role's tail, in whole components. The name need not be canonical. */
bool param_ends(const char *param, enum role r);
/* Returns the position of `param` within its layer: a role, or ROLE_N if only its neighbours can determine it. */
int param_order(const char *param);

/* Returns the merge rule from the table. A name that is not in it is concatenated on dim 0, as in the reference. */
enum merge_rule merge_rule_of(const char *param);
bool merge_rule_known(const char *param);               /* false: merge_rule_of() returns only a default */
/* Returns true for the tied embedding family, which is stored on the first and the last stage. */
bool param_is_tied(const char *param);
/*
 * Convert a name to its kind, by which replicas are counted: "3.input_layernorm.weight" -> "input_layernorm.weight"
 * with *layer = 3; "8.weight" -> "final_layernorm.weight"; "tied_modules.embed.x" -> "x" with *layer = -1. Writes
 * into buf and returns it.
 */
const char *param_kind(const char *param, int *layer, char buf[128]);

#endif
