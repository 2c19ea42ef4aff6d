/*
 * edit_torchdist.h - change stacks and objects of a Megatron-core folder, and the numbers in its common.pt
 */
#ifndef SHARDKIT_LAYOUT_EDIT_TORCHDIST_H
#define SHARDKIT_LAYOUT_EDIT_TORCHDIST_H

#include "libcommon/layout/edit/dcp/edit_relist.h"
#include "libcommon/layout/edit/edit_rows.h"

/* Count the layers in the list. Must be called before edit_relist_torchdist(). */
void edit_relist_depths(struct relisting *w);
/*
 * Add entry i of the source to the result, as the list requires. Returns -1 with ERR_USAGE if the entry cannot hold the
 * tensors that the list requires.
 */
MUST_CHECK int edit_relist_torchdist(struct relisting *w, int i, struct err *e);

/*
 * ---- functions that change the arguments and settings in common.pt; they do nothing if there are none, or for other
 * layouts ----
 */

/*
 * Change the number of layers from `was` to `now`. The second function changes the type of the weights to `to`. Both
 * return -1 with ERR_DATA if common.pt cannot be changed.
 */
MUST_CHECK int edit_core_layers(struct edit *x, int64_t was, int64_t now, struct err *e);
MUST_CHECK int edit_core_cast(struct edit *x, enum dtype to, struct err *e);
/*
 * For an embedding of `rows` rows, set in *q the number of tokens in the source, and the number of rows with padding in
 * the result. edit_core_vocab() then records the new numbers in common.pt.
 */
void edit_core_rows(const struct edit *x, int64_t rows, struct edit_rows *q);
MUST_CHECK int edit_core_vocab(struct edit *x, const struct edit_rows *q, struct err *e);
/*
 * Warn about each kept configuration file of NeMo or Megatron-Bridge that states a size of the model, such as
 * "num_layers", which is no longer true.
 */
void edit_core_report_configs(const struct edit *x, const char *size, struct report *notes);
/* Remove the settings of the optimizer. Returns -1 with ERR_DATA if common.pt cannot be changed. */
MUST_CHECK int edit_core_drop_optimizer(struct edit *x, struct err *e);

#endif
