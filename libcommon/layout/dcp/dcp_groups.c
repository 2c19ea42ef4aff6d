/*
 * dcp_groups.c - collect the options of the optimizers' groups. Each option has a key: the number of a group, or the
 * name of a parameter.
 */
#include "libcommon/layout/dcp/dcp_groups.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/unwrap.h"
#include "libcommon/format/pickle/pickle.h"
#include "libcommon/plan/tmap.h"

struct gathering {
    const struct dcp_naming *n;
    struct source *s;
    struct arena *a;
    struct names *key;
    int n_keys;
    const char **name;
    struct pk **options;
    struct optim_groups *groups;
};

/* Returns true if the entry belongs to an optimizer that trains the model. */
static bool is_own_optimizer_entry(const struct dcp_naming *n, const struct dcp_entry *en)
{
    for (int i = 0; en->kind != DCP_ENTRY_OTHER && i < n->n_own; i++)
        if (strcmp(n->own[i], en->optimizer) == 0)
            return true;
    return false;
}

/* ---- options ---- */

/*
 * Read the number in a tensor of one element. If r is a report, also check the CRC of the record. Returns true with the
 * number in *value. Returns false if the tensor is not a number, or, with a report, if the record is corrupt or cannot
 * be read.
 */
static bool read_number(const struct source *s, const struct tmap *m, bool holes, struct report *r, double *value)
{
    struct err e = {0};
    char bytes[8];

    if (m->len != (uint64_t)dtype_size(m->dtype) || m->len > sizeof bytes ||
        (!dtype_is_float(m->dtype) && m->dtype != DTYPE_I64 && m->dtype != DTYPE_I32))
        return false;
    if (tmap_read_checked(m, s->files, (struct tmap_range){ 0, 0, m->len }, bytes, &e) < 0) {
        if (holes)
            report_add_lost(r, NULL, &e);
        else
            report_add_err(r, "crc", &e);
        return false;
    }
    *value = dtype_value(m->dtype, bytes);
    return true;
}

/*
 * Returns the key of the group to which the entry belongs. If the model has several optimizers, the key includes the
 * optimizer's key, so that groups of different optimizers have different keys.
 */
static const char *option_group_key(struct gathering *d, const struct dcp_entry *en)
{
    return d->n->n_own == 1 ? en->of : arena_fmt(d->a, "%s%s", en->optimizer, en->of);
}

static void read_group_option(struct gathering *d, const struct dcp_entry *en, struct report *r)
{
    struct source_hit hit;
    struct pk *v = NULL;
    const char *key;
    double number;
    int i;

    if (!source_find(d->s, en->name, &hit) || !hit.value)
        return;
    if (hit.value->map)
        /* The optimizer stores a setting as a tensor, for example, if the step is captured in a CUDA graph. */
        v = dtype_is_float(hit.value->map->dtype) && read_number(d->s, hit.value->map, d->n->holes, r, &number)
          ? pk_float(d->a, number) : NULL;
    else if (hit.value->tree && !hit.value->pt)
        v = pk_copy(d->a, hit.value->tree);
    if (!v)
        return;
    key = option_group_key(d, en);
    i = names_find(d->key, key);
    if (i < 0) {
        i = d->n_keys++;
        names_add(d->key, key, i);
        d->name[i] = en->of;
        d->options[i] = pk_dict(d->a);
    }
    pk_set_str(d->a, d->options[i], en->what, v);
}

/* ---- groups ---- */

/* Returns the name that the source gives to the parameter v in a group's list. v may be a name or a number. */
static const char *listed_name(const struct gathering *d, const struct pk *v)
{
    const char *name = pk_as_str(v);
    int64_t i;

    if (name)
        return d->n->unwrapped ? unwrap_name(d->a, name) : name;
    return pk_as_int(v, &i) && i >= 0 && i < d->n->n_numbers ? d->n->by_number[i] : NULL;
}

