/*
 * edit_torchdist.h - of Megatron-core's folders: stacks and objects by a list, and what common.pt counts
 */
#ifndef SHARDKIT_LAYOUT_EDIT_TORCHDIST_H
#define SHARDKIT_LAYOUT_EDIT_TORCHDIST_H

#include "libcommon/layout/edit/dcp/edit_relist.h"
#include "libcommon/layout/edit/edit_rows.h"

/* Count the list's layers, first. */
void edit_relist_depths(struct relisting *w);
/* Returns -1 with ERR_USAGE if entry i cannot hold what the list has for it. */
MUST_CHECK int edit_relist_torchdist(struct relisting *w, int i, struct err *e);

/* ---- arguments in common.pt; without effect if there are none, and for other layouts ---- */


MUST_CHECK int edit_core_layers(struct edit *x, int64_t was, int64_t now, struct err *e);
MUST_CHECK int edit_core_cast(struct edit *x, enum dtype to, struct err *e);
/* How many rows are tokens', and how many there will be, of a table of `rows`; then, that they are there. */
void edit_core_rows(const struct edit *x, int64_t rows, struct edit_rows *q);
MUST_CHECK int edit_core_vocab(struct edit *x, const struct edit_rows *q, struct err *e);

#endif
