/*
 * edit_states.h - the tensors of a checkpoint as a list, and the list as it is to be
 *
 * cast, rename, layers, vocab and drop change the list: names, elements, shapes, which tensors there are. It is then
 * written as the layout has it: a file whose tensors all stay is shared with the source, any other one is made anew
 * with the tensors that it had (model folders, universal forms), or all of it is (ZeRO), or the entries follow of what
 * says where tensors lie (dcp, torchdist).
 */
#ifndef SHARDKIT_LAYOUT_EDIT_STATES_H
#define SHARDKIT_LAYOUT_EDIT_STATES_H

#include <jansson.h>

#include "libcommon/layout/edit/edit.h"

/* One parameter of the result. Of the fields, those that say something else than the source's make it another one. */
struct edit_new {
    const char *name;
    int param;                          /* of the source: it goes where that one is */
    int stage, group;                   /* of the pipeline that owns it, of the optimizer there; -1: unknown */
    int layer;                          /* of the result where layers were picked, counted from 1; 0: of none */
    int ndim;
    int64_t shape[TENSOR_MAX_DIM];
    int64_t kept;                       /* where rows were added or taken: the first ones, which are the source's */
    const struct tmap *map[STATE_N];    /* NULL: there is no such state */
    enum dtype dtype[STATE_N];          /* as written; plan_op_of() knows the way there */
};
struct edit_states {
    int n, cap;
    struct edit_new *tensor;
    json_t *config;                     /* keys of config.json that change; NULL: none */
};

/* The source's own. NULL, ERR_USAGE: of another layout; `verb` asks for it. */
MUST_CHECK struct edit_states *edit_states_new(struct edit *x, const char *verb, struct err *e);
/* config.json of a model folder, or NULL: it has none; json_decref() it. ERR_DATA: it is no JSON object. */
MUST_CHECK json_t *edit_hf_config(struct edit *x, struct err *e);
/* A parameter of the source as it is, every state. */
struct edit_new edit_new_of(const struct source *s, int param);
/* Another tensor of the list, a copy of `from`. */
struct edit_new *edit_states_add(struct edit_states *to, const struct edit_new *from);
/* What the list calls the source's parameter `was`, by the first that stands for it; NULL: none, or was is NULL. */
const char *edit_states_name(const struct edit_states *to, const struct source *s, const char *was);
void edit_states_free(struct edit_states *to);          /* NULL is fine */
/*
 * Make the list the result's; it belongs to the edit from then on, in any case. -1, ERR_USAGE: two have one name, or
 * nothing is left; ERR_DATA: a file cannot be made again.
 */
MUST_CHECK int edit_states_apply(struct edit *x, struct edit_states *to, struct err *e);

#endif
