/*
 * optim_groups.c - out of ZeRO's tables, the entries of torch.distributed's, the pipeline engine's shards, common.pt
 *
 * torch.distributed keeps settings as values: param_groups.<i>.<option>, with the names under `params`; or, with
 * flatten_optimizer_state_dict, param_groups.<name>.<option> for each parameter, where those of one setting are a
 * group. The pipeline engine has the groups of each stage, where two may differ in nothing (the decaying parameters in
 * two halves). Megatron-core's torch_dist has settings alone, and by what a group was made: weight decay's factor.
 */
#include "libcommon/layout/optim_groups.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/adam_state.h"
#include "libcommon/layout/dcp/dcp_metadata.h"
#include "libcommon/layout/deepspeed/deepspeed_shape.h"
#include "libcommon/layout/zero/zero_order.h"

/* ---- ZeRO ---- */

static int read_zero(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct zero_shape x;

    if (zero_order_read(s, a, &x, e) < 0)
        return -1;
    out->n = x.n_groups;
    out->group = arena_alloc(a, (size_t)x.n_groups * sizeof *out->group + 1);
    for (int g = 0; g < x.n_groups; g++) {
        struct optim_group *to = &out->group[g];

        *to = (struct optim_group){ .options = adam_list_at(s->run.param_groups, g),
                                    .param = arena_alloc(a, ((size_t)x.group[g].n + 1) * sizeof *to->param) };
        for (; to->n < x.group[g].n; to->n++)
            to->param[to->n] = x.group[g].slot[to->n].name;
    }
    return 0;
}

/* ---- settings by name ---- */

/* The groups being read: settings are gathered under a key each, "0" or a parameter's name. */
struct gathering {
    const struct source *s;
    struct arena *a;
    struct names *key;
    int n;
    const char **name;
    struct pk **options;
};

static struct gathering gathering_new(const struct source *s, struct arena *a, int most)
{
    const size_t room = (size_t)most + 1;

    return (struct gathering){
        .s = s, .a = a, .key = names_new(a), .name = arena_alloc(a, room * sizeof(char *)),
        .options = arena_alloc(a, room * sizeof(struct pk *)),
    };
}

static void set_options(struct gathering *d, const char *key, struct pk *options)
{
    names_add(d->key, key, d->n);
    d->name[d->n] = key;
    d->options[d->n++] = options;
}

/* The group of these settings, a new one if there is none; `known` has their texts. */
static int group_of_settings(const struct source *s, struct arena *a, struct names *known, struct pk *options,
                             struct optim_groups *out)
{
    struct strbuf text = {0};
    int g;

    pk_text(options, &text);
    g = names_find(known, text.buf);
    if (g < 0) {
        g = out->n++;
        names_add(known, arena_strndup(a, text.buf, text.len), g);
        out->group[g] = (struct optim_group){ options, 0,
                                              arena_alloc(a, ((size_t)s->n_params + 1) * sizeof(char *)) };
    }
    strbuf_free(&text);
    return g;
}

/* Parameters of the same settings, in the order of the model's. */
static void gather(struct gathering *d, struct optim_groups *out)
{
    struct names *known = names_new(d->a);

    out->group = arena_alloc(d->a, ((size_t)d->n + 1) * sizeof *out->group);
    out->how = OPTIM_GROUPS_BY_SETTINGS;
    for (int i = 0; i < d->s->n_params; i++) {
        const char *name = d->s->param[i].name;
        int k = names_find(d->key, name);

        if (k >= 0) {
            struct optim_group *g = &out->group[group_of_settings(d->s, d->a, known, d->options[k], out)];

            g->param[g->n++] = name;
        }
    }
}

/* ---- torch.distributed ---- */

