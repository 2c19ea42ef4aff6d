/*
 * hf_saved.h - rename parameters from their names in memory to the names that save_pretrained writes
 *
 * FSDP2, ZeRO and torch.save store parameters under the names that they have in memory. Transformers 5 saves some of
 * them under other names, which the models on the hub have. For example, the experts of a layer are one tensor in
 * memory, and one tensor per expert and projection on disk. The second name of a tied weight is not saved. All changes
 * are made in tensor maps; no bytes are moved.
 */
#ifndef SHARDKIT_LAYOUT_HF_SAVED_H
#define SHARDKIT_LAYOUT_HF_SAVED_H

#include <jansson.h>
#include <stdbool.h>

#include "libcommon/base/err.h"

struct report;
struct source;

/*
 * Replace s->param with the parameters that a saved folder of the model in config.json has. The model_type in
 * config.json selects the table of names. Names that already are those of the files stay unchanged. If `tied` is true,
 * the second name of a tied weight is left out if its values equal those of the first name. The number of renamed and
 * of left out parameters is added to `notes`. Returns -1 with ERR_DATA in three cases: a tensor of experts is not
 * [experts, rows, columns], or has rows that cannot be divided among its parts; two parameters get the same name; or a
 * head differs from the embedding to which config.json ties it.
 */
MUST_CHECK int hf_saved_names(struct source *s, const json_t *config, bool tied, struct report *notes,
                              struct err *e);
/*
 * The inverse of hf_saved_names(): replace s->param with the parameters that the model in config.json has in memory,
 * where all experts of a layer are one tensor. Names that are already names in memory stay unchanged. Returns -1 with
 * ERR_DATA if an expert is missing or has another shape or type than the others, or if two parameters get the same
 * name.
 */
MUST_CHECK int hf_fused_names(struct source *s, const json_t *config, struct report *notes, struct err *e);
/*
 * Check that hf_saved_names() (`split`) or hf_fused_names() gives the experts of the model the requested form. Returns
 * -1 with ERR_USAGE if the model has no experts, or if its type has them in one form, which is the other one.
 */
MUST_CHECK int hf_check_experts_form(const struct source *s, const json_t *config, bool split, struct err *e);
/* Returns true if hf_saved_names() would rename at least one parameter. */
bool hf_saved_renames(const struct source *s, const json_t *config);
/* Returns true if tie_word_embeddings is true in config.json. */
bool hf_ties_head(const json_t *config);

#endif
