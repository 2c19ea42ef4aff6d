/*
 * hf_layers.h - check that the layers of a Transformers model are alike and have the sizes that config.json states
 */
#ifndef SHARDKIT_LAYOUT_HF_LAYERS_H
#define SHARDKIT_LAYOUT_HF_LAYERS_H

#include <stdbool.h>

#include <jansson.h>

#include "libcommon/base/report.h"

struct report;
struct source;

/*
 * Check the parameters of s, which must have the names of a Transformers folder. The findings "config" and
 * "missing_param" have the given severity. The experts of any model are counted (ckpt/experts.h), and the tensors that
 * its model_type requires are looked for (check/hf_required.h). Nothing else is checked unless hf_knows_layers(config)
 * is true. At least one parameter must have a name of the family, and all layers of such a model must be alike:
 *   missing     a tensor that one layer has must be in every layer; a tensor that belongs to layers with experts, or
 *               to layers without, must be in all layers of that kind (a tensor that cannot be read counts as present)
 *   pairs       a layer that has one of the tensors experts.gate_up_proj and experts.down_proj must have both
 *   shape       a tensor must have the same shape in all layers; this shape must follow from hidden_size,
 *               intermediate_size, moe_intermediate_size, num_attention_heads, num_key_value_heads and head_dim
 *               (BLOOM: hidden_size), from the number and sizes of experts and shared experts, and from the ranks
 *               and head sizes of multi-head latent attention
 * To check a quantised model, pass the weights for which its codes stand (quantised_as_weights()), and a config without
 * quantization_config. A size that config.json does not state is not checked. Names that no rule has are ignored, and
 * shapes are checked only for fp32, fp16 and bf16. `transposed` may be NULL; otherwise it is true for each parameter of
 * s that a writer still has to transpose.
 */
void hf_check_layers(const struct source *s, const json_t *config, const bool *transposed, enum severity severity,
                     struct report *r);

/*
 * Returns true if there are rules (model/family.h) for the model_type in config.json and the model is not quantized.
 * Only then does hf_check_layers() check the tensors.
 */
bool hf_knows_layers(const json_t *config);

#endif
