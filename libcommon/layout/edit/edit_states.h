/*
 * edit_states.h - the tensors of a checkpoint as a list that can be changed
 *
 * cast, rename, layers, vocab and drop change the list: names, elements, shapes, and which tensors there are. The
 * list is then written as the layout requires. In model folders and universal forms a file whose tensors all stay is
 * shared with the source, and any other file is written again with its tensors. ZeRO is written again as a whole. In
 * dcp and torchdist the entries that locate the tensors are updated.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_STATES_H
#define SHARDKIT_LAYOUT_EDIT_STATES_H

#include <jansson.h>

#include "libcommon/base/tensor.h"
#include "libcommon/layout/edit/edit.h"

/* One parameter of the result. It is changed if any member differs from the source's. */
struct edit_new {
    const char *name;
    int param;                          /* index in the source; the new one is stored in its place */
    int stage, group;                   /* pipeline stage that owns it, and optimizer group there; -1 if unknown */
    int layer;                          /* layer in the result if layers were picked, counted from 1; 0 if none */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t kept;  /* if rows were added or removed: number of leading rows that are the source's */
    const struct tmap *map[STATE_N];    /* NULL if there is no such state */
    enum dtype dtype[STATE_N];          /* type as written; plan_op_of() gives the conversion */
};
struct edit_states {
    int n, cap;
    struct edit_new *tensor;
    json_t *config;                     /* keys of config.json to change; null removes a key; NULL if there are none */
};

/*
 * Returns a list of the source's tensors. Returns NULL with ERR_USAGE if the layout does not support it; `verb` is
 * named in the error.
 */
MUST_CHECK struct edit_states *edit_states_new(struct edit *x, const char *verb, struct err *e);
/*
 * Returns config.json of a model folder, or NULL if it has none. The caller releases it with json_decref(). Sets
 * ERR_DATA if it is not a JSON object.
 */
MUST_CHECK json_t *edit_hf_config(struct edit *x, struct err *e);
/* Returns an entry for a parameter of the source, unchanged, with every state. */
struct edit_new edit_new_of(const struct source *s, int param);
/* Add a copy of `from` to the list, and return it. */
struct edit_new *edit_states_add(struct edit_states *to, const struct edit_new *from);
/*
 * Returns the name in the list of the source's parameter `was`, from the first entry made from it. Returns NULL if
 * there is none or `was` is NULL.
 */
const char *edit_states_name(const struct edit_states *to, const struct source *s, const char *was);
void edit_states_free(struct edit_states *to);          /* to may be NULL */

#endif