/* Add a parameter to a group, unless it was frozen and omitted from the checkpoint. */
static void add_to_group(struct gathering *d, int group, const char *name)
{
    struct optim_group *g = &d->groups->group[group];
    struct param *p = source_param(d->s, name);

    if (d->n->omitted && names_find(d->n->omitted, name) >= 0)
        return;
    g->param[g->n++] = name;
    if (p)
        p->group = group;
}

static bool read_group_params(struct gathering *d, const char *optimizer, int number)
{
    char *key = str_fmt("%s%d", d->n->n_own == 1 ? "" : optimizer, number);
    const int i = names_find(d->key, key), group = d->groups->n;
    uint32_t n = 0;
    struct pk **item = i < 0 ? NULL : pk_items(pk_get(d->options[i], "params"), &n);

    free(key);
    if (!item)
        return false;
    d->groups->group[d->groups->n++] = (struct optim_group){ d->options[i], 0,
                                                             arena_alloc(d->a, ((size_t)n + 1) * sizeof(char *)) };
    for (uint32_t k = 0; k < n; k++)
        if (listed_name(d, item[k]))
            add_to_group(d, group, listed_name(d, item[k]));
    return true;
}

/*
 * Read the groups 0, 1, ... of each optimizer, if they list their parameters. The entries of a group may be in any
 * order.
 */
static void read_listed_groups(struct gathering *d)
{
    for (int k = 0; k < d->n->n_own; k++)
        for (int i = 0; read_group_params(d, d->n->own[k], i); i++)
            ;
}

/*
 * Make groups of the parameters that have the same settings. Groups and parameters are in the order of the model's
 * parameters.
 */
static void group_params_by_settings(struct gathering *d)
{
    struct names *known = names_new(d->a), *key = names_new(d->a);

    for (int i = 0; i < d->n_keys; i++)
        names_add(key, d->n->unwrapped ? unwrap_name(d->a, d->name[i]) : d->name[i], i);
    for (int i = 0; i < d->s->n_params; i++) {
        const int k = names_find(key, d->s->param[i].name);

        if (k >= 0)
            add_to_group(d, (int)(optim_groups_of_settings(d->s, d->a, known, d->options[k], d->groups) -
                                  d->groups->group), d->s->param[i].name);
    }
    if (d->groups->n)
        d->groups->how = OPTIM_GROUPS_BY_SETTINGS;
}

/* Report each parameter that two groups list, and each one that has moments but is in no group. */
static void check_groups(const struct gathering *d, struct report *r)
{
    struct names *first = names_new(d->a);

    for (int g = 0; g < d->groups->n; g++)
        for (int i = 0; i < d->groups->group[g].n; i++) {
            const char *name = d->groups->group[g].param[i];
            const int other = names_find(first, name);

            if (other >= 0)
                report_add(r, SEV_ERROR, "groups", d->n->path, ERR_NO_BYTE, name,
                           "is listed twice in the groups of the optimizer, in group %d and group %d", other, g);
            else
                names_add(first, name, g);
        }
    for (int i = 0; d->groups->n && i < d->s->n_params; i++) {
        const struct param *p = &d->s->param[i];

        if ((p->state[STATE_EXP_AVG] || p->state[STATE_EXP_AVG_SQ]) && names_find(first, p->name) < 0)
            report_add(r, SEV_WARNING, "groups", d->n->path, ERR_NO_BYTE, p->name,
                       "has moments of Adam, but none of the %d groups of the optimizer lists it", d->groups->n);
    }
}

/* ---- steps ---- */

