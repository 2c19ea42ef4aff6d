/*
 * edit_relist.h - entries that follow a list of tensors
 *
 * Internal to this folder. The list has the parameters of the result; the layout knows which entries belong to each.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_RELIST_H
#define SHARDKIT_LAYOUT_EDIT_RELIST_H

#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"

struct relisting {
    struct edit *x;
    const struct edit_states *list;
    int *first, *next;                  /* per parameter, per tensor of the list: the next tensor made of it, or -1 */
    struct names *rows;                 /* edit_torchdist.c: indices into depth[], by key without the layer's number */
    int *depth;                         /* ... number of the result's layers under that key or prefix of keys */
    struct names *entry;                /* ... indices of the source's entries, by name */
};
/* Fill first and next. */
void edit_relist_params(struct relisting *w);
/*
 * Returns the text with the name `was`, which must be whole keys of it, replaced by `name`, in the arena. Returns NULL
 * if the text does not contain it.
 */
const char *edit_with_name(struct arena *a, const char *text, const char *was, const char *name);
/*
 * Give the entry, which belongs to parameter p, the rows of tensor k of the list. Returns -1 with ERR_USAGE if it has
 * p's shape but is none of its states.
 */
MUST_CHECK int edit_relist_rows(struct relisting *w, struct edit_entry *n, const struct param *p, int k,
                                struct err *e);
#endif
