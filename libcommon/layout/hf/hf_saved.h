/*
 * hf_saved.h - rename parameters from their names in memory to the names that save_pretrained writes
 *
 * FSDP2, ZeRO and torch.save store a model under the names of its modules. Transformers 5 saves some parameters
 * under other names, which are those of the models on the hub. The experts of a layer are one tensor in memory, and
 * one tensor per expert and projection on disk. Second names of tied weights are left out. All changes are made in
 * tensor maps; no bytes are moved.
 */
#ifndef SHARDKIT_LAYOUT_HF_SAVED_H
#define SHARDKIT_LAYOUT_HF_SAVED_H

#include <jansson.h>
#include <stdbool.h>

#include "libcommon/base/err.h"

struct report;
struct source;

/*
 * Replace s->param with the parameters that a saved folder of config.json's model has. model_type selects the names.
 * Names that are already in the disk form stay. With `tied` a second name is left out if its values equal those of
 * the first. Notes report the counts of both. Returns -1 with ERR_DATA if experts are not [experts, rows, columns]
 * with a row count that the parts divide, if two parameters get the same name, or if a head differs from the
 * embedding that config.json ties it to.
 */
MUST_CHECK int hf_saved_names(struct source *s, const json_t *config, bool tied, struct report *notes,
                              struct err *e);
/* Returns true if tie_word_embeddings is true in config.json. */
bool hf_ties_head(const json_t *config);

#endif
