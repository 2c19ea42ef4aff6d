/*
 * hf_layers.h - compare the tensors of a Transformers model's layers with each other and with config.json's sizes
 */
#ifndef SHARDKIT_LAYOUT_HF_LAYERS_H
#define SHARDKIT_LAYOUT_HF_LAYERS_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/report.h"

struct report;
struct source;

/*
 * Report findings "config" of `severity` for the parameters of s, which must have the names of a Transformers
 * folder, if config.json's model_type is that of a family with rules (model/family.h), whose layers are alike:
 *   missing     a tensor that other layers have must be in each layer, unless it is there and cannot be read
 *   shape       tensors of one kind must have the same shape in all layers, and the shape that hidden_size,
 *               intermediate_size, num_attention_heads, num_key_value_heads and head_dim give (BLOOM: hidden_size)
 * A size that config.json does not have is not checked. Quantized models, names without a rule and tensors that are
 * not of fp32, fp16 or bf16 are not checked.
 */
void hf_check_layers(const struct source *s, const json_t *config, enum severity severity, struct report *r);

/* Returns true if the family of this config.json has rules, so that hf_check_layers() checks the tensors' shapes. */
bool hf_knows_layers(const json_t *config);

#endif
