/*
 * edit_zero.c - replace names in the order in which ZeRO's optimizer stores parameters, and update the trees
 */
#include "libcommon/layout/edit/edit_zero.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/edit/edit_cast.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_source.h"
#include "libcommon/layout/edit/edit_universal.h"
#include "libcommon/layout/engine/zero_order.h"

/* ---- replace the names in a sequence ---- */

/*
 * ZeRO stores parameters in the order of sequences of names: the groups of the optimizer, and the dicts of a tree. An
 * edit replaces each old name, at its position, with the entries of the list that are made from this parameter (none,
 * one or several). If layers were selected, the tensors of all layers are moved to the position of the first such
 * tensor. They are sorted by their new layer number, and within a layer by the position of their old names.
 */
struct successor {
    const struct edit_new *t;
    int old;                            /* index of the old name in the sequence */
    int place;                          /* position in the old sequence by which the entry is sorted */
};

static int by_successor_order(const void *a, const void *b)
{
    const struct successor *x = a, *y = b;

    if (x->place != y->place)
        return (x->place > y->place) - (x->place < y->place);
    if (x->t->layer != y->t->layer)
        return (x->t->layer > y->t->layer) - (x->t->layer < y->t->layer);
    return (x->old > y->old) - (x->old < y->old);
}

/*
 * Returns the entries of the list that replace the n names, in their new order. *count receives the number of entries.
 * The caller frees the array. A name that is NULL or that no parameter has is left out.
 */
static struct successor *find_successors(const struct edit *x, const struct edit_states *list, const char *const *name,
                                         int n, int *count)
{
    struct successor *to = NULL;
    int cap = 0, first_layer = -1;

    *count = 0;
    for (int i = 0; i < n; i++) {
        const struct param *p = name[i] ? source_param(x->s, name[i]) : NULL;

        for (int k = 0; p && k < list->n; k++) {
            const struct edit_new *t = &list->tensor[k];

            if (&x->s->param[t->param] != p)
                continue;
            if (t->layer && first_layer < 0)
                first_layer = i;
            ARRAY_ROOM(to, cap, *count + 1);
            to[(*count)++] = (struct successor){ t, i, t->layer ? first_layer : i };
        }
    }
    if (*count)
        qsort(to, (size_t)*count, sizeof *to, by_successor_order);
    return to;
}

/* ---- groups ---- */

static void rebuild_zero_group(const struct edit *x, const struct edit_states *list, struct zero_group *g)
{
    const char **name = xmalloc(((size_t)g->n + 1) * sizeof *name);
    struct zero_group to;
    struct successor *s;
    int n;

    for (int i = 0; i < g->n; i++)
        name[i] = g->slot[i].name;
    s = find_successors(x, list, name, g->n, &n);
    to = zero_order_new_group(x->arena, n);
    for (int i = 0; i < n; i++) {
        struct zero_slot *slot = &to.slot[to.n++];

        *slot = (struct zero_slot){ .name = s[i].t->name, .ndim = s[i].t->ndim };
        memcpy(slot->shape, s[i].t->shape, sizeof slot->shape);
        slot->n_elems = shape_count(slot->ndim, slot->shape);
    }
    *g = to;
    free(s);
    free(name);
}

/*
 * Read the optimizer's groups in the source's order, and replace the names in them. If the run has
 * round_robin_gradients, the parameters are then put into the order in which such a run stores them.
 */
static int new_shapes(struct edit *x, const struct edit_states *list, const struct pk *root, struct zero_shape *shape,
                      struct err *e)
{
    if (zero_order_read(x->s, x->arena, shape, e) < 0)
        return -1;
    for (int g = 0; g < shape->n_groups; g++) {
        rebuild_zero_group(x, list, &shape->group[g]);
        if (shape->group[g].n == 0) {
            err_usage(e, "group %d of the optimizer would have no parameter", g);
            return -1;
        }
        if (x->s->zero_stage < 3 && zero_order_switch(root, "round_robin_gradients"))
            zero_order_distribute(x->arena, &shape->group[g], x->s->topo.dp, false);
    }
    return 0;
}

/*
 * For ZeRO-3: make each of the optimizer's groups list a single sub-group. The target later divides these sub-groups
 * into sub-groups of the configured size.
 */
static void new_param_groups(struct edit *x, struct source *to)
{
    struct pk *groups = pk_copy(x->arena, to->run.param_groups), **item;
    uint32_t n = 0;

    item = pk_items(groups, &n);
    for (uint32_t g = 0; item && g < n; g++) {
        struct pk *ids = pk_list(x->arena);

        pk_add(x->arena, ids, pk_int(x->arena, g));
        pk_set_str(x->arena, item[g], "params", ids);
    }
    to->run.param_groups = groups;
}

