/*
 * zero_tree.c - make the trees of a target's model_states
 */
#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/zero/zero_tree_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

/* A model_states file that is being made. */
struct model_tree {
    const struct zero_target *t;
    struct zero_tree *x;
    int rank;
    int *storage;                       /* up to ZeRO-2: [groups] storages of the flat weights */
    struct names *frozen;               /* storages of frozen tensors, by the tensors' names */
};

static struct zero_fill make_weights_fill(const struct model_tree *k, const struct param *p)
{
    const struct tmap *m = zero_target_weights(k->t, p);
    const enum dtype type = zero_target_weights_type(k->t, p);
    int op = m ? plan_op_of(m->dtype, type) : -1;

    return (struct zero_fill){ .map = m, .len = m ? m->len : 0, .op = op < 0 ? PLAN_COPY : (enum plan_op)op,
                               .param = source_param_index(k->t->src, p),
                               .state = type == DTYPE_F32 ? STATE_FP32 : STATE_BF16 };
}

static uint64_t weights_bytes(const struct model_tree *k, const struct param *p)
{
    return (uint64_t)shape_bytes(p->ndim, p->shape, zero_target_weights_type(k->t, p));
}

static int64_t flat_elems(const struct zero_shape *x, int g)
{
    return x->group[g].part * x->world;
}

/*
 * Returns the tensor of the trained parameter p, which is a view of its group's storage. If `fill` is true, also adds
 * the fill of these bytes.
 */
static struct pk *trained_view(struct model_tree *k, const struct param *p, bool fill)
{
    const struct zero_slot *slot;
    int g = zero_shape_find(&k->t->shape, p->name, &slot);
    struct zero_fill f = make_weights_fill(k, p);

    f.storage = k->storage[g];
    f.at = (uint64_t)slot->first * (uint64_t)dtype_size(k->t->weights);
    if (fill)
        zero_tree_fill(k->x, &f);
    return pt_new_tensor(k->x->ds.arena, &(struct pt_new){
        .storage = f.storage, .dtype = k->t->weights, .storage_elems = flat_elems(&k->t->shape, g),
        .offset_elems = slot->first, .ndim = p->ndim, .shape = p->shape });
}

static struct pk *frozen_tensor(struct model_tree *k, const struct param *p)
{
    struct zero_fill f = make_weights_fill(k, p);
    const enum dtype type = zero_target_weights_type(k->t, p);
    uint64_t len = weights_bytes(k, p);
    int known = names_find(k->frozen, p->name);

    f.storage = known >= 0 ? known : zero_tree_storage(k->x, len);
    if (known < 0) {
        names_add(k->frozen, p->name, f.storage);
        zero_tree_fill(k->x, &f);
    }
    return pt_new_tensor(k->x->ds.arena, &(struct pt_new){
        .storage = f.storage, .dtype = type, .ndim = p->ndim, .shape = p->shape,
        .storage_elems = (int64_t)(len / (uint64_t)dtype_size(type)) });
}

/* Returns the empty tensor that ZeRO-3 stores in `module` in place of a parameter. */
static struct pk *empty_tensor(struct model_tree *k)
{
    return zero_tree_vector(k->x, zero_tree_storage(k->x, 0), k->t->weights, 0, false);
}

/* Returns the tensor of a buffer that is stored in another file of the source than `module`. */
static struct pk *buffer(struct model_tree *k, const struct source_value *v)
{
    int storage = zero_tree_storage(k->x, v->map->len);

    zero_tree_fill(k->x, &(struct zero_fill){ .storage = storage, .map = v->map, .len = v->map->len, .param = -1 });
    return pt_new_tensor(k->x->ds.arena, &(struct pt_new){
        .storage = storage, .dtype = v->map->dtype, .ndim = v->ndim, .shape = v->shape,
        .storage_elems = (int64_t)(v->map->len / (uint64_t)dtype_size(v->map->dtype)) });
}

/* Returns the value for the key `name` of `module`: the tensor of a parameter, or a copy of the source's value v. */
static struct pk *module_value(struct model_tree *k, const char *name, const struct pk *v)
{
    const char *holder = name ? zero_target_holder(k->t, name) : NULL;
    const struct param *own = name ? source_param(k->t->src, holder ? holder : name) : NULL;
    struct source_hit hit;

    if (!own && pk_is_none(v) && name && source_find(k->t->src, name, &hit) && hit.value && hit.value->map)
        return buffer(k, hit.value);
    if (!own)
        return k->t->root_pt ? zero_tree_copy_value(k->x, v, k->t->root_pt) : pk_none(k->x->ds.arena);
    if (k->t->shape.stage == 3)
        return empty_tensor(k);
    if (zero_target_trains(k->t, own))
        return trained_view(k, own, !holder);
    return frozen_tensor(k, own);
}

static struct pk *make_module(struct model_tree *k)
{
    const struct zero_target *t = k->t;
    struct pk *d = pk_ordered_dict(k->x->ds.arena);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(t->root, "module"), &n);

    k->storage = arena_alloc(k->x->ds.arena, (size_t)t->shape.n_groups * sizeof *k->storage + 1);
    for (int g = 0; t->shape.stage < 3 && g < t->shape.n_groups; g++)
        k->storage[g] = zero_tree_storage(k->x, (uint64_t)flat_elems(&t->shape, g) * (uint64_t)dtype_size(t->weights));
    for (uint32_t i = 0; pair && i < n; i++)
        pk_set(k->x->ds.arena, d, pk_copy(k->x->ds.arena, pair[2 * i]),
               module_value(k, pk_as_str(pair[2 * i]), pair[2 * i + 1]));
    /* a source that is being salvaged may lack the empty tensors of ZeRO-3 */
    for (int g = 0; t->shape.stage == 3 && g < t->shape.n_groups; g++)
        for (int i = 0; i < t->shape.group[g].n; i++)
            if (!pk_get(d, t->shape.group[g].slot[i].name))
                pk_set_str(k->x->ds.arena, d, t->shape.group[g].slot[i].name, empty_tensor(k));
    return d;
}

