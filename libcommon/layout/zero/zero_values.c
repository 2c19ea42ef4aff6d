/*
 * zero_values.c - make values of the contents of rank 0's files other than parameters
 *
 * The values are the model's buffers under their own names, the other contents of model_states under their keys
 * (including the program's client_state), and the optimizer's settings as "optimizer.KEY". Contents that follow from
 * the number of ranks are left out, so that the values are the same for any number of ranks.
 */
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/zero/zero_source.h"

static struct source_value *add_zero_value(struct zero *z, const char *name)
{
    struct source_value *v = &z->s->value[z->s->n_values++];

    v->name = name;
    return v;
}

static bool is_listed_value_key(const char *key, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(key, *list) == 0)
            return true;
    return false;
}

static void add_zero_tensor_value(struct zero *z, const char *name, const struct pt_tensor *t, bool buffer)
{
    struct source_value *v = add_zero_value(z, name);
    struct tmap *m = zero_tensor_map(z, name, t);

    v->map = m;
    v->ndim = t->ndim;
    v->buffer = buffer;
    memcpy(v->shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    if (!m)
        z->s->n_values--;
}

static void add_tree(struct zero *z, const char *name, const struct pk *tree, const struct pt *pt)
{
    struct source_value *v;
    struct pt_tensor t;

    if (pt_tensor(pt, tree, &t)) {
        add_zero_tensor_value(z, name, &t, false);
        return;
    }
    v = add_zero_value(z, name);
    v->tree = tree;
    v->pt = pt;
}

/* Add the entries of a dict as values named "<prefix><key>", except for keys listed in `not`. */
static void add_dict(struct zero *z, const char *prefix, const struct pk *dict, const struct pt *pt,
                     const char *const * not)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(dict, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_listed_value_key(key, not))
            add_tree(z, arena_fmt(z->s->arena, "%s%s", prefix, key), pair[2 * i + 1], pt);
    }
}

/* Add the contents of `module` that are not parameters. */
static void add_module(struct zero *z, const struct pt *pt)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(z->root, "module"), &n);
    struct pt_tensor t;

    for (int i = 0; i < z->n_tensors; i++)
        if (z->tensor[i].buffer || (!z->tensor[i].used && z->tensor[i].t.n_elems > 0 && !z->tensor[i].shared_with))
            add_zero_tensor_value(z, z->tensor[i].name, &z->tensor[i].t, z->tensor[i].buffer);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !pt_tensor(pt, pair[2 * i + 1], &t))
            add_tree(z, key, pair[2 * i + 1], pt);
    }
}

/*
 * Returns true if `state` is the first state of one of the optimizer's groups, and sets *number to the number of that
 * group. If `groups` is NULL, each state is a separate group.
 */
static bool is_first(const struct pk *groups, int state, int *number)
{
    uint32_t n = 0;
    struct pk **group = pk_items(groups, &n);
    int64_t id;

    *number = state;
    for (uint32_t g = 0; group && g < n; g++)
        if (pk_as_int(adam_list_at(pk_get(group[g], "params"), 0), &id) && id == state) {
            *number = (int)g;
            return true;
        }
    return !group;
}

static void add_optimizer(struct zero *z, const struct pt *pt)
{
    static const char *const sharded[] = {
        "base_optimizer_state", "optimizer_state_dict", "single_partition_of_fp32_groups", "fp32_flat_groups",
        "param_slice_mappings", "group_paddings", "groups_padding", "param_alignment_paddings", "partition_count",
        NULL,
    };
    const struct pk *opt = z->s->run.optimizer, *step;
    int number;

    add_dict(z, "optimizer.", opt, pt, sharded);
    if (z->s->run.param_groups)
        add_tree(z, "optimizer.param_groups", z->s->run.param_groups, pt);
    for (int r = 0; r < z->world; r++)
        for (int i = 0; i < z->rank[r].n_more; i++)
            add_zero_tensor_value(z,
                                  arena_fmt(z->s->arena, "optimizer.state.%d.%s.rank%d", z->rank[r].more[i].group,
                                            z->rank[r].more[i].name, r),
                                  &z->rank[r].more[i].t, false);
    for (int g = 0; g < z->shape.n_groups; g++) {
        step = pk_get(adam_group_state(opt, g), "step");
        /*
         * In ZeRO-3 a group has several states, whose number depends on the number of ranks. All of them have the same
         * step, so only the first is added.
         */
        if (step && is_first(z->s->run.param_groups, g, &number))
            add_tree(z, arena_fmt(z->s->arena, "optimizer.state.%d.step", number), step, pt);
    }
}

void zero_values_make(struct zero *z, const struct pt *model)
{
    static const char *const tables[] = {
        "module", "param_shapes", "frozen_param_shapes", "frozen_param_fragments", "shared_params", "buffer_names",
        "dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions", NULL,
    };
    uint32_t n_model = 0, n_module = 0, n_opt = 0;
    size_t n_more = 0;

    pk_pairs(z->root, &n_model);
    pk_pairs(pk_get(z->root, "module"), &n_module);
    pk_pairs(z->s->run.optimizer, &n_opt);
    for (int r = 0; r < z->world; r++)
        n_more += (size_t)z->rank[r].n_more;
    z->s->value = arena_alloc(z->s->arena, (n_model + n_module + n_opt + n_more + (size_t)z->shape.n_groups + 2) *
                                               sizeof *z->s->value);
    add_module(z, model);
    add_dict(z, "", z->root, model, tables);
    if (z->s->run.optimizer)
        add_optimizer(z, z->s->run.optimizer_pt);
}
