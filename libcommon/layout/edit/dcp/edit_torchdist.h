/*
 * edit_torchdist.h - change stacks, objects and the counters of common.pt in Megatron-core's folders
 *
 * Internal to this folder.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_TORCHDIST_H
#define SHARDKIT_LAYOUT_EDIT_TORCHDIST_H

#include "libcommon/layout/edit/dcp/edit_relist.h"
#include "libcommon/layout/edit/edit_rows.h"

/* Count the layers of the list. Call this before edit_relist_torchdist(). */
void edit_relist_depths(struct relisting *w);
/* Returns -1 with ERR_USAGE if entry i cannot hold what the list has for it. */
MUST_CHECK int edit_relist_torchdist(struct relisting *w, int i, struct err *e);

/* ---- arguments in common.pt; without effect if there are none, and for other layouts ---- */

/* Change the number of layers, or the type of the weights. Return -1 with ERR_DATA if common.pt cannot be changed. */
MUST_CHECK int edit_core_layers(struct edit *x, int64_t was, int64_t now, struct err *e);
MUST_CHECK int edit_core_cast(struct edit *x, enum dtype to, struct err *e);
/*
 * Set in *q the numbers of rows of the vocabulary that are tokens, before and after, for a table of `rows` rows.
 * edit_core_vocab() records the new numbers in common.pt.
 */
void edit_core_rows(const struct edit *x, int64_t rows, struct edit_rows *q);
MUST_CHECK int edit_core_vocab(struct edit *x, const struct edit_rows *q, struct err *e);

#endif
