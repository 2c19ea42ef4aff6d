/*
 * dsmoe_target.c - determine the numbers of ranks, files and positions of a target, and refuse what cannot be divided
 */
#include "libcommon/layout/dsmoe/dsmoe_target.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/engine/zero_order.h"

/* ---- the source ---- */

/* Find the files whose trees are copied. Returns -1 with *e set if there is no optimizer. */
static int find_copied_files(struct dsmoe_target *t, struct err *e)
{
    struct source *s = t->src;

    for (int i = 0; i < s->n_files; i++) {
        const struct ds_name n = ds_name_parse(s->file[i].name);

        if (n.kind == DS_MP && s->file[i].pt)
            t->read.model = s->file[i].pt;
        t->old_ep += n.kind == DS_EXPERT_OPTIM;
        if (!s->file[i].pt || (n.kind != DS_ZERO && n.kind != DS_EXPERT_OPTIM) ||
            (n.kind == DS_ZERO ? n.dp : n.expert) != 0)
            continue;
        t->optim.pt = s->file[i].pt;
        t->sharded = n.kind == DS_ZERO;
        t->bf16_prefix = n.bf16;
    }
    if (t->read.model && t->optim.pt && s->groups) {
        t->read.root = pt_root(t->read.model);
        t->optim.tree = pk_get(pt_root(t->optim.pt), t->sharded ? "optimizer_state_dict" : "optimizer");
        return zero_check_carried(t->read.model, e) < 0 ? -1 : zero_check_carried(t->optim.pt, e);
    }
    err_data(e, s->path, ERR_NO_BYTE, "has no optimizer. Weights need no conversion to other expert-parallel ranks: "
             "each expert has a file of its own, which load_checkpoint(load_module_only=True) loads with any number of "
             "them");
    return -1;
}

/* Find the numbers of ranks of the source. Returns -1 with *e set if layers have different ones. */
static int find_old_ranks(struct dsmoe_target *t, struct err *e)
{
    const struct pk *counts = pk_get(t->optim.tree, "partition_count");
    const int world = (int)pk_int_or(pk_get(t->read.root, "dp_world_size"), 1);
    int most = 0;

    t->read.world = world;
    for (int g = 0; g < t->src->groups->n; g++) {
        const struct pk *settings = dsmoe_settings(&t->optim, g);
        int64_t count;
        int n_ep = dsmoe_group_ranks(settings);

        if (!dsmoe_is_expert_group(settings))
            continue;
        if (n_ep < 1 && t->sharded && pk_as_int(adam_list_at(counts, g), &count) && count > 0)
            n_ep = world / (int)count;
        if (n_ep < 1 && !t->sharded)
            n_ep = t->old_ep;
        if (n_ep < 1 || (most && n_ep != most))
            return dsmoe_refuse_target(t, "layers have different numbers of expert-parallel ranks", e);
        most = n_ep;
    }
    t->old_ep = most ? most : t->sharded ? 1 : t->old_ep;
    for (int m = 0; m < t->read.n_layers; m++)
        if (t->read.layer[m].n_experts % t->old_ep != 0)
            return dsmoe_refuse_target(t, "layers have different numbers of expert-parallel ranks", e);
    return 0;
}

/* Returns true if a key or value of the dict, or an item of the list, is the name of an expert's tensor. */
static bool names_expert(const struct dsmoe_target *t, const struct pk *v)
{
    uint32_t n_pairs = 0, n = 0;
    struct pk **pair = pk_pairs(v, &n_pairs), **item = pair ? pair : pk_items(v, &n);
    const char *rest;
    int expert;

    for (uint32_t i = 0; item && i < (pair ? 2 * n_pairs : n); i++)
        if (pk_as_str(item[i]) && dsmoe_layer_of(&t->read, pk_as_str(item[i]), &expert, &rest))
            return true;
    return false;
}

