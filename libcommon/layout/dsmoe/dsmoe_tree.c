/*
 * dsmoe_tree.c - make the tree of each file of a target: copies of the source's trees, in which what depends on the
 * ranks is replaced
 */
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dsmoe/dsmoe_target.h"

#include <stdlib.h>
#include <string.h>

/* A file that is being made. */
struct moe_file {
    const struct dsmoe_target *t;
    struct zero_tree *x;
    struct arena *a;                    /* the tree's arena */
    int ep;                             /* for the optimizer: the expert-parallel rank */
    int part;                           /* for ZeRO-1/2: the part of the vectors of experts, and the rank */
    int rank;
};

static struct pk *copy_of(struct moe_file *k, const struct pk *v, const struct pt *pt)
{
    return zero_tree_copy_value(k->x, v, pt);
}

/* Returns a tensor with all elements of a map of a parameter. */
static struct pk *whole_tensor(struct moe_file *k, int param, enum state state, const struct tmap *m)
{
    const struct param *p = &k->t->src->param[param];
    const int storage = zero_tree_storage(k->x, m->len);

    zero_tree_fill(k->x, &(struct zero_fill){ .storage = storage, .map = m, .len = m->len, .param = param,
                                              .state = state });
    return pt_new_tensor(k->a, &(struct pt_new){ .storage = storage, .dtype = m->dtype, .ndim = p->ndim,
                                                 .storage_elems = shape_count(p->ndim, p->shape), .shape = p->shape });
}

static struct pk *weights_tensor(struct moe_file *k, int param)
{
    const struct tmap *m = dsmoe_weights(&k->t->src->param[param]);

    return whole_tensor(k, param, dtype_size(m->dtype) >= 4 ? STATE_FP32 : STATE_BF16, m);
}

/* ---- the optimizer without ZeRO ---- */

/* Returns the state of a parameter: a copy of that of another parameter of its group, with its own moments. */
static struct pk *whole_state(struct moe_file *k, int param, const struct pk *was)
{
    const struct param *p = &k->t->src->param[param];
    struct pk *d = pk_dict(k->a);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(was, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        const int st = !key ? -1 : strcmp(key, "exp_avg") == 0 ? STATE_EXP_AVG : strcmp(key, "exp_avg_sq") == 0
                       ? STATE_EXP_AVG_SQ : -1;

        pk_set(k->a, d, pk_copy(k->a, pair[2 * i]), st < 0 || !p->state[st]
               ? copy_of(k, pair[2 * i + 1], k->t->optim.pt) : whole_tensor(k, param, (enum state)st, p->state[st]));
    }
    return d;
}

/* Returns the state of the first parameter of the group that group g has its settings from, or NULL. */
static const struct pk *first_state(const struct dsmoe_target *t, int g)
{
    const struct pk *ids = pk_get(dsmoe_settings(&t->optim, t->group[g].from), "params");

    return dsmoe_state_of_number(pk_get(dsmoe_torch_dict(t->optim.tree), "state"),
                                 pk_int_or(adam_list_at(ids, 0), -1));
}

static struct pk *whole_states(struct moe_file *k)
{
    struct pk *d = pk_dict(k->a);
    int64_t number = 0;

    for (int g = 0; g < k->t->n_groups; g++) {
        const struct pk *was = first_state(k->t, g);

        for (int i = 0; i < k->t->group[g].n; i++, number++)
            if (was)
                pk_set(k->a, d, pk_int(k->a, number), whole_state(k, dsmoe_target_param(k->t, g, k->ep, i), was));
    }
    return d;
}

static struct pk *whole_masters(struct moe_file *k)
{
    struct pk *all = pk_list(k->a);

    for (int g = 0; g < k->t->n_groups; g++) {
        struct pk *list = pk_list(k->a);

        for (int i = 0; i < k->t->group[g].n; i++) {
            const int param = dsmoe_target_param(k->t, g, k->ep, i);

            pk_add(k->a, list, whole_tensor(k, param, STATE_FP32, k->t->src->param[param].state[STATE_FP32]));
        }
        pk_add(k->a, all, list);
    }
    return all;
}

/* ---- torch's dict ---- */

/*
 * Returns param_groups: the settings of each group, with the numbers of its states and the name of groups of as many
 * expert-parallel ranks.
 */
static struct pk *make_group_list(struct moe_file *k)
{
    const struct dsmoe_target *t = k->t;
    struct pk *list = pk_list(k->a);
    int64_t number = 0;

    for (int g = 0; g < t->n_groups; g++) {
        const struct pk *was = dsmoe_settings(&t->optim, t->group[g].from);
        struct pk *d = copy_of(k, was, t->optim.pt), *ids = pk_list(k->a);

        for (int i = 0; i < (t->sharded ? 1 : t->group[g].n); i++)
            pk_add(k->a, ids, pk_int(k->a, number++));
        pk_set_str(k->a, d, "params", ids);
        if (t->group[g].experts && dsmoe_group_ranks(was) > 0)
            pk_set_str(k->a, d, "name", pk_str(k->a, arena_fmt(k->a, "ep_size_%d", t->n_ep)));
        pk_add(k->a, list, d);
    }
    return list;
}

