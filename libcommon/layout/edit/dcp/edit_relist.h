/*
 * edit_relist.h - change the entries of a dcp or torchdist folder as a list of tensors requires
 *
 * Internal to this folder. The list contains the parameters of the result; the code for each layout finds the entries
 * that belong to a parameter.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_RELIST_H
#define SHARDKIT_LAYOUT_EDIT_RELIST_H

#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"

struct relisting {
    struct edit *x;
    const struct edit_states *list;
    /*
     * first: [parameters of the source], next: [tensors of the list]; index of the first, or the next, tensor that is
     * made from the same parameter; -1 if there is none
     */
    int *first, *next;
    /* edit_torchdist.c: maps a key without layer number, or a prefix of keys, to its index in depth[] */
    struct names *rows;
    int *depth;                         /* edit_torchdist.c: number of layers in the result under this key or prefix */
    struct names *entry;  /* edit_torchdist.c: maps the name of each of the source's entries to its index */
};
/* Set w->first and w->next. */
void edit_relist_params(struct relisting *w);
/*
 * Returns a copy of the text, allocated in the arena, with `name` in place of `was`. `was` is replaced only where it is
 * a sequence of whole keys. Returns NULL if the text does not contain such a sequence.
 */
const char *edit_with_name(struct arena *a, const char *text, const char *was, const char *name);
/*
 * Give the rows of tensor k of the list to entry n, which belongs to parameter p. Returns -1 with ERR_USAGE if rows
 * change but the entry was saved flattened, or if the entry has the shape of p without being a state of p.
 */
MUST_CHECK int edit_relist_rows(struct relisting *w, struct edit_entry *n, const struct param *p, int k,
                                struct err *e);
#endif
