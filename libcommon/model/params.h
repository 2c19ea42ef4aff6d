/*
 * params.h - a table of the parameters of a GPT: names, order, shapes and merge rules
 *
 * A parameter's canonical name is the one in the pipeline engine's files: "tied_modules.embed.word_embeddings.weight",
 * "3.mlp.dense_h_to_4h.weight" (a block has the number of its layer file), "8.weight" (the final LayerNorm). Another
 * column of the table gives the parameter's name and storage order in Transformers. If universal_checkpoint_info in a
 * checkpoint gives merge rules, they take precedence over the table (merge_patterns.h).
 */
#ifndef SHARDKIT_MODEL_PARAMS_H
#define SHARDKIT_MODEL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

enum merge_rule {
    MERGE_CAT0,                 /* column-parallel: slices are concatenated on dim 0 */
    MERGE_CAT1,                 /* row-parallel: slices are concatenated on dim 1 */
    MERGE_REPLICATED,           /* every rank holds a copy */
    MERGE_VOCAB,                /* vocabulary: slices are concatenated on dim 0; rows are padded to V */
    MERGE_CAT0_HALVES,          /* gated MLP: each slice consists of two halves, which are concatenated separately */
    MERGE_SUM,                  /* the parameter is the sum of the ranks' parts (row-parallel biases of GPT-NeoX) */
};
/* Returns "concat_0", "concat_1", "replicated", "vocabulary", "concat_0_halves" or "sum". */
const char *merge_rule_name(enum merge_rule m);
int merge_rule_by_name(const char *name);               /* returns -1 if there is no such rule */

/* The rows of the vocabulary that are written: all (KEEP), or only the first V0, without padding (STRIP). */
enum vocab_policy { VOCAB_KEEP, VOCAB_STRIP };

/*
 * The function of a parameter in the model. The roles are in the order of the model, and of the parameters in a layer
 * file.
 */
enum role {
    ROLE_WORD, ROLE_WORD_NORM_W, ROLE_WORD_NORM_B, ROLE_POSITION,
    ROLE_NORM1_W, ROLE_NORM1_B, ROLE_QKV_W, ROLE_QKV_B, ROLE_DENSE_W, ROLE_DENSE_B,
    ROLE_NORM2_W, ROLE_NORM2_B, ROLE_UP_W, ROLE_UP_B, ROLE_DOWN_W, ROLE_DOWN_B,
    ROLE_FINAL_NORM_W, ROLE_FINAL_NORM_B,
    ROLE_N
};

enum param_place { PLACE_EMBEDDING, PLACE_BLOCK, PLACE_FINAL };

/* The architectures in Transformers, and the conversions from a merged parameter to the tensor in Transformers. */
enum hf_arch { HF_BLOOM, HF_GPT2, HF_N };
enum hf_change {
    HF_SAME,
    HF_TRANSPOSE,               /* transpose [out, in] to [in, out] */
    HF_QKV_ROWS,  /* reorder rows from (head, kind, lane) to (kind, head, lane), where kind is query, key or value */
    HF_QKV_TRANSPOSE,           /* reorder rows as for HF_QKV_ROWS, then transpose */
};

struct param_row {
    enum role role;
    enum param_place place;
    /* name in the layer: "mlp.dense_h_to_4h.weight"; for the final LayerNorm: "weight" */
    const char *key;
    /* A parameter of any module has this merge rule if its name ends in `tail`. NULL: only `key` is compared. */
    const char *tail;
    enum merge_rule merge;
    int ndim;                   /* weight decay applies to matrices (ndim 2), not to vectors */
    char dims[3];               /* a letter per dimension: V rows of vocabulary, s positions, h hidden, q 3h, f ffn */
    struct {
        /*
         * Name of the tensor, such as "mlp.c_fc.weight"; for a block, without "h.K.". NULL if the architecture has no
         * such parameter.
         */
        const char *name;
        enum hf_change change;
    } hf[HF_N];
};
const struct param_row *param_row(enum role r);

struct param_dims { int64_t vocab, positions, hidden, ffn; };
int64_t param_dim(const struct param_dims *d, char letter);

#define PARAM_EMBEDDING "tied_modules.embed."           /* prefix of the names in the embedding */
/* Name of a head that is not tied. The table does not contain it, because the trainer's heads are always tied. */
#define PARAM_HEAD      "lm_head.weight"
/*
 * Returns the canonical name of the embedding's parameter with role r, such as
 * "tied_modules.embed.word_embeddings.weight".
 */
const char *param_embedding_name(enum role r);

/*
 * Returns the row of the table for a canonical name, and sets *layer to the layer number in the name (-1 for the
 * embedding). Returns NULL if there is no such row.
 */
const struct param_row *param_find(const char *param, int *layer);
/*
 * Returns true if `param` ends in the tail of role r, as a sequence of whole components. The name need not be
 * canonical.
 */
bool param_ends(const char *param, enum role r);
/*
 * Returns the position of `param` in its layer, which is its role, or ROLE_N if the name alone does not determine it.
 */
int param_order(const char *param);

/*
 * Returns the merge rule that the table gives for `param`. A name that is not in the table is concatenated on dim 0, as
 * in the reference.
 */
enum merge_rule merge_rule_of(const char *param);
bool merge_rule_known(const char *param);               /* returns false if merge_rule_of() returns only this default */
/*
 * Returns true if the name belongs to a parameter in tied_modules (the embedding). The first and the last pipeline
 * stage store such a parameter.
 */
bool param_is_tied(const char *param);
/*
 * Split a name into layer number and kind. The kind is the same in all layers, so that counts can be summed by kind:
 * "3.input_layernorm.weight" has *layer = 3 and the kind "input_layernorm.weight"; "8.weight" has the kind
 * "final_layernorm.weight"; "tied_modules.embed.x" has *layer = -1 and the kind "x". The kind is written to buf, which
 * is returned.
 */
const char *param_kind(const char *param, int *layer, char buf[128]);

#endif
