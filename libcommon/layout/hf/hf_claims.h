/*
 * hf_claims.h - what config.json claims of a model of Transformers, against its tensors
 */
#ifndef SHARDKIT_LAYOUT_HF_CLAIMS_H
#define SHARDKIT_LAYOUT_HF_CLAIMS_H

#include <jansson.h>

#include "libcommon/layout/layout.h"

/*
 * Findings "config" of `severity` for the parameters of s, which have the names of a folder of Transformers:
 *   layers      their numbers are 0 .. num_hidden_layers - 1 (and num_nextn_predict_layers more)
 *   vocabulary  rows of the embedding and of the head are vocab_size
 *   hidden size columns of both
 *   tied head   tie_word_embeddings true: a head that is there is the embedding; false: a known family has one
 *   empty       a tensor without elements
 * A claim that config.json does not make, or makes of several models (text_config), is not checked. Of a tied head
 * three samples are compared. Without `sizes` only the head is checked.
 */
void hf_check_claims(const struct source *s, const json_t *config, bool sizes, enum severity severity,
                     struct report *r);

#endif
