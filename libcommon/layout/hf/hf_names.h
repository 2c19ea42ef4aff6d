/*
 * hf_names.h - names and storage order of Megatron's parameters in Hugging Face Transformers
 *
 * There are two architectures. BLOOM stores elements in the same order as Megatron. GPT-2 stores the four weight
 * matrices of a block as [in, out], and orders the rows of query, key and value by kind first, while Megatron orders
 * them by head first. The table of names is in model/params.c.
 */
#ifndef SHARDKIT_LAYOUT_HF_NAMES_H
#define SHARDKIT_LAYOUT_HF_NAMES_H

#include <stdbool.h>

#include "libcommon/base/mem.h"
#include "libcommon/model/params.h"

const char *hf_arch_name(enum hf_arch a);       /* the model_type: "bloom", "gpt2" */
int hf_arch_by_name(const char *name);          /* -1 if unknown */

/*
 * Returns the row of the parameter table for a parameter with this name in Megatron
 * ("tied_modules.embed.word_embeddings.weight", "3.input_layernorm.weight", "8.weight"). Sets *layer to the layer
 * number in the name, or to -1 for the embedding. Returns NULL if the architecture has no such parameter.
 */
const struct param_row *hf_row_of(enum hf_arch a, const char *param, int *layer);
/* Returns true for a matrix that the architecture stores as [in, out]. */
bool hf_is_transposed(enum hf_arch a, const struct param_row *r);
/*
 * Returns true if the name is that of the head (the matrix that computes the logits) in any family. A tied head is a
 * second name of the embedding. Transformers leaves a tied head out of the files and creates it again when it loads the
 * model. It does not do so for the embedding: a missing embedding is initialized with random values.
 */
bool hf_is_head(const char *name);
/*
 * Returns true if the name is that of a mask or a table of frequencies. Older releases of Transformers saved these
 * buffers with the parameters; Transformers computes them at every start.
 */
bool hf_is_buffer(const char *name);
/*
 * Returns the name in Transformers of the parameter with row r in block `block`, such as "transformer.h.3.ln_1.weight".
 * Blocks count from 0. "transformer." is left out if `prefix` is false. The caller frees the name.
 */
char *hf_name(enum hf_arch a, const struct param_row *r, int block, bool prefix);
/* Returns Megatron's name of the parameter with row r in layer file `layer`. The caller frees the name. */
char *hf_param_name(const struct param_row *r, int layer);

#endif