static struct pk *make_torch_dict(struct moe_file *k, const struct pk *was, struct pk *states)
{
    struct pk *d = pk_dict(k->a);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(was, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        pk_set(k->a, d, pk_copy(k->a, pair[2 * i]),
               key && strcmp(key, "state") == 0          ? states
               : key && strcmp(key, "param_groups") == 0 ? make_group_list(k)
                                                         : copy_of(k, pair[2 * i + 1], k->t->optim.pt));
    }
    return d;
}

/* Returns the whole optimizer of an expert-parallel rank. */
static struct pk *make_whole_optimizer(struct moe_file *k)
{
    const struct pk *was = k->t->optim.tree, *torch = dsmoe_torch_dict(was);
    struct pk *d = pk_dict(k->a);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(was, &n);

    if (torch == was)
        return make_torch_dict(k, was, whole_states(k));
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        pk_set(k->a, d, pk_copy(k->a, pair[2 * i]),
               pair[2 * i + 1] == torch                 ? make_torch_dict(k, torch, whole_states(k))
               : key && strcmp(key, "fp32_groups") == 0 ? whole_masters(k)
                                                        : copy_of(k, pair[2 * i + 1], k->t->optim.pt));
    }
    return d;
}

/* ---- the optimizer of ZeRO-1/2 ---- */

/* Returns the shape with the vector of group g, and sets *rank to this rank's number among those that share it. */
static const struct zero_shape *shape_of_group(const struct moe_file *k, int g, int *rank)
{
    const bool experts = k->t->group[g].experts;

    *rank = experts ? k->part : k->rank;
    return &k->t->shape[experts];
}

/* Returns this rank's vector of a state of group g. Masters have no padding at the end of the group. */
static struct pk *group_vector(struct moe_file *k, int g, enum state st)
{
    int rank;
    const struct zero_shape *x = shape_of_group(k, g, &rank);
    const int64_t n = st == STATE_FP32 ? zero_lean(x, g, rank) : x->group[g].part;
    const int first = x->group[g].n ? dsmoe_target_param(k->t, g, k->ep, 0) : -1;
    const enum dtype dtype = first < 0 ? DTYPE_F32 : k->t->src->param[first].state[st]->dtype;
    const uint64_t size = (uint64_t)dtype_size(dtype);
    const int storage = zero_tree_storage(k->x, (uint64_t)n * size);

    for (int i = 0; i < x->group[g].n; i++) {
        const int param = dsmoe_target_param(k->t, g, k->ep, i);
        int64_t at, skip;
        const int64_t elems = zero_piece(x, g, &x->group[g].slot[i], rank, &at, &skip);

        if (elems > 0)
            zero_tree_fill(k->x, &(struct zero_fill){
                .storage = storage, .at = (uint64_t)at * size, .map = k->t->src->param[param].state[st],
                .from = (uint64_t)skip * size, .len = (uint64_t)elems * size, .param = param, .state = st });
    }
    return zero_tree_vector(k->x, storage, dtype, n, st == STATE_FP32);
}

/* Returns the states of all groups by their numbers: the source's states, with this rank's moments. */
static struct pk *group_states(struct moe_file *k)
{
    struct pk *all = pk_dict(k->a);

    for (int g = 0; g < k->t->n_groups; g++) {
        uint32_t n = 0;
        struct pk **pair = pk_pairs(adam_group_state(k->t->optim.tree, k->t->group[g].from), &n), *d = pk_dict(k->a);

        for (uint32_t i = 0; pair && i < n; i++) {
            const char *key = pk_as_str(pair[2 * i]);
            const int st = !key ? -1 : strcmp(key, "exp_avg") == 0 ? STATE_EXP_AVG
                           : strcmp(key, "exp_avg_sq") == 0 ? STATE_EXP_AVG_SQ : -1;

            pk_set(k->a, d, pk_copy(k->a, pair[2 * i]), st < 0 ? copy_of(k, pair[2 * i + 1], k->t->optim.pt)
                                                               : group_vector(k, g, (enum state)st));
        }
        if (pair)
            pk_set(k->a, all, pk_int(k->a, g), d);
    }
    return all;
}

enum parts_key { K_MASTERS, K_PADDINGS, K_ALIGNMENTS, K_COUNTS, K_MAPPINGS, K_N };

/* Returns what a member of the optimizer has for group g. */
static struct pk *group_member(struct moe_file *k, enum parts_key key, int g)
{
    int rank;
    const struct zero_shape *x = shape_of_group(k, g, &rank);

    switch (key) {
    case K_MASTERS: return group_vector(k, g, STATE_FP32);
    case K_PADDINGS: return pk_int(k->a, x->group[g].part - zero_lean(x, g, rank));
    case K_ALIGNMENTS: return zero_alignment_tree(k->a, x, g);
    case K_COUNTS: return pk_int(k->a, x->world);
    default: return zero_mapping_tree(k->a, x, g, rank);
    }
}

