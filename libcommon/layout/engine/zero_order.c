/*
 * zero_order.c - restore the optimizer's order: join sub-groups, and reverse the round-robin distribution
 */
#include "libcommon/layout/engine/zero_order.h"

#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/optim_groups.h"

struct pt *zero_order_root(const struct source *s)
{
    for (int i = 0; s->zero_stage && i < s->n_files; i++) {
        enum ds_kind kind = ds_name_parse(s->file[i].name).kind;

        if ((kind == DS_MP || kind == DS_ZERO3) && s->file[i].pt)
            return s->file[i].pt;
    }
    return NULL;
}

bool zero_order_switch(const struct pk *root, const char *key)
{
    int64_t v = 0;

    return pk_as_int(pk_get(pk_get(pk_get(root, "ds_config"), "zero_optimization"), key), &v) && v;
}

struct zero_group zero_order_new_group(struct arena *a, int n)
{
    return (struct zero_group){ .slot = arena_alloc(a, ((size_t)n + 1) * sizeof(struct zero_slot)) };
}

void zero_order_distribute(struct arena *a, struct zero_group *g, int world, bool back)
{
    struct zero_group to = zero_order_new_group(a, g->n);

    for (int first = 0; first < world && first < g->n; first++)
        for (int i = first; i < g->n; i += world, to.n++) {
            if (back)
                to.slot[i] = g->slot[to.n];
            else
                to.slot[to.n] = g->slot[i];
        }
    *g = to;
}

static void append_group_slots(struct zero_group *g, const struct zero_group *more)
{
    memcpy(g->slot + g->n, more->slot, (size_t)more->n * sizeof *g->slot);
    g->n += more->n;
}

/*
 * Join the sub-groups of ZeRO-3 into the groups of the optimizer. Each group lists the numbers of its sub-groups, in
 * order.
 */
static int join_groups(const struct source *s, struct arena *a, struct zero_shape *x, struct err *e)
{
    const struct zero_shape from = *x;
    uint32_t n = 0, m;
    struct pk **group = pk_items(s->run.param_groups, &n);
    int64_t next = 0, id;
    int all = 0;

    for (int g = 0; g < from.n_groups; g++)
        all += from.group[g].n;
    x->group = arena_alloc(a, (n + 1) * sizeof *x->group);
    x->n_groups = (int)n;
    for (uint32_t g = 0; group && g < n; g++) {
        struct pk **item = pk_items(pk_get(group[g], "params"), &m);

        x->group[g] = zero_order_new_group(a, all);
        for (uint32_t i = 0; item && i < m; i++, next++) {
            if (!pk_as_int(item[i], &id) || id != next || id >= from.n_groups)
                goto odd;
            append_group_slots(&x->group[g], &from.group[id]);
        }
    }
    if (group && next == from.n_groups)
        return 0;
odd:
    err_data(e, s->path, ERR_NO_BYTE, "param_groups do not list its %d sub-groups in order", from.n_groups);
    return -1;
}

/* Replace the shapes of slices, which a tensor rank's param_shapes states, by the shapes of whole parameters. */
static int set_whole_slot_shapes(const struct source *s, struct zero_shape *x, struct err *e)
{
    for (int g = 0; g < x->n_groups; g++)
        for (int i = 0; i < x->group[g].n; i++) {
            struct zero_slot *slot = &x->group[g].slot[i];
            const struct param *p = source_param(s, slot->name);

            if (!p || p->ndim != slot->ndim) {
                err_data(e, s->path, ERR_NO_BYTE, "parameter %s: is in param_shapes, but has another shape or is "
                                                  "missing",
                         slot->name);
                return -1;
            }
            memcpy(slot->shape, p->shape, sizeof slot->shape);
            slot->n_elems = shape_count(p->ndim, p->shape);
        }
    return 0;
}

/* Make one group of all weights. This is for a run without ZeRO, whose files list no groups. */
static void all_in_one(const struct source *s, struct arena *a, struct zero_shape *out)
{
    struct zero_group *g = arena_alloc(a, sizeof *g);

    *g = zero_order_new_group(a, s->n_params);
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        struct zero_slot *slot = &g->slot[g->n];

        if (p->shared_with)
            continue;
        *slot = (struct zero_slot){ .name = p->name, .ndim = p->ndim,
                                     .n_elems = shape_count(p->ndim, p->shape) };
        memcpy(slot->shape, p->shape, sizeof slot->shape);
        g->n++;
    }
    *out = (struct zero_shape){ .n_groups = 1, .group = g };
    zero_shape_index(out, a);
}

int zero_order_read_shapes(const struct pk *root, struct arena *a, const char *path, struct zero_shape *out,
                           struct err *e)
{
    struct report *findings = report_new();
    int rc = 0;

    if (!zero_shape_read(out, a, pk_get(root, "param_shapes"), path, findings))
        rc = report_first_error(findings, e);
    report_free(findings);
    return rc;
}

int zero_order_read(const struct source *s, struct arena *a, struct zero_shape *out, struct err *e)
{
    const struct pk *root = pt_root(zero_order_root(s));
    int rc;

    if (!s->run.optimizer && s->zero_stage < 3 && pk_is_none(pk_get(root, "param_shapes"))) {
        all_in_one(s, a, out);
        return 0;
    }
    rc = zero_order_read_shapes(root, a, s->path, out, e);
    if (rc == 0 && s->topo.tp > 1)
        rc = set_whole_slot_shapes(s, out, e);
    if (rc == 0 && s->zero_stage == 3 && s->run.optimizer)
        rc = join_groups(s, a, out, e);
    for (int g = 0; rc == 0 && g < out->n_groups; g++)
        if (s->zero_stage < 3 && zero_order_switch(root, "round_robin_gradients"))
            zero_order_distribute(a, &out->group[g], s->topo.dp, true);
    return rc;
}

int zero_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct zero_shape x;

    if (!zero_order_root(s)) {
        err_data(e, s->path, ERR_NO_BYTE, "has no model_states file, which lists the groups of the optimizer");
        return -1;
    }
    if (zero_order_read(s, a, &x, e) < 0)
        return -1;
    out->n = x.n_groups;
    out->group = arena_alloc(a, (size_t)x.n_groups * sizeof *out->group + 1);
    for (int g = 0; g < x.n_groups; g++) {
        struct optim_group *to = &out->group[g];

        *to = (struct optim_group){ .settings = adam_list_at(s->run.param_groups, g),
                                    .param = arena_alloc(a, ((size_t)x.group[g].n + 1) * sizeof *to->param) };
        for (; to->n < x.group[g].n; to->n++)
            to->param[to->n] = x.group[g].slot[to->n].name;
    }
    return 0;
}
