/*
 * hf_claims.h - check that the sizes and ties that config.json states agree with the tensors of a Transformers model
 */
#ifndef SHARDKIT_LAYOUT_HF_CLAIMS_H
#define SHARDKIT_LAYOUT_HF_CLAIMS_H

#include <jansson.h>
#include <stdbool.h>

#include "libcommon/base/report.h"

struct report;
struct source;

/*
 * Compare config.json with the parameters of s, which must have the names of a Transformers folder. The findings have
 * the code "config" and the given severity:
 *   settings    the number of layers, the hidden size and the vocabulary (in known families also heads and
 *               intermediate_size) must be whole numbers; lists are accepted in other families
 *   layers      the layer numbers must be 0 .. num_hidden_layers - 1, and may be followed by
 *               num_nextn_predict_layers more; layer_types and mlp_layer_types must list num_hidden_layers layers
 *   vocabulary  the embedding and the head must have vocab_size rows
 *   hidden size the embedding and the head must have as many columns
 *   tied head   if tie_word_embeddings is true, a stored head must equal the embedding; if it is false, a model of a
 *               known family must have a head
 *   empty       each tensor must have elements
 * A size that config.json does not state at its top level, but for example in text_config, is not checked. A tied head
 * is compared with the embedding in three samples. If `sizes` is false, only settings and the head are checked.
 */
void hf_check_claims(const struct source *s, const json_t *config, bool sizes, enum severity severity,
                     struct report *r);

#endif
