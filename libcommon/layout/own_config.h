/*
 * own_config.h - the config.json that lies next to the files of a training checkpoint
 *
 * verl and SkyRL save the model's config.json in huggingface/, next to the files of the ranks. The tensors have the
 * names that the model has in memory, without a prefix. A critic or a reward model has another head than the model that
 * config.json names in `architectures`: it was loaded from a language model, and its config.json is that model's.
 */
#ifndef SHARDKIT_LAYOUT_OWN_CONFIG_H
#define SHARDKIT_LAYOUT_OWN_CONFIG_H

#include <jansson.h>

#include "libcommon/base/report.h"

struct report;
struct source;
struct source_opts;

/*
 * Compare the config.json next to the files with the tensors. The checks are those for a model folder (hf_claims.h,
 * hf_layers.h). Findings "config" and "missing_param" are errors, or warnings with o->accept_mismatch. Parameters of
 * adapters are left out. Does nothing if there is no such file.
 */
void own_config_check(const struct source *s, const struct source_opts *o, struct report *r);
/*
 * Returns the config.json next to the files, for a model folder that is made from the tensors. `architectures` is
 * omitted, with a warning, if the model has another head. Returns NULL without setting *e if there is no config.json,
 * or if it does not fit the names of the tensors. The caller releases the object.
 */
MUST_CHECK json_t *own_config_json(const struct source *s, struct report *notes, struct err *e);

#endif
