/*
 * experts.h - the experts of a Transformers model: their number in config.json, and whether the tensors hold all
 *
 * The names of any model are examined, whether or not there are rules for it: `...experts.3.down_proj.weight` is a
 * tensor of expert 3, and `...experts.down_proj` is one of all experts of its layer.
 */
#ifndef SHARDKIT_CKPT_EXPERTS_H
#define SHARDKIT_CKPT_EXPERTS_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/report.h"

struct source;

/*
 * Returns the number of experts per layer that config.json states as num_local_experts, num_experts, n_routed_experts
 * or moe_num_experts. Returns -1 if it states none.
 */
int64_t experts_count_stated(const json_t *config);
/* Returns 1 if the layer has experts according to config.json, 0 if it has none, and -1 if this is not known. */
int experts_in_layer(const json_t *config, int layer);
/*
 * Report findings "config" of `severity` for the parameters of s, which must have the names of a Transformers folder:
 *   missing     a tensor that one expert of a layer has and another has not; experts up to the number in config.json
 *               must exist, or without such a number those up to the highest one of the layer
 *   too many    a tensor of an expert whose number is not less than that in config.json, two tensors of one expert
 *               (experts.3 and experts.03), or a tensor of all experts of another number of experts
 *   dense       a layer that has tensors of experts, and none according to config.json
 *   per token   num_experts_per_tok is greater than the number of experts
 *   numbers     a number of a layer or an expert with zeros in front, as in experts.03
 *   none        a layer that has experts according to config.json (first_k_dense_replace, mlp_only_layers,
 *               decoder_sparse_step, moe_layers, mlp_layer_types; all layers of Mixtral and gpt-oss) and no tensor of
 *               one
 * Without config.json (NULL), experts up to the rows of the router's weight ("gate.weight" next to "experts.0.") must
 * exist, and nothing else is reported.
 * A tensor that cannot be read counts as present. Nothing is reported if some experts have no weights
 * (zero_expert_num): releases of Transformers save different tensors for these.
 */
void experts_check(const struct source *s, const json_t *config, enum severity severity, struct report *r);

#endif