/* ---- trees ---- */

/*
 * Returns a copy of `was`, a dict whose keys are parameter names, with the new names as keys. Items whose key is not a
 * parameter are kept and come first.
 */
static struct pk *rename_dict_params(const struct edit *x, const struct edit_states *list, const struct pk *was)
{
    struct pk *d = pk_ordered_dict(x->arena), **pair;
    const char **name;
    struct successor *s;
    uint32_t n = 0;
    int count;

    pair = pk_pairs(was, &n);
    name = xcalloc((size_t)n + 1, sizeof *name);
    for (uint32_t i = 0; pair && i < n; i++) {
        name[i] = pk_as_str(pair[2 * i]);
        if (!name[i] || !source_param(x->s, name[i]))
            pk_set(x->arena, d, pair[2 * i], pair[2 * i + 1]);
    }
    s = find_successors(x, list, name, (int)n, &count);
    for (int i = 0; i < count; i++)
        pk_set_str(x->arena, d, s[i].t->name, pair[2 * s[i].old + 1]);
    free(s);
    free(name);
    return d;
}

static struct pk *new_shared(const struct edit *x, const struct edit_states *list, const struct pk *was)
{
    struct pk *d = pk_dict(x->arena), **pair;
    uint32_t n = 0;

    pair = pk_pairs(was, &n);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *alias = edit_states_name(list, x->s, pk_as_str(pair[2 * i]));
        const char *holder = edit_states_name(list, x->s, pk_as_str(pair[2 * i + 1]));

        if (alias && holder)
            pk_set_str(x->arena, d, alias, pk_str(x->arena, holder));
    }
    return d;
}

/*
 * Update the tree of the model_states file. `type` is the type in which the run computes from now on, or DTYPE_N to
 * keep the old one.
 */
static int rebuild_zero_root(struct edit *x, struct source *to, const struct edit_states *list, enum dtype type,
                             struct err *e)
{
    struct pt *pt = zero_order_root(x->s);
    struct pk *root = pk_copy(x->arena, pt_root(pt));
    struct zero_shape shape = {0};

    if (new_shapes(x, list, root, &shape, e) < 0)
        return -1;
    pk_set_str(x->arena, root, "param_shapes", zero_shape_tree(x->arena, &shape));
    pk_set_str(x->arena, root, "module", rename_dict_params(x, list, pk_get(root, "module")));
    if (pk_get(root, "shared_params"))
        pk_set_str(x->arena, root, "shared_params", new_shared(x, list, pk_get(root, "shared_params")));
    if (type != DTYPE_N)
        edit_cast_config(x->arena, pk_get(root, "ds_config"), type);
    for (int i = 0; i < to->n_files; i++)
        if (to->file[i].pt == pt)
            to->file[i].pt = pt_with_tree(x->arena, pt, root);
    if (to->zero_stage == 3 && to->run.param_groups)
        new_param_groups(x, to);
    return 0;
}

/* ---- public functions ---- */

static struct sink *open_zero_target(const struct sink_opts *o, const void *target)
{
    return zero_sink(o, target);
}

static void free_zero_target(void *target)
{
    zero_target_free(target);
}

/* Make zero_sink() write the result as a whole, from the target t, whose values come from `src`. */
static void rewrite_zero(struct edit *x, struct source *src, struct zero_target *t)
{
    const char *what = arena_fmt(x->arena, "ZeRO-%d, %d ranks, %d parameters", t->shape.stage, t->shape.world,
                                 src->n_params);

    edit_rewrite(x, &(struct edit_rewrite){ src, what, t, open_zero_target, free_zero_target });
}

/*
 * Returns -1 with ERR_USAGE if the source or the list cannot be edited. If layers are selected, a buffer with a number
 * in its name is an error, too, because it would keep the old layer number.
 */