/* Refuse tables and settings whose contents at another number of ranks are not known. */
static int check_tables(const struct dsmoe_target *t, struct err *e)
{
    static const char *const tables[] = { "frozen_param_shapes", "shared_params", "buffer_names" };
    uint32_t n_groups = 0, n = 0;
    struct pk **pads = pk_items(pk_get(t->optim.tree, "param_alignment_paddings"), &n_groups);

    for (size_t k = 0; k < sizeof tables / sizeof *tables; k++)
        if (names_expert(t, pk_get(t->read.root, tables[k])))
            return dsmoe_refuse_target(t, arena_fmt(t->arena, "%s lists tensors of experts", tables[k]), e);
    if (!t->sharded)
        return 0;
    if (zero_order_switch(t->read.root, "round_robin_gradients"))
        return dsmoe_refuse_target(t, "round_robin_gradients is on", e);
    for (uint32_t g = 0; pads && g < n_groups; g++) {
        struct pk **pad = pk_items(pads[g], &n);

        for (uint32_t i = 0; pad && i < n; i++)
            if (pk_int_or(pad[i], 0) != 0)
                return dsmoe_refuse_target(t, "the optimizer has padding between parameters (parameter_alignment)", e);
    }
    if (zero_order_switch(t->read.root, "parameter_alignment"))
        return dsmoe_refuse_target(t, "parameter_alignment is on", e);
    return 0;
}

/* Determine the numbers of ranks. Returns -1 with ERR_USAGE if they do not fit the model or each other. */
static int resolve_ranks(struct dsmoe_target *t, int n_ep, int world, struct err *e)
{
    t->n_ep = n_ep ? n_ep : t->old_ep;
    t->world = world ? world : t->read.world;
    for (int m = 0; m < t->read.n_layers; m++)
        if (t->read.layer[m].n_experts % t->n_ep != 0) {
            err_usage(e, "%s: --target-ep: layer %d has %d experts, which %d expert-parallel ranks cannot share "
                         "equally", t->src->path, m, t->read.layer[m].n_experts, t->n_ep);
            return -1;
        }
    if (t->world % t->n_ep == 0)
        return 0;
    err_usage(e, "%s: the number of data-parallel ranks, %d, is no multiple of that of expert-parallel ranks, %d; "
              "--target-dp and --target-ep change them", t->src->path, t->world, t->n_ep);
    return -1;
}

/* ---- parameters ---- */

int dsmoe_target_param(const struct dsmoe_target *t, int g, int ep, int i)
{
    return t->group[g].param[t->group[g].experts ? ep * t->group[g].n + i : i];
}

const struct tmap *dsmoe_weights(const struct param *p)
{
    return p->copy ? p->copy : p->state[STATE_BF16] ? p->state[STATE_BF16] : p->state[STATE_FP32];
}

/* ---- files of experts ---- */

/* Returns the expert that has a tensor of this name, or NULL. `first` is the index of each layer's first expert. */
static struct dsmoe_target_expert *expert_of_name(const struct dsmoe_target *t, const int *first, const char *name)
{
    const char *rest;
    int number;
    const struct dsmoe_layer *layer = dsmoe_layer_of(&t->read, name, &number, &rest);

    return layer && number < layer->n_experts ? &t->expert[first[layer - t->read.layer] + number] : NULL;
}

/* List the tensors of each expert. The reader has put those of one expert together. */
static void list_expert_tensors(struct dsmoe_target *t)
{
    int *first = arena_alloc(t->arena, ((size_t)t->read.n_layers + 1) * sizeof *first), n = 0;

    for (int m = 0; m < t->read.n_layers; m++) {
        first[m] = t->n_experts;
        t->n_experts += t->read.layer[m].n_experts;
    }
    t->expert = arena_alloc(t->arena, ((size_t)t->n_experts + 1) * sizeof *t->expert);
    for (int m = 0; m < t->read.n_layers; m++)
        for (int k = 0; k < t->read.layer[m].n_experts; k++)
            t->expert[n++] = (struct dsmoe_target_expert){ .layer = m, .expert = k };
    for (int i = 0; i < t->src->n_params; i++) {
        struct dsmoe_target_expert *of = expert_of_name(t, first, t->src->param[i].name);

        if (of && of->n++ == 0)
            of->first = i;
    }
    for (int i = 0; i < t->src->n_values; i++) {
        const struct source_value *v = &t->src->value[i];
        struct dsmoe_target_expert *of = v->map && v->buffer ? expert_of_name(t, first, v->name) : NULL;

        if (of && of->n_values++ == 0)
            of->first_value = i;
    }
}