/* "0" and "lr" of ("optim", "param_groups", 0, "lr"); "w.weight" and "lr" of ("optim", "param_groups.w.weight.lr"). */
static bool split_name(struct arena *a, const struct dcp_entry *en, const char **key, const char **option)
{
    static const char word[] = "param_groups.";
    const char *last = en->n_path ? en->path[en->n_path - 1] : en->name, *from, *dot;

    if (en->n_path >= 3 && strcmp(en->path[en->n_path - 3], "param_groups") == 0) {
        *key = en->path[en->n_path - 2];
        *option = last;
        return true;
    }
    from = strstr(last, word);
    if (!from || (from != last && from[-1] != '.') || (en->n_path && from != last))
        return false;
    from += sizeof word - 1;
    dot = strrchr(from, '.');
    if (!dot || dot == from)
        return false;
    *key = arena_strndup(a, from, (size_t)(dot - from));
    *option = dot + 1;
    return true;
}

/* A setting that the optimizer kept as a tensor of one number ("lr" of a captured step); NULL: it is none. */
static struct pk *number_of(struct gathering *d, const struct tmap *m)
{
    struct err e = {0};
    char bytes[8];

    if (m->len != (uint64_t)dtype_size(m->dtype) || m->len > sizeof bytes || m->dtype > DTYPE_BF16 ||
        tmap_read(m, d->s->files, (struct tmap_range){ 0, 0, m->len }, bytes, &e) < 0)
        return NULL;
    return pk_float(d->a, dtype_value(m->dtype, bytes));
}

static void take_option(struct gathering *d, const struct dcp_entry *en)
{
    const char *key, *option;
    struct source_hit hit;
    struct pk *v = NULL;
    int i;

    if (!split_name(d->a, en, &key, &option) || !source_find(d->s, en->name, &hit) || !hit.value)
        return;
    if (hit.value->map)
        v = number_of(d, hit.value->map);
    else if (hit.value->tree && !hit.value->pt)
        v = pk_copy(d->a, hit.value->tree);
    if (!v)
        return;
    i = names_find(d->key, key);
    if (i < 0) {
        i = d->n;
        set_options(d, key, pk_dict(d->a));
    }
    pk_set_str(d->a, d->options[i], option, v);
}

static int take_params(struct gathering *d, struct optim_group *g, const struct pk *params, struct err *e)
{
    uint32_t n = 0;
    struct pk **item = pk_items(params, &n);

    g->param = arena_alloc(d->a, ((size_t)n + 1) * sizeof *g->param);
    for (uint32_t i = 0; item && i < n; i++) {
        const char *name = pk_as_str(item[i]);

        if (!name || !source_param(d->s, name)) {
            err_data(e, d->s->path, ERR_NO_BYTE, "param_groups list a parameter that is not there: %s",
                     name ? name : "(no name)");
            return -1;
        }
        g->param[g->n++] = name;
    }
    return 0;
}

static int read_dcp(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct gathering d = gathering_new(s, a, s->dcp->n);
    int at;

    for (int i = 0; i < s->dcp->n; i++)
        take_option(&d, &s->dcp->entry[i]);
    out->group = arena_alloc(a, ((size_t)d.n + 1) * sizeof *out->group);
    for (int i = 0; i < d.n; i++) {
        char *key = str_fmt("%d", i);

        at = names_find(d.key, key);
        free(key);
        if (at < 0 || !pk_get(d.options[at], "params"))
            break;
        out->group[i] = (struct optim_group){ .options = d.options[at] };
        if (take_params(&d, &out->group[i], pk_get(d.options[at], "params"), e) < 0)
            return -1;
        out->n++;
    }
    if (out->n == 0)
        gather(&d, out);
    return 0;
}

/* ---- the pipeline engine ---- */

/* Settings of the run's groups, without what they say of one stage's flat buffers. */
static struct pk **run_options(const struct source *s, struct arena *a, uint32_t *n)
{
    struct pk **group = pk_items(s->run.param_groups, n), **options;

    *n = group ? *n : 0;
    options = arena_alloc(a, ((size_t)*n + 1) * sizeof *options);
    for (uint32_t g = 0; g < *n; g++) {
        uint32_t pairs = 0;

        options[g] = pk_pairs(group[g], &pairs) ? pk_copy(a, group[g]) : pk_dict(a);
        pk_remove(options[g], "params");
    }
    return options;
}