int64_t dcp_read_step(const struct source *s, const struct source_value *v, bool holes, struct report *r)
{
    double step;

    if (v->map && v->map->len != (uint64_t)dtype_size(v->map->dtype)) {
        report_add(r, SEV_ERROR, "step", s->path, ERR_NO_BYTE, v->name, "has several elements, and a step has one");
        return -1;
    }
    if (v->tree && !pk_as_double(v->tree, &step)) {
        report_add(r, SEV_ERROR, "step", s->path, ERR_NO_BYTE, v->name, "is no number, but the step of the optimizer "
                                                                        "must be a whole number of 0 or more");
        return -1;
    }
    if (!v->tree && (!v->map || !read_number(s, v->map, holes, r, &step)))
        return -1;
    if (adam_step_is_valid(step))
        return (int64_t)step;
    report_add(r, SEV_ERROR, "step", s->path, ERR_NO_BYTE, v->name,
               "is %g, but the step of the optimizer must be a whole number of 0 or more", step);
    return -1;
}

/*
 * Warn if parameters have Adam's moments although neither these parameters nor the groups have a step. Conversions of
 * checkpoints without a step write such sets.
 */
static void check_step_listed(const struct dcp_naming *n, struct report *r)
{
    bool avg = false, sq = false;

    for (int i = 0; i < n->table->n; i++) {
        const struct dcp_entry *en = &n->table->entry[i];

        if ((en->kind == DCP_ENTRY_STATE || en->kind == DCP_ENTRY_OPTION) && strcmp(en->what, "step") == 0)
            return;
        if (en->kind == DCP_ENTRY_STATE && is_own_optimizer_entry(n, en)) {
            avg |= strcmp(en->what, "exp_avg") == 0;
            sq |= strcmp(en->what, "exp_avg_sq") == 0;
        }
    }
    if (avg && sq)
        report_add(r, SEV_WARNING, "step", n->path, ERR_NO_BYTE, NULL,
                   "has moments of Adam, but no step of the optimizer: a run that resumes counts from 0");
}

static void dcp_find_optimizer_step(const struct dcp_naming *n, struct report *r)
{
    const struct dcp_entry *first = NULL;
    struct source *s = n->s;
    bool tensor = false;
    int64_t step = -1;

    for (int i = 0; i < n->table->n; i++) {
        const struct dcp_entry *en = &n->table->entry[i];
        struct source_hit hit;
        int64_t one;

        if (en->kind != DCP_ENTRY_STATE || strcmp(en->what, "step") != 0 || !is_own_optimizer_entry(n, en))
            continue;
        one = source_find_entry(s, en->name, &hit) && hit.value ? dcp_read_step(s, hit.value, n->holes, r) : -1;
        if (one < 0)
            continue;
        if (first && one != step) {
            report_add(r, SEV_WARNING, "step", n->path, ERR_NO_BYTE, en->name,
                       "is %" PRId64 ", but %s is %" PRId64 "; all parameters must have the same step of the optimizer",
                       one,
                       first->name, step);
            return;
        }
        first = en;
        step = one;
        tensor = en->is_tensor;
    }
    s->run.opt_step = step;
    s->run.step_in_state = step >= 0;
    s->run.step_is_tensor = tensor;
}

void dcp_groups_read(const struct dcp_naming *n, struct report *r)
{
    const size_t room = (size_t)n->table->n + 1;
    struct gathering d = { .n = n, .s = n->s, .a = n->s->arena, .key = names_new(n->s->arena) };

    d.name = arena_alloc(d.a, room * sizeof *d.name);
    d.options = arena_alloc(d.a, room * sizeof *d.options);
    d.groups = arena_alloc(d.a, sizeof *d.groups);
    *d.groups = (struct optim_groups){ .group = arena_alloc(d.a, room * sizeof *d.groups->group) };
    for (int i = 0; i < n->table->n; i++)
        if (n->table->entry[i].kind == DCP_ENTRY_OPTION && is_own_optimizer_entry(n, &n->table->entry[i]))
            read_group_option(&d, &n->table->entry[i], r);
    read_listed_groups(&d);
    if (d.groups->n == 0)
        group_params_by_settings(&d);
    n->s->groups = d.groups;
    check_groups(&d, r);
    check_step_listed(n, r);
    dcp_find_optimizer_step(n, r);
}
