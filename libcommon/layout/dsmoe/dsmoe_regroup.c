/*
 * dsmoe_regroup.c - determine the groups of a target's optimizer, and which parameters of them each rank has
 *
 * split_params_into_different_moe_groups_for_optimizer() puts the experts of a rank that share settings into one group,
 * in the order of the model. A group whose elements on a rank are more than its max_group_size becomes several: a
 * parameter with which the group would be too large begins the next one. The number of these groups therefore depends
 * on the number of ranks. max_group_size is not stored; it is the default, unless the source's groups show another one.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dsmoe/dsmoe_target.h"

/* Default of max_group_size: maximum number of elements of a group of experts on a rank. */
enum { GROUP_ELEMS_MAX = 178956971 };

/* Groups of experts of the source that follow each other and have the same settings. */
struct expert_class {
    int first, n_groups;
    int n, *param;                      /* [n]: index in src->param, in the order of the model */
    int *old, n_old;                    /* [old_ep * n_old]: the same, rank after rank, of the source */
    int *now, n_now;                    /* [n_ep * n_now]: and of the target */
};

int dsmoe_refuse_target(const struct dsmoe_target *t, const char *why, struct err *e)
{
    err_data(e, t->src->path, ERR_NO_BYTE, "%s: the optimizer cannot be divided over other ranks; --to dcp --ranks N, "
             "--to zero2 --ranks N and ds2universal convert it", why);
    return -1;
}

/* ---- ranks of parameters ---- */

/* Returns the number of the expert-parallel rank, of n_ep, that has a parameter; 0 if it is not of an expert. */
static int rank_of_param(const struct dsmoe_target *t, const char *name, int n_ep)
{
    const char *rest;
    int expert;
    const struct dsmoe_layer *layer = dsmoe_layer_of(&t->read, name, &expert, &rest);

    return layer ? expert / (layer->n_experts / n_ep) : 0;
}

const char *dsmoe_local_name(const struct dsmoe_target *t, const char *name, int n_ep)
{
    const char *rest;
    int expert;
    const struct dsmoe_layer *layer = dsmoe_layer_of(&t->read, name, &expert, &rest);

    return layer ? arena_fmt(t->arena, "%s%d%s", layer->prefix, expert % (layer->n_experts / n_ep), rest) : name;
}

/*
 * Divide the parameters of a class over n_ep ranks: list[] receives those of one rank after the other. Returns the
 * number of parameters of each rank, or -1 if the numbers differ.
 */
static int divide_class(const struct dsmoe_target *t, const struct expert_class *c, int n_ep, int *list)
{
    const int each = c->n / n_ep;
    int *n = xcalloc((size_t)n_ep, sizeof *n);
    bool good = c->n % n_ep == 0;

    for (int i = 0; i < c->n && good; i++) {
        const int rank = rank_of_param(t, t->src->param[c->param[i]].name, n_ep);

        good = rank < n_ep && n[rank] < each;
        if (good)
            list[rank * each + n[rank]++] = c->param[i];
    }
    free(n);
    return good ? each : -1;
}

/* Returns true if all ranks have the same parameters under their local names. list[] has those of rank after rank. */
static bool ranks_are_equal(const struct dsmoe_target *t, const int *list, int n, int n_ep)
{
    bool equal = n >= 0;

    for (int i = n; i < n_ep * n && equal; i++) {
        const struct param *p = &t->src->param[list[i]], *first = &t->src->param[list[i % n]];

        equal = strcmp(dsmoe_local_name(t, p->name, n_ep), dsmoe_local_name(t, first->name, n_ep)) == 0 &&
                shape_equal(p->ndim, p->shape, first->ndim, first->shape);
    }
    return equal;
}

/* ---- order of the source's optimizer ---- */

/* Returns true if a copy in the map begins at this place. */
static bool begins_at(const struct tmap *m, const struct pt_tensor *at)
{
    for (int i = 0; m && i < m->n_slices; i++)
        if (m->slice[i].n_extents && m->slice[i].extent->record == at->record && m->slice[i].extent->at == at->at)
            return true;
    return m && m->len == 0;
}