/* A stage's parameters of its group g, in its order. The last stage's copy of an embedding was met before. */
static void add_stage_group(const struct source *s, const struct ds_group *from, struct names *met,
                            struct optim_group *to)
{
    for (int i = 0; i < from->n; i++) {
        const struct param *p = source_param(s, from->slice[i].name);

        if (!p || names_find(met, p->name) >= 0)
            continue;
        names_add(met, p->name, 0);
        to->param[to->n++] = p->name;
    }
}

/* Those of the run's groups that have the same settings become one: two halves of the decaying parameters, say. */
static int read_pipeline(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    struct names *met = names_new(a), *known = names_new(a);
    struct ds_shape x = {0};
    uint32_t n;
    struct pk **options = run_options(s, a, &n);
    int rc = n ? ds_shape_read(&x, s, e) : 0;

    if (rc == 0 && n && (int)n != x.n_groups) {
        err_data(e, s->path, ERR_NO_BYTE, "%u param_groups for %d optimizer groups", n, x.n_groups);
        rc = -1;
    }
    out->group = arena_alloc(a, ((size_t)n + 1) * sizeof *out->group);
    out->how = OPTIM_GROUPS_BY_SETTINGS;
    for (int g = 0; rc == 0 && g < (int)n; g++)
        group_of_settings(s, a, known, options[g], out);        /* in the run's order */
    for (int pp = 0; rc == 0 && n && pp < x.pp; pp++)
        for (int g = 0; g < x.stage[pp].n_groups; g++) {
            const struct ds_group *from = &x.stage[pp].group[g];

            add_stage_group(s, from, met, &out->group[group_of_settings(s, a, known, options[from->rule], out)]);
        }
    ds_shape_free(&x);
    return rc;
}

/* ---- Megatron-core ---- */

/* Weight decay's factor, in either spelling; -1: the group has none. */
static double decay_factor(const struct pk *group)
{
    const struct pk *v = pk_get(group, "wd_mult");
    double f = -1;

    pk_as_double(v ? v : pk_get(group, "pre_wd_mult"), &f);
    return f;
}

static bool are_factors(double a, double b)
{
    return (a == 0 && b == 1) || (a == 1 && b == 0);
}

/*
 * Who is in a group is nowhere said; what makes the groups by default is: biases and vectors do not decay. Groups that
 * were made by more than that (a rate of their own, experts) are not known.
 */
static void read_megatron(const struct source *s, struct arena *a, struct optim_groups *out)
{
    const size_t room = (size_t)s->n_params + 1;
    uint32_t n;
    struct pk **options = run_options(s, a, &n);

    if (n < 1 || n > 2 || (n == 2 && !are_factors(decay_factor(options[0]), decay_factor(options[1]))))
        return;
    out->group = arena_alloc(a, n * sizeof *out->group);
    out->how = OPTIM_GROUPS_BY_RULE;
    for (; out->n < (int)n; out->n++)
        out->group[out->n] = (struct optim_group){ options[out->n], 0, arena_alloc(a, room * sizeof(char *)) };
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        const bool decays = p->ndim != 1 && !str_ends(p->name, ".bias");
        struct optim_group *g = &out->group[n == 2 && decay_factor(options[0]) != decays];

        if (p->state[STATE_EXP_AVG])
            g->param[g->n++] = p->name;
    }
}

int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    *out = (struct optim_groups){0};
    if (zero_order_root(s))
        return read_zero(s, a, out, e);
    if (s->kind == LAYOUT_DCP)
        return read_dcp(s, a, out, e);
    if (s->kind == LAYOUT_TORCHDIST)
        read_megatron(s, a, out);
    return s->kind == LAYOUT_TORCHDIST || s->kind == LAYOUT_HF ? 0 : read_pipeline(s, a, out, e);
}

void optim_groups_tell_rule(const struct source *s, const struct optim_groups *g, struct report *notes)
{
    if (g->how == OPTIM_GROUPS_BY_RULE && g->n > 1)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "has the settings of the optimizer's %d groups and does not say which parameters they hold: by "
                   "Megatron's standard rule, biases and vectors are in the one that does not decay", g->n);
}