/* ---- frozen parameters ---- */

static bool is_frozen(const struct zero_target *t, const struct param *p)
{
    return !zero_target_holder(t, p->name) && !zero_target_trains(t, p) &&
           (p->state[STATE_BF16] || p->state[STATE_FP32]);
}

/*
 * Returns this rank's piece of the frozen parameter p. The piece has the same length on every rank. After the end of
 * the parameter, it is filled with zeros.
 */
static struct pk *frozen_piece(struct model_tree *k, const struct param *p)
{
    const int64_t size = dtype_size(k->t->weights), n = (int64_t)weights_bytes(k, p) / size;
    const int64_t c = zero_piece_elems(n, k->t->shape.world), first = k->rank * c, left = n - first;
    struct zero_fill f = make_weights_fill(k, p);
    const uint64_t elem = (uint64_t)dtype_size(f.map->dtype);

    f.storage = zero_tree_storage(k->x, (uint64_t)(c * size));
    f.from = (uint64_t)(left > 0 ? first : 0) * elem;
    f.len = (uint64_t)(left <= 0 ? 0 : left < c ? left : c) * elem;
    zero_tree_fill(k->x, &f);
    return zero_tree_vector(k->x, f.storage, k->t->weights, c, false);
}

static struct pk *make_frozen_tree(struct model_tree *k, bool values)
{
    const struct zero_target *t = k->t;
    struct arena *a = k->x->ds.arena;
    struct pk *d = pk_ordered_dict(a);

    if (t->shape.stage == 1 || t->weights_only)         /* these files do not have the frozen weights a second time */
        return pk_none(a);
    for (int i = 0; i < source_n_params(t->src); i++) {
        const struct param *p = source_param_at(t->src, i);

        if (is_frozen(t, p))
            pk_set_str(a, d, p->name, !values ? pt_new_size(a, p->ndim, p->shape) : t->shape.stage == 3
                                      ? frozen_piece(k, p) : frozen_tensor(k, p));
    }
    return d;
}

/* ---- model_states ---- */

struct pk *zero_tree_config(struct zero_tree *x, const struct zero_target *t)
{
    struct pk *config = pk_copy(x->ds.arena, pk_get(t->root, "ds_config"));
    struct pk *zero = pk_get(config, "zero_optimization");
    int64_t stage;

    if (zero && pk_as_int(pk_get(zero, "stage"), &stage))
        pk_set_str(x->ds.arena, zero, "stage", pk_int(x->ds.arena, t->shape.stage));
    return config;
}

/*
 * Remove the description of how tensor ranks split the parameters from `v`, because the source's tensor ranks have been
 * joined.
 */
static struct pk *whole_model(const struct model_tree *k, const char *key, const struct pk *v)
{
    static const char *const keep[] = { "universal_checkpoint_version", "original_vocab_size", "padded_vocab_size" };
    struct arena *a = k->x->ds.arena;
    struct pk *d = pk_copy(a, v), *less = pk_dict(a);

    if (source_topology(k->t->src).tp <= 1)
        return d;
    if (strcmp(key, "universal_checkpoint_info") != 0) {
        pk_set_str(a, d, "tp_degree", pk_int(a, 1));
        return d;
    }
    for (int i = 0; i < 3; i++)
        if (pk_get(d, keep[i]))
            pk_set_str(a, less, keep[i], pk_get(d, keep[i]));
    return less;
}

static struct pk *model_value(struct model_tree *k, const char *key, const struct pk *v)
{
    struct arena *a = k->x->ds.arena;

    if (strcmp(key, "module") == 0)
        return make_module(k);
    if (strcmp(key, "param_shapes") == 0)
        return zero_shape_tree(a, &k->t->shape);
    if (strcmp(key, "frozen_param_shapes") == 0)
        return make_frozen_tree(k, false);
    if (strcmp(key, "frozen_param_fragments") == 0)
        return make_frozen_tree(k, true);
    if (strcmp(key, "shared_params") == 0 && k->rank > 0)
        return pk_dict(a);              /* rank 0's file alone has the values */
    if (strcmp(key, "dp_world_size") == 0)
        return pk_int(a, k->t->shape.world);
    if (strcmp(key, "mp_world_size") == 0)
        return pk_int(a, 1);
    if (strcmp(key, "checkpoint_parallel_dimensions") == 0 || strcmp(key, "universal_checkpoint_info") == 0)
        return whole_model(k, key, v);
    if (strcmp(key, "ds_config") == 0 && !pk_is_none(v))
        return zero_tree_config(k->x, k->t);
    return zero_tree_copy_value(k->x, v, k->t->root_pt);
}

void zero_tree_model(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out)
{
    struct model_tree k = { .t = t, .x = out, .rank = rank };
    uint32_t n = 0;
    struct pk **pair = pk_pairs(t->root, &n);

    zero_tree_new(out, keep);
    k.frozen = names_new(out->ds.arena);
    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]))
            pk_set_str(out->ds.arena, out->ds.root, pk_as_str(pair[2 * i]),
                       model_value(&k, pk_as_str(pair[2 * i]), pair[2 * i + 1]));
}