/* Returns true if a rank's file of ZeRO-0 has the n parameters list[] as its group g, in this order. */
static bool has_whole_order(const struct dsmoe_target *t, const struct dsmoe_optim *f, int g, const int *list, int n)
{
    const struct pk *torch = dsmoe_torch_dict(f->tree), *masters = pk_get(f->tree, "fp32_groups");
    const struct pk *ids = pk_get(dsmoe_settings(f, g), "params");
    uint32_t n_ids = 0;
    bool good = pk_items(ids, &n_ids) && (int)n_ids == n;

    for (int i = 0; i < n && good; i++) {
        const struct param *p = &t->src->param[list[i]];
        const enum state state = masters ? STATE_FP32 : STATE_EXP_AVG;
        const struct pk *v = masters ? adam_list_at(adam_list_at(masters, g), i)
                                     : pk_get(dsmoe_state_of_number(pk_get(torch, "state"),
                                                                    pk_int_or(adam_list_at(ids, i), -1)), "exp_avg");
        struct pt_tensor at;

        good = pt_tensor(f->pt, v, &at) && begins_at(p->state[state], &at);
    }
    return good;
}

/* Returns true if param_shapes lists the parameters list[] as group g, in order, under their names on rank 0. */
static bool has_shapes_order(const struct dsmoe_target *t, int g, const int *list, int n)
{
    uint32_t n_pairs = 0;
    struct pk **pair = pk_pairs(adam_list_at(pk_get(t->read.root, "param_shapes"), g), &n_pairs);
    bool good = (int)n_pairs == n;

    for (int i = 0; i < n && good; i++)
        good = pk_as_str(pair[2 * i]) &&
               strcmp(pk_as_str(pair[2 * i]), dsmoe_local_name(t, t->src->param[list[i]].name, t->old_ep)) == 0;
    return good;
}

/*
 * Returns true if the ranks of the source list the experts of group g of a class in the order of the model, which the
 * engine has with every number of ranks. The group begins with parameter `at` of each rank, and has n.
 */
static bool has_model_order(const struct dsmoe_target *t, const struct expert_class *c, int g, int at, int n)
{
    bool good = at + n <= c->n_old;

    if (good && t->sharded)
        return has_shapes_order(t, g, c->old + at, n);
    for (int i = 0; i < t->src->n_files && good; i++) {
        const struct ds_name name = ds_name_parse(t->src->file[i].name);
        const struct pt *pt = t->src->file[i].pt;
        const struct dsmoe_optim f = { pt, pt ? pk_get(pt_root(pt), "optimizer") : NULL, name.expert };

        good = name.kind != DS_EXPERT_OPTIM || !pt || name.expert >= t->old_ep ||
               has_whole_order(t, &f, g, c->old + (size_t)name.expert * (size_t)c->n_old + at, n);
    }
    return good;
}

/* ---- groups by size ---- */

static int64_t elems_of(const struct dsmoe_target *t, int param)
{
    return shape_count(t->src->param[param].ndim, t->src->param[param].shape);
}

/* Returns the number of parameters of the group that begins with list[0], if a group has at most `most` elements. */
static int cut_group(const struct dsmoe_target *t, const int *list, int n, int64_t most)
{
    int64_t sum = n ? elems_of(t, list[0]) : 0;
    int i = n > 0;

    for (; i < n && sum + elems_of(t, list[i]) <= most; i++)
        sum += elems_of(t, list[i]);
    return i;
}

/*
 * Find between which numbers max_group_size was, by the sizes of the groups of a class in the source. *high is
 * INT64_MAX if the class is one group.
 */
static void find_size_limits(const struct dsmoe_target *t, const struct expert_class *c, int64_t *low, int64_t *high)
{
    int at = 0;

    *low = 0;
    *high = INT64_MAX;
    for (int k = 0; k < c->n_groups; k++) {
        const int n = t->src->groups->group[c->first + k].n / t->old_ep;
        int64_t sum = 0, with_next;

        for (int i = at; i < at + n; i++)
            sum += elems_of(t, c->old[i]);
        at += n;
        with_next = at < c->n_old ? sum + elems_of(t, c->old[at]) : INT64_MAX;
        *low = sum > *low ? sum : *low;
        *high = with_next - 1 < *high && with_next < INT64_MAX ? with_next - 1 : *high;
    }
}

/*
 * Returns the number of elements by which the groups of a class are divided in the target. Returns -1 if the sizes in
 * the source leave several possibilities, or do not follow the rule.
 */
static int64_t resolve_group_limit(const struct dsmoe_target *t, const struct expert_class *c)
{
    int64_t low, high;

    find_size_limits(t, c, &low, &high);
    if (low <= GROUP_ELEMS_MAX && GROUP_ELEMS_MAX <= high)
        return GROUP_ELEMS_MAX;
    for (int at = 0; at < c->n_now && low <= high;) {
        const int n = cut_group(t, c->now + at, c->n_now - at, low);

        if (cut_group(t, c->now + at, c->n_now - at, high) != n)
            return -1;
        at += n;
    }
    return low <= high ? low : -1;
}

