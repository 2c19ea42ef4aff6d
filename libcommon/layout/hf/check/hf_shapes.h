/*
 * hf_shapes.h - check the shapes of the tensors that rules/transformers.models lists for a model_type
 */
#ifndef SHARDKIT_LAYOUT_HF_SHAPES_H
#define SHARDKIT_LAYOUT_HF_SHAPES_H

#include <jansson.h>

#include "libcommon/base/report.h"

struct report;
struct source;

/*
 * Report each tensor of s whose shape differs from the one that rules/transformers.models gives for the settings of
 * config.json: findings "config" of `severity`. s must have the names of a Transformers folder. If the list gives no
 * shape, or a setting is not stated, the tensor must have the same shape in all layers that have it. Nothing is
 * reported if the model_type is not listed, if the model is quantized, or if config.json names code of its own
 * (auto_map).
 */
void hf_check_shapes(const struct source *s, const json_t *config, enum severity severity, struct report *r);

#endif
