/*
 * hf_required.h - check that a Transformers model has the tensors that its model_type and settings require
 */
#ifndef SHARDKIT_LAYOUT_HF_REQUIRED_H
#define SHARDKIT_LAYOUT_HF_REQUIRED_H

#include <jansson.h>

#include "libcommon/base/report.h"

struct report;
struct source;

/*
 * Report tensors that s lacks, and that Transformers would therefore initialize with random values. These are findings
 * "missing_param" of `severity`. s must have the names of a Transformers folder. The tensors are those that
 * model_tensors.h lists for the model_type in config.json, under the settings of config.json or their defaults. A
 * tensor that cannot be read counts as present. A head is required only if the class has one. If only some layers lack
 * a tensor, it is reported here only if no rule of the model (model/family.h) has its name; otherwise hf_check_layers()
 * compares the layers. Nothing is reported if config.json does not state the number of heads, as each config.json of
 * Transformers does. The findings are warnings if config.json names code of its own (auto_map). If the model_type is
 * not listed, a note SOURCE_NOT_COMPARED states that missing tensors are not found.
 */
void hf_check_required(const struct source *s, const json_t *config, enum severity severity, struct report *r);

#endif
