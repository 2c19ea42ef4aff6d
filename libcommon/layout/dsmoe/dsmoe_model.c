/*
 * dsmoe_model.c - make the parameters and the values of the model
 *
 * The experts of a layer follow its gate, one after the other, as in the model of a run with one expert-parallel rank.
 */
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dsmoe/dsmoe.h"
#include "libcommon/layout/engine/zero_shape.h"

struct tmap *dsmoe_new_map(const struct dsmoe *x, enum dtype dtype, int64_t n, int n_extents)
{
    struct tmap *m = arena_alloc(x->s->arena, sizeof *m);

    *m = (struct tmap){ .op = TMAP_CONCAT, .dtype = dtype, .len = (uint64_t)n * (uint64_t)dtype_size(dtype),
                        .n_slices = 1, .slice = arena_alloc(x->s->arena, sizeof *m->slice) };
    *m->slice = (struct tmap_slice){
        .len = m->len, .extent = arena_alloc(x->s->arena, ((size_t)n_extents + 1) * sizeof *m->slice->extent) };
    return m;
}

/* Returns the map of a tensor, or NULL after a report if it cannot be one of the model. */
static struct tmap *tensor_map(const struct dsmoe *x, const char *name, const struct pt_tensor *t)
{
    const char *why = !zero_is_name(name)                 ? "a parameter cannot have this name"
                      : names_find(x->known, name) >= 0 ? "two tensors have this name"
                      : !t->contiguous                    ? "its elements are not contiguous in its storage"
                                                          : NULL;
    struct tmap *m;

    if (why) {
        source_add_unread(x->s, x->o, x->r, (struct source_spot){ x->s->path, ERR_NO_BYTE }, name, why);
        return NULL;
    }
    m = dsmoe_new_map(x, t->dtype, t->n_elems, 1);
    if (t->n_elems)
        m->slice->extent[m->slice->n_extents++] = (struct extent){ t->record, t->at, pt_tensor_bytes(t) };
    return m;
}

/* Add a tensor as a parameter, or as a buffer. */
static void add_tensor(struct dsmoe *x, const char *name, const struct pt_tensor *t, bool buffer)
{
    struct source *s = x->s;
    struct tmap *map = tensor_map(x, name, t);
    struct param *p;

    if (!map)
        return;
    if (buffer || !dtype_is_weight(t->dtype)) {
        struct source_value v = { .name = name, .map = map, .ndim = t->ndim, .buffer = true };

        memcpy(v.shape, t->shape, sizeof v.shape);
        s->value[s->n_values++] = v;
        return;
    }
    names_add(x->known, name, s->n_params);
    p = &s->param[s->n_params++];
    *p = (struct param){ .name = name, .ndim = t->ndim, .merge = MERGE_REPLICATED, .stage = -1, .group = -1 };
    memcpy(p->shape, t->shape, sizeof p->shape);
    p->state[t->dtype == DTYPE_F32 || t->dtype == DTYPE_F64 ? STATE_FP32 : STATE_BF16] = map;
}

/* Add the tensors of all experts of the layer whose gate is called `name`. */
static void add_experts_after(struct dsmoe *x, const char *name)
{
    const char *at = strstr(name, ".deepspeed_moe.gate.wg.weight");
    const size_t n = at ? (size_t)(at - name) : 0;

    for (int m = 0; at && m < x->n_layers; m++) {
        const struct dsmoe_layer *layer = &x->layer[m];

        if (strncmp(layer->prefix, name, n) != 0 || !str_starts(layer->prefix + n, ".deepspeed_moe.experts."))
            continue;
        for (int k = 0; k < layer->n_experts; k++)
            for (int i = 0; layer->expert[k].read && i < layer->expert[k].n; i++)
                add_tensor(x, arena_fmt(x->s->arena, "%s", layer->expert[k].tensor[i].name),
                           &layer->expert[k].tensor[i].t, false);
    }
}

/* Returns the names in the list `key` of the model's file. */
static struct names *listed_names(const struct dsmoe *x, const char *key)
{
    struct names *names = names_new(x->s->arena);
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(x->root, key), &n);

    for (uint32_t i = 0; item && i < n; i++)
        if (pk_as_str(item[i]))
            names_add(names, pk_as_str(item[i]), (int)i);
    return names;
}

static void add_tree(struct dsmoe *x, const char *name, const struct pk *v)
{
    x->s->value[x->s->n_values++] = (struct source_value){ .name = name, .tree = v, .pt = x->model };
}

/* Add what the model's file holds besides tables that depend on the number of ranks. */
static void add_model_values(struct dsmoe *x)
{
    static const char *const tables[] = {
        "module", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params", "buffer_names",
        "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", "optimizer",
    };
    uint32_t n = 0;
    struct pk **pair = pk_pairs(x->root, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        bool table = !key;

        for (size_t k = 0; key && k < sizeof tables / sizeof *tables; k++)
            table |= strcmp(key, tables[k]) == 0;
        if (!table)
            add_tree(x, key, pair[2 * i + 1]);
    }
}

/* Add the parameters that are second names of others (shared_params). */
static void add_shared_params(struct dsmoe *x, const struct pk *shared)
{
    struct source *s = x->s;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(shared, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]), *holder = pk_as_str(pair[2 * i + 1]);
        const int at = holder ? names_find(x->known, holder) : -1;
        struct param *p;

        if (!name || at < 0 || names_find(x->known, name) >= 0) {
            report_add(x->r, SEV_ERROR, "unread", pt_path(x->model), ERR_NO_BYTE, name,
                       "shared_params: it cannot share the tensor of '%s'", holder ? holder : "(no name)");
            continue;
        }
        names_add(x->known, name, s->n_params);
        p = &s->param[s->n_params++];
        *p = s->param[at];
        p->name = name;
        p->shared_with = s->param[at].name;
    }
}

void dsmoe_make_params(struct dsmoe *x)
{
    struct source *s = x->s;
    const struct pk *shared = pk_get(x->root, "shared_params");
    struct names *buffers = listed_names(x, "buffer_names");
    uint32_t n = 0, n_root = 0, n_shared = 0;
    struct pk **pair = pk_pairs(pk_get(x->root, "module"), &n);
    size_t room;

    pk_pairs(x->root, &n_root);
    pk_pairs(shared, &n_shared);
    room = n;
    for (int m = 0; m < x->n_layers; m++)
        for (int k = 0; k < x->layer[m].n_experts; k++)
            room += (size_t)x->layer[m].expert[k].n;
    s->param = arena_alloc(s->arena, (room + n_shared + 1) * sizeof *s->param);
    s->value = arena_alloc(s->arena, (room + n_root + 64) * sizeof *s->value);
    x->known = names_new(s->arena);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *name = pk_as_str(pair[2 * i]);
        struct pt_tensor t;

        if (!name || pk_get(shared, name))
            continue;
        if (pt_tensor(x->model, pair[2 * i + 1], &t))
            add_tensor(x, name, &t, names_find(buffers, name) >= 0);
        else
            add_tree(x, name, pair[2 * i + 1]);
        add_experts_after(x, name);
    }
    add_shared_params(x, shared);
    add_model_values(x);
}
