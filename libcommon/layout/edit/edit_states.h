/*
 * edit_states.h - the tensors of a checkpoint as a list that can be changed
 *
 * The verbs cast, rename, layers, vocab and drop change the list: names, types, shapes, and which tensors exist. The
 * list is then written as the layout requires. In model folders and universal forms, a file stays unchanged if all its
 * tensors do, and is written again otherwise. A ZeRO checkpoint is written again as a whole. In dcp and torchdist
 * folders, the entries that locate the tensors are updated.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_STATES_H
#define SHARDKIT_LAYOUT_EDIT_STATES_H

#include <jansson.h>

#include "libcommon/base/tensor.h"
#include "libcommon/layout/edit/edit.h"

/* One parameter of the result. Initially all members are those of the source's parameter `param`. */
struct edit_new {
    const char *name;
    int param;  /* index of the source's parameter from which this one is made; it is stored in the same place */
    /* pipeline stage that owns the parameter, and its optimizer group in this stage; -1 if unknown */
    int stage, group;
    int layer;  /* if layers were selected: 1 + the layer number in the result; 0 if the parameter is in no layer */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t kept;  /* if the number of rows changed: number of leading rows that are still the source's rows */
    const struct tmap *map[STATE_N];    /* NULL if the parameter does not have this state */
    enum dtype dtype[STATE_N];          /* type in which the state is written; plan_op_of() gives the conversion */
};
struct edit_states {
    int n, cap;
    struct edit_new *tensor;
    json_t *config;                     /* keys of config.json to set; null removes a key; NULL: no change */
};

/*
 * Returns a list of the source's tensors. Returns NULL with ERR_USAGE if this layout does not support changes of its
 * list of tensors. The error names `verb`.
 */
MUST_CHECK struct edit_states *edit_states_new(struct edit *x, const char *verb, struct err *e);
/*
 * Returns the config.json of a model folder, or NULL if there is none. The caller releases the object with
 * json_decref(). Sets *e to ERR_DATA if the file is not a JSON object.
 */
MUST_CHECK json_t *edit_hf_config(struct edit *x, struct err *e);
/* Returns an entry for the source's parameter `param`, unchanged and with all of its states. */
struct edit_new edit_new_of(const struct source *s, int param);
/* Add a copy of *from to the list. Returns the copy, which is valid until the next call. */
struct edit_new *edit_states_add(struct edit_states *to, const struct edit_new *from);
/*
 * Returns the new name of the source's parameter `was`: the name of the first entry made from it. Returns NULL if there
 * is no such entry or `was` is NULL.
 */
const char *edit_states_name(const struct edit_states *to, const struct source *s, const char *was);
void edit_states_free(struct edit_states *to);          /* to may be NULL */

#endif
