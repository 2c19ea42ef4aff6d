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
 * Find the parameter of the base that a name in an adapter means. Compared with that name, names of the base may lack
 * the first component, or begin with one more ("model." or "transformer."), depending on the class that saved the base.
 * Returns NULL if there is no such parameter.
 */
struct param *adapter_find_param(const struct source *s, const char *name);
/*
 * Returns the input embedding if `name` is the name of the head and the base does not store a head, because its weights
 * are tied. Returns NULL for any other name, or if no embedding is found.
 */
struct param *adapter_find_tied_embedding(const struct source *s, const char *name);
/*
 * Check that the configuration and the adapter's tensors agree: every module of the base that the configuration selects
 * has its tensors in the adapter, and every module with tensors is selected. Returns -1 with ERR_DATA if not; the error
 * names the module and the key of adapter_config.json. `notes` receives biases that some versions of peft do not save.
 */
MUST_CHECK int adapter_check_targets(const struct source *s, const struct adapter *a, struct report *notes,
                                     struct err *e);

#endif
