/*
 * hf_settings.h - check settings that config.json does not state, and the class that it names
 */
#ifndef SHARDKIT_LAYOUT_HF_SETTINGS_H
#define SHARDKIT_LAYOUT_HF_SETTINGS_H

#include <jansson.h>
#include <stdbool.h>

#include "libcommon/base/report.h"

struct report;
struct source;

/*
 * Check settings of a model whose model_type is listed in model_tensors.h. s must have the names of a Transformers
 * folder. `transposed` is the same as in hf_layers.h. Call hf_check_claims() and hf_check_layers() with the same report
 * before, so that their findings are known. The findings have the given severity:
 *   config         config.json does not state a number, and the tensors contradict its default in Transformers. This
 *                  is a warning if no tensor shows the number. Not checked are a part of a model, which has no
 *                  embedding, and a stub, which states neither the number of heads nor another size.
 *   missing_param  the class in `architectures` has a head for a task such as ForSequenceClassification, but the
 *                  tensors of this head are missing
 *   config         the class belongs to another model_type (always a warning)
 * Nothing is reported if config.json names code of its own (auto_map).
 */
void hf_check_settings(const struct source *s, const json_t *config, const bool *transposed, enum severity severity,
                       struct report *r);

#endif
