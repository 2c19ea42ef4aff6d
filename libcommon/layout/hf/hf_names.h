/*
 * hf_names.h - what Hugging Face Transformers calls Megatron's parameters, and how it keeps them
 *
 * Two architectures: BLOOM has Megatron's own arrangement; GPT-2 keeps the four weights of
 * a block as [in, out] and orders the rows of query, key and value by kind first. The table itself is in
 * model/params.c.
 */
#ifndef SHARDKIT_LAYOUT_HF_NAMES_H
#define SHARDKIT_LAYOUT_HF_NAMES_H

#include <stdbool.h>

#include "libcommon/base/mem.h"
#include "libcommon/model/params.h"

const char *hf_arch_name(enum hf_arch a);       /* "bloom", "gpt2": model_type */
int hf_arch_by_name(const char *name);          /* -1: none */

/*
 * A parameter's row by Megatron's name ("tied_modules.embed.word_embeddings.weight",
 * "3.input_layernorm.weight", "8.weight"), and its layer number (-1 for the embedding);
 * NULL: the architecture has no such parameter.
 */
const struct param_row *hf_row_of(enum hf_arch a, const char *param, int *layer);
/* A matrix that the architecture keeps as [in, out]. */
bool hf_is_turned(enum hf_arch a, const struct param_row *r);
/*
 * Is it the matrix before the logits, by any family's name for it? Tied, it is the embedding's second name, which
 * Transformers leaves out and makes again; without the embedding it would make a new one up.
 */
bool hf_is_head(const char *name);
/* A mask or a table of frequencies that older releases saved beside the parameters: made anew at every start. */
bool hf_is_buffer(const char *name);
/* "transformer.h.3.ln_1.weight"; block counts from 0. Caller frees. */
char *hf_name(enum hf_arch a, const struct param_row *r, int block, bool prefix);
/* Megatron's name for layer file `layer`. Caller frees. */
char *hf_param_name(const struct param_row *r, int layer);

#endif