/* Returns the number of a member that is a list with an item for each group, or K_N. */
static enum parts_key find_list_member(const char *key, const struct pk *v)
{
    static const char *const name[K_N] = {
        [K_MASTERS] = "single_partition_of_fp32_groups", [K_PADDINGS] = "group_paddings",
        [K_ALIGNMENTS] = "param_alignment_paddings", [K_COUNTS] = "partition_count",
        [K_MAPPINGS] = "param_slice_mappings",
    };
    int i = 0;

    while (i < K_N && (!key || strcmp(key, name[i]) != 0 || !pk_items(v, &(uint32_t){0})))
        i++;
    return (enum parts_key)i;
}

/* Returns optimizer_state_dict of a rank of ZeRO-1/2. */
static struct pk *make_sharded_optimizer(struct moe_file *k)
{
    const struct pk *was = k->t->optim.tree, *torch = dsmoe_torch_dict(was);
    struct pk *d = pk_dict(k->a);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(was, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const enum parts_key key = find_list_member(pk_as_str(pair[2 * i]), pair[2 * i + 1]);
        struct pk *v = key < K_N ? pk_list(k->a) : pair[2 * i + 1] == torch
                       ? make_torch_dict(k, torch, group_states(k)) : copy_of(k, pair[2 * i + 1], k->t->optim.pt);

        for (int g = 0; key < K_N && g < k->t->n_groups; g++)
            pk_add(k->a, v, group_member(k, key, g));
        pk_set(k->a, d, pk_copy(k->a, pair[2 * i]), v);
    }
    return d;
}

/* ---- files ---- */

static struct moe_file begin_file(const struct dsmoe_target *t, struct arena *keep, struct zero_tree *out)
{
    zero_tree_new(out, keep);
    return (struct moe_file){ .t = t, .x = out, .a = out->ds.arena };
}

static struct pk *make_moe_module(struct moe_file *k, const struct pk *was)
{
    struct pk *d = pk_ordered_dict(k->a);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(was, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]);
        const struct param *p = name ? source_param(k->t->src, name) : NULL;

        pk_set(k->a, d, pk_copy(k->a, pair[2 * i]),
               p && !p->shared_with ? weights_tensor(k, source_param_index(k->t->src, p))
                                    : copy_of(k, pair[2 * i + 1], k->t->read.model));
    }
    return d;
}

void dsmoe_tree_model(const struct dsmoe_target *t, struct arena *keep, struct zero_tree *out)
{
    struct moe_file k = begin_file(t, keep, out);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(t->read.root, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        const struct pk *v = pair[2 * i + 1];
        struct pk *to;

        if (key && strcmp(key, "module") == 0)
            to = make_moe_module(&k, v);
        else if (key && strcmp(key, "optimizer") == 0 && !t->sharded && pk_pairs(v, &(uint32_t){0}))
            to = make_whole_optimizer(&k);
        else if (key && strcmp(key, "param_shapes") == 0 && pk_items(v, &(uint32_t){0}))
            to = zero_shape_tree(k.a, &t->shape[0]);
        else if (key && strcmp(key, "dp_world_size") == 0)
            to = pk_int(k.a, t->world);
        else
            to = copy_of(&k, v, t->read.model);
        pk_set(k.a, out->ds.root, pk_copy(k.a, pair[2 * i]), to);
    }
}

void dsmoe_tree_expert(const struct dsmoe_target *t, int i, struct arena *keep, struct zero_tree *out)
{
    struct moe_file k = begin_file(t, keep, out);
    const struct dsmoe_target_expert *of = &t->expert[i];

    for (int p = of->first; p < of->first + of->n; p++)
        pk_set_str(k.a, out->ds.root, t->src->param[p].name, weights_tensor(&k, p));
    for (int j = of->first_value; j < of->first_value + of->n_values; j++) {
        const struct source_value *v = &t->src->value[j];
        const int storage = zero_tree_storage(out, v->map->len);

        zero_tree_fill(out, &(struct zero_fill){ .storage = storage, .map = v->map, .len = v->map->len, .param = -1 });
        pk_set_str(k.a, out->ds.root, v->name, pt_new_tensor(k.a, &(struct pt_new){
            .storage = storage, .dtype = v->map->dtype, .ndim = v->ndim, .shape = v->shape,
            .storage_elems = shape_count(v->ndim, v->shape) }));
    }
}

void dsmoe_tree_optim(const struct dsmoe_target *t, int rank, struct arena *keep, struct zero_tree *out)
{
    struct moe_file k = begin_file(t, keep, out);
    const int parts = t->world / t->n_ep;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pt_root(t->optim.pt), &n);

    k.rank = rank;
    k.ep = !t->sharded ? rank : t->data_first ? rank / parts : rank % t->n_ep;
    k.part = t->data_first ? rank % parts : rank / t->n_ep;
    for (uint32_t i = 0; pair && i < n; i++)
        pk_set(k.a, out->ds.root, pk_copy(k.a, pair[2 * i]),
               pair[2 * i + 1] != t->optim.tree ? copy_of(&k, pair[2 * i + 1], t->optim.pt)
               : t->sharded                     ? make_sharded_optimizer(&k)
                                                : make_whole_optimizer(&k));
}