static int check_zero_edit(const struct edit *x, const struct edit_states *list, struct err *e)
{
    bool layers = false;

    if (x->s->topo.tp > 1) {
        if (x->s->layout->state_files)
            err_usage(e, "%s: has %d tensor ranks: join those of the checkpoint that it was made of (reshape --ranks "
                      "N), then make the form again (ds2universal)", x->s->path, x->s->topo.tp);
        else
            err_usage(e, "%s: has %d tensor-parallel ranks, and only one can be edited; join them with reshape "
                         "%s--ranks N first", x->s->path,
                      x->s->topo.tp, x->s->run.optimizer ? "" : "--weights-only ");
        return -1;
    }
    if (x->s->layout->state_files && !x->s->run.optimizer) {
        err_usage(e, "%s: has no zero/optimizer_state.pt, which DeepSpeed needs; convert the original checkpoint again "
                     "with ds2universal", x->s->path);
        return -1;
    }
    for (int i = 0; i < list->n; i++) {
        layers = layers || list->tensor[i].layer;
        if (!zero_is_name(list->tensor[i].name)) {
            err_usage(e, "'%.80s' cannot be the name of a parameter", list->tensor[i].name);
            return -1;
        }
    }
    for (int i = 0; layers && i < x->s->n_values; i++)
        if (x->s->value[i].buffer && strpbrk(x->s->value[i].name, "0123456789")) {
            err_usage(e, "layers: the name of buffer %s has a number, but its layer cannot be determined",
                      x->s->value[i].name);
            return -1;
        }
    return edit_states_check(x, list, e);
}

static int rebuild_zero_source(struct edit *x, struct edit_states *list, enum dtype type, struct report *notes,
                               struct err *e)
{
    const struct zero_request q = { .weights_only = !x->s->run.optimizer, .cast = type != DTYPE_N, .weights = type };
    struct source *to = edit_source_copy(x);
    struct zero_target *t;

    x->states = list;
    if (check_zero_edit(x, list, e) < 0 || rebuild_zero_root(x, to, list, type, e) < 0)
        return -1;
    edit_source_list(x, to, list);
    if (type != DTYPE_N && to->run.optimizer)
        to->run.optimizer = edit_cast_zero(x->arena, to->run.optimizer,
                                           pk_get(pt_root(zero_order_root(to)), "ds_config"), type);
    t = zero_target_new(to, &q, notes, e);
    if (!t)
        return -1;
    if (x->s->layout->state_files) {
        const int rc = edit_universal_zero(x, to, t, e);

        zero_target_free(t);
        return rc;
    }
    rewrite_zero(x, to, t);
    return 0;
}

int edit_zero(struct edit *x, struct edit_states *list, struct report *notes, struct err *e)
{
    return rebuild_zero_source(x, list, DTYPE_N, notes, e);
}

/*
 * Write a checkpoint of several tensor-parallel ranks as one of a single rank, with joined tensors. There is no writer
 * that splits tensors again.
 */
static int rewrite_joined(struct edit *x, struct report *notes, struct err *e)
{
    const struct zero_request q = { .weights_only = !x->s->run.optimizer };
    struct zero_target *t = zero_target_new(x->s, &q, notes, e);

    if (!t)
        return -1;
    report_add(notes, SEV_WARNING, "ranks", x->s->path, ERR_NO_BYTE, NULL,
               "the result is of one tensor rank, these files are of %d", x->s->topo.tp);
    rewrite_zero(x, x->s, t);
    return 0;
}

int edit_zero_rewrite(struct edit *x, struct report *notes, struct err *e)
{
    struct edit_states *to = x->s->topo.tp > 1 ? NULL : edit_states_new(x, "salvage", e);

    if (x->s->topo.tp > 1 ? rewrite_joined(x, notes, e) < 0 : !to || edit_zero(x, to, notes, e) < 0)
        return -1;
    if (!x->s->run.optimizer && x->rewrite)
        x->rewrite->what = arena_fmt(x->arena, "%s, weights only", x->rewrite->what);
    return 0;
}

int edit_zero_cast(struct edit *x, struct edit_states *list, enum dtype type, struct report *notes, struct err *e)
{
    x->states = list;
    if (x->s->weights == type) {
        err_usage(e, "%s: cast: has the type %s already", x->s->path, dtype_name(type));
        return -1;
    }
    if (type == DTYPE_F16)
        report_add(notes, SEV_NOTE, "scaler", NULL, ERR_NO_BYTE, NULL,
                   "fp16: the result gets a new loss scaler, from the saved ds_config or DeepSpeed's defaults");
    else if (x->s->weights == DTYPE_F16)
        report_add(notes, SEV_NOTE, "scaler", NULL, ERR_NO_BYTE, NULL, "%s: the loss scaler is removed",
                   dtype_name(type));
    if (type == DTYPE_F16 && x->s->zero_stage == 3)
        report_add(notes, SEV_WARNING, "range", x->s->path, ERR_NO_BYTE, NULL,
                   "ZeRO-3 stores only masters, which DeepSpeed rounds when it loads them; they were not checked for "
                   "values above 65504, the largest of fp16 (ckpt-inspect stats prints the largest)");
    return rebuild_zero_source(x, list, type, notes, e);
}
