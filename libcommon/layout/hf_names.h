/*
 * hf_names.h - what Hugging Face Transformers calls Megatron's parameters, and how it keeps them
 *
 * Two architectures: BLOOM has Megatron's own arrangement; GPT-2 keeps the four weights of
 * a block as [in, out] and orders the rows of query, key and value by kind first.
 */
#ifndef SHARDKIT_LAYOUT_HF_NAMES_H
#define SHARDKIT_LAYOUT_HF_NAMES_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/mem.h"

enum hf_arch { HF_BLOOM, HF_GPT2 };
const char *hf_arch_name(enum hf_arch a);       /* "bloom", "gpt2": model_type */
int hf_arch_by_name(const char *name);          /* -1: none */

/* Where in the model a tensor belongs. */
enum hf_place { HF_EMBEDDING, HF_BLOCK, HF_FINAL };

/* What has to be done to the merged parameter. */
enum hf_change {
    HF_SAME,
    HF_TRANSPOSE,               /* [out, in] -> [in, out] */
    HF_QKV_ROWS,                /* rows by (head, kind, lane) -> by (kind, head, lane) */
    HF_QKV_TRANSPOSE,           /* those rows, then the transpose */
};

struct hf_rule {
    enum hf_place place;
    const char *key;            /* Megatron's, inside the layer: "mlp.dense_h_to_4h.weight" */
    const char *hf;             /* "mlp.c_fc.weight"; of a block, behind "h.K." */
    enum hf_change change;
    int ndim;
    char shape[3];              /* Megatron's dimensions: V rows, s positions, h hidden, q 3h, f ffn */
};
/* The tensors of an architecture in model order. */
const struct hf_rule *hf_rules(enum hf_arch a, int *n);

/*
 * Megatron's name of a parameter ("tied_modules.embed.word_embeddings.weight",
 * "3.input_layernorm.weight", "8.weight") as place, layer number (-1 for the embedding)
 * and rule; NULL: the architecture has no such parameter.
 */
const struct hf_rule *hf_rule_of(enum hf_arch a, const char *param, int *layer);
/* "transformer.h.3.ln_1.weight"; block counts from 0. Caller frees. */
char *hf_name(const struct hf_rule *r, int block, bool prefix);
/* Megatron's name for layer file `layer`. Caller frees. */
char *hf_param_name(const struct hf_rule *r, int layer);

#endif
