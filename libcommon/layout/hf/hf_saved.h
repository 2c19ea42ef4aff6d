/*
 * hf_saved.h - from the names that a model of Transformers has in memory to those that its save_pretrained writes
 *
 * FSDP2, ZeRO and torch.save keep a model under the names of its modules. Transformers 5 writes some of them under
 * others: the names that models on the hub have. Experts of a layer are one tensor in memory and one per expert and
 * projection on disk, and second names of tied weights are left out. All in tensor maps: no byte moves.
 */
#ifndef SHARDKIT_LAYOUT_HF_SAVED_H
#define SHARDKIT_LAYOUT_HF_SAVED_H

#include <jansson.h>

#include "libcommon/layout/layout.h"

/*
 * Replace s->param by what a folder of the model that config.json describes has. model_type selects the names; names
 * that are as on disk already stay. With `tied` a second name goes if its values are those of the first. Notes count
 * both. ERR_DATA: experts that are no [experts, rows, columns] of an even number of rows, two parameters of one name,
 * a head that is not the embedding that config.json ties it to.
 */
MUST_CHECK int hf_saved_names(struct source *s, const json_t *config, bool tied, struct report *notes,
                              struct err *e);
/* What config.json claims: tie_word_embeddings is true. */
bool hf_ties_head(const json_t *config);

#endif