/* ---- positions ---- */

/* Check that all parameters of a group have states of the same type, because they share a vector. */
static int check_group_types(const struct dsmoe_target *t, int g, struct err *e)
{
    const struct dsmoe_target_group *of = &t->group[g];

    for (int k = 0; k < TRAINED_STATES; k++)
        for (int i = 0; i < of->n * (of->experts ? t->n_ep : 1); i++) {
            const struct tmap *m = t->src->param[of->param[i]].state[trained_states[k]];
            const struct tmap *first = t->src->param[of->param[0]].state[trained_states[k]];

            if (!m != !first || (m && m->dtype != first->dtype))
                return dsmoe_refuse_target(t, arena_fmt(t->arena, "group %d has states of several types", g), e);
        }
    return 0;
}

/* Place the parameters of rank 0 in the vectors. */
static void place_target(struct dsmoe_target *t)
{
    for (int k = 0; k < 2; k++) {
        struct zero_shape *x = &t->shape[k];

        x->n_groups = t->n_groups;
        x->group = arena_alloc(t->arena, ((size_t)t->n_groups + 1) * sizeof *x->group);
        for (int g = 0; g < t->n_groups; g++) {
            x->group[g] = zero_order_new_group(t->arena, t->group[g].n);
            for (int i = 0; i < t->group[g].n; i++) {
                const struct param *p = &t->src->param[t->group[g].param[i]];
                struct zero_slot *slot = &x->group[g].slot[x->group[g].n++];

                *slot = (struct zero_slot){ .name = dsmoe_local_name(t, p->name, t->n_ep), .ndim = p->ndim,
                                            .n_elems = shape_count(p->ndim, p->shape) };
                memcpy(slot->shape, p->shape, sizeof slot->shape);
            }
        }
        zero_shape_place(x, 2, k == 0 ? t->world : t->world / t->n_ep);
    }
}

static int make_target(struct dsmoe_target *t, int n_ep, int world, struct report *notes, struct err *e)
{
    if (find_copied_files(t, e) < 0 || dsmoe_find_layers(&t->read, e) < 0 || find_old_ranks(t, e) < 0 ||
        resolve_ranks(t, n_ep, world, e) < 0 || check_tables(t, e) < 0)
        return -1;
    t->data_first = pk_int_or(pk_get(pk_get(t->read.root, "ds_config"), "use_data_before_expert_parallelism"), 0) != 0;
    if (dsmoe_make_groups(t, notes, e) < 0)
        return -1;
    for (int g = 0; t->sharded && g < t->n_groups; g++)
        if (check_group_types(t, g, e) < 0)
            return -1;
    place_target(t);
    list_expert_tensors(t);
    return 0;
}

struct dsmoe_target *dsmoe_target_new(struct source *s, int n_ep, int world, struct report *notes, struct err *e)
{
    struct dsmoe_target *t = xcalloc(1, sizeof *t);

    t->arena = arena_new(0);
    t->src = s;
    t->read.s = s;
    t->read.r = report_new();
    if (make_target(t, n_ep, world, notes, e) == 0)
        return t;
    dsmoe_target_free(t);
    return NULL;
}

void dsmoe_target_free(struct dsmoe_target *t)
{
    if (!t)
        return;
    report_free(t->read.r);
    arena_free(t->arena);
    free(t);
}