/* Add the groups of the target that a class becomes. */
static void add_class_groups(struct dsmoe_target *t, const struct expert_class *c, int64_t most, struct report *notes)
{
    const int before = t->n_groups;

    for (int at = 0, n; at < c->n_now || at == 0; at += n) {
        struct dsmoe_target_group *to = &t->group[t->n_groups++];

        n = cut_group(t, c->now + at, c->n_now - at, most);
        *to = (struct dsmoe_target_group){ .experts = true, .from = c->first, .n = n,
                                           .param = arena_alloc(t->arena, ((size_t)n * (size_t)t->n_ep + 1) *
                                                                              sizeof *to->param) };
        for (int ep = 0; ep < t->n_ep; ep++)
            memcpy(to->param + (size_t)ep * (size_t)n, c->now + (size_t)ep * (size_t)c->n_now + at,
                   (size_t)n * sizeof *to->param);
        if (n == 0)
            break;
    }
    if (t->n_groups - before != c->n_groups)
        report_add(notes, SEV_NOTE, "groups", t->src->path, ERR_NO_BYTE, NULL, "experts of the same settings form %d "
                   "instead of %d groups of the optimizer, each of at most %lld elements on a rank, as DeepSpeed "
                   "divides them", t->n_groups - before, c->n_groups, (long long)most);
}

/* ---- all groups ---- */

static int by_number(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;

    return (x > y) - (x < y);
}

/* Find the class that begins with group g of the source. */
static struct expert_class find_class(const struct dsmoe_target *t, int g)
{
    const struct optim_groups *from = t->src->groups;
    struct expert_class c = { .first = g };
    size_t room;

    do
        c.n += from->group[g + c.n_groups++].n;
    while (g + c.n_groups < from->n && pk_same_text(from->group[g].settings, from->group[g + c.n_groups].settings));
    room = ((size_t)c.n + 1) * sizeof *c.param;
    c.param = arena_alloc(t->arena, room);
    c.old = arena_alloc(t->arena, room);
    c.now = arena_alloc(t->arena, room);
    c.n = 0;
    for (int k = g; k < g + c.n_groups; k++)
        for (int i = 0; i < from->group[k].n; i++)
            c.param[c.n++] = source_param_index(t->src, source_param(t->src, from->group[k].param[i]));
    qsort(c.param, (size_t)c.n, sizeof *c.param, by_number);
    c.n_old = divide_class(t, &c, t->old_ep, c.old);
    c.n_now = divide_class(t, &c, t->n_ep, c.now);
    return c;
}

/* Make the groups of a class. Returns -1 with *e set if its experts cannot be divided. */
static int make_class_groups(struct dsmoe_target *t, const struct expert_class *c, struct report *notes, struct err *e)
{
    int64_t most;
    int at = 0;

    if (c->n_old < 0 || !ranks_are_equal(t, c->now, c->n_now, t->n_ep))
        return dsmoe_refuse_target(t, arena_fmt(t->arena, "group %d of the optimizer has not the same parameters of "
                                                "all experts", c->first), e);
    for (int g = c->first; g < c->first + c->n_groups; g++) {
        const int n = t->src->groups->group[g].n / t->old_ep;

        if (!has_model_order(t, c, g, at, n))
            return dsmoe_refuse_target(t, arena_fmt(t->arena, "group %d of the optimizer has experts in another order "
                                                    "than the model", g), e);
        at += n;
    }
    most = resolve_group_limit(t, c);
    if (most < 0)
        return dsmoe_refuse_target(t, arena_fmt(t->arena, "group %d of experts was made with another max_group_size "
                                                "than DeepSpeed's default, and how it is divided on other ranks is not "
                                                "known", c->first), e);
    add_class_groups(t, c, most, notes);
    return 0;
}

int dsmoe_make_groups(struct dsmoe_target *t, struct report *notes, struct err *e)
{
    const struct optim_groups *from = t->src->groups;

    t->group = arena_alloc(t->arena, ((size_t)from->n + (size_t)t->src->n_params + 1) * sizeof *t->group);
    for (int g = 0; g < from->n;) {
        struct dsmoe_target_group *to = &t->group[t->n_groups];
        struct expert_class c;

        if (dsmoe_is_expert_group(from->group[g].settings)) {
            c = find_class(t, g);
            if (make_class_groups(t, &c, notes, e) < 0)
                return -1;
            g += c.n_groups;
            continue;
        }
        *to = (struct dsmoe_target_group){ .from = g, .n = from->group[g].n, .param = arena_alloc(
            t->arena, ((size_t)from->group[g].n + 1) * sizeof *to->param) };
        for (int i = 0; i < to->n; i++)
            to->param[i] = source_param_index(t->src, source_param(t->src, from->group[g].param[i]));
        t->n_groups++;
        g++;
    }
    return 0;
}
