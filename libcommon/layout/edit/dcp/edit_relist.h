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
    int *first, *next;                  /* of each parameter the list's tensors that are made of it; -1: no more */
    struct names *rows;                 /* edit_torchdist.c: numbers in depth[] of keys without the layer's number */
    int *depth;                         /* ... layers of the result under that key, or under keys that begin so */
    struct names *entry;                /* ... numbers of the source's entries by name */
};
/* Fill first and next. */
void edit_relist_params(struct relisting *w);
/*
 * The text with the parameter's new name in place of its own, in the edit's arena; NULL: it is not in it, in whole
 * keys.
 */
const char *edit_with_name(struct arena *a, const char *text, const char *was, const char *name);
/*
 * The entry, which goes with parameter p, with the rows of the list's tensor k. ERR_USAGE: it has p's shape, and is
 * none of its states.
 */
MUST_CHECK int edit_relist_rows(struct relisting *w, struct edit_entry *n, const struct param *p, int k,
                                struct err *e);
#endif
