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
 *   config         config.json does not state a number, and the tensors contradict the default of Transformers. If
 *                  it is a size that no tensor shows, this is a warning. A part of a model, without an embedding, and
 *                  a stub that lacks the number of heads and another size, are not checked.
 *   missing_param  the class in `architectures` has a head for another task, such as ForSequenceClassification, whose
 *                  tensors are missing
 *   config         a warning: the class is one of another model_type
 * Nothing is reported if config.json names code of its own (auto_map).
 */
void hf_check_settings(const struct source *s, const json_t *config, const bool *transposed, enum severity severity,
                       struct report *r);

#endif
