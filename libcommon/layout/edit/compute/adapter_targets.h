/*
 * adapter_targets.h - compare an adapter's configuration with its tensors, as peft would apply both to a base model
 *
 * peft gives factors to the modules that the configuration selects, loads the tensors that these modules have, and
 * ignores all other factors. A merge of the tensors alone would therefore differ from peft's if the two contradict each
 * other. The rules are those of peft's check_target_module_exists().
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ADAPTER_TARGETS_H
#define SHARDKIT_LAYOUT_EDIT_ADAPTER_TARGETS_H

#include "libcommon/layout/edit/compute/adapter.h"

struct param;
struct report;
struct source;

/*
 * Find the parameter of the base for a name in an adapter. Depending on the class that saved the base, its names may
 * lack the first component, or begin with one more ("model." or "transformer."). Returns NULL if there is none.
 */
struct param *adapter_find_param(const struct source *s, const char *name);
/*
 * If `name` is that of the head, which a base with tied weights does not store, returns the input embedding. Returns
 * NULL for other names, or if no embedding is found.
 */
struct param *adapter_find_tied_embedding(const struct source *s, const char *name);
/*
 * Check that every module of the base that the configuration selects has its tensors in the adapter, and that it
 * selects every module that has factors. Returns -1 with ERR_DATA, which names the module and the key of
 * adapter_config.json. Biases that some versions of peft do not save are reported in `notes`.
 */
MUST_CHECK int adapter_check_targets(const struct source *s, const struct adapter *a, struct report *notes,
                                     struct err *e);

#endif
