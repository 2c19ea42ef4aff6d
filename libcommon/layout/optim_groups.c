/*
 * optim_groups.c - groups from ZeRO's tables, torch.distributed's entries, the pipeline engine's shards, common.pt
 *
 * torch.distributed's groups come from its entries (dcp/dcp_groups.h). The pipeline engine has groups on each stage,
 * and some of the run's groups may have the same settings (the decaying parameters in two halves). Megatron-core's
 * torch_dist has only settings, and the factor of weight decay by which its groups are made.
 */
#include "libcommon/layout/optim_groups.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
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

/* ---- settings ---- */

/* Returns the group with these settings, which is created if there is none. `known` holds the settings as texts. */
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

/* ---- torch.distributed: groups are collected by dcp_groups.h ---- */

static int read_dcp(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    uint32_t n = 0;
    struct pk **group = pk_items(s->run.param_groups, &n);

    out->group = arena_alloc(a, ((size_t)n + 1) * sizeof *out->group);
    out->how = s->groups_by_settings ? OPTIM_GROUPS_BY_SETTINGS : OPTIM_GROUPS_LISTED;
    for (uint32_t i = 0; group && i < n; i++) {
        struct optim_group *g = &out->group[out->n++];
        uint32_t n_names = 0;
        struct pk **item = pk_items(pk_get(group[i], "params"), &n_names);

        *g = (struct optim_group){ group[i], 0, arena_alloc(a, ((size_t)n_names + 1) * sizeof *g->param) };
        for (uint32_t k = 0; item && k < n_names; k++) {
            const char *name = pk_as_str(item[k]);

            if (!name || !source_param(s, name)) {
                err_data(e, s->path, ERR_NO_BYTE, "param_groups list a parameter that does not exist: %s",
                         name ? name : "(no name)");
                return -1;
            }
            g->param[g->n++] = name;
        }
    }
    return 0;
}

/* ---- the pipeline engine ---- */

/* Returns the settings of the run's groups, without what refers to one stage's flat buffers. */
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

/* Add a stage's parameters of its group g, in its order. The last stage's copy of an embedding was added before. */
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

/* Combine groups of the run with the same settings, for example two halves of the decaying parameters. */
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
        group_of_settings(s, a, known, options[g], out);        /* keeps the run's order */
    for (int pp = 0; rc == 0 && n && pp < x.pp; pp++)
        for (int g = 0; g < x.stage[pp].n_groups; g++) {
            const struct ds_group *from = &x.stage[pp].group[g];

            add_stage_group(s, from, met, &out->group[group_of_settings(s, a, known, options[from->rule], out)]);
        }
    ds_shape_free(&x);
    return rc;
}

/* ---- Megatron-core ---- */

/* Returns the factor of weight decay, in either spelling, or -1 if the group has none. */
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
 * The files do not list the parameters of a group. The default rule is known: biases and vectors do not decay.
 * Groups made by other criteria as well (a rate of their own, experts) are not supported.
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

int optim_groups_adam_alone(const struct source *s, struct err *e)
{
    if (!s->run.more_states)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "its optimizer keeps %s, which only files of this number of ranks hold: masters "
             "alone go to another form (export-hf --dtype fp32), or weights (reshape --weights-only)",
             s->run.more_states);
    return -1;
}

int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    *out = (struct optim_groups){0};
    if (zero_order_root(s))
        return read_zero(s, a, out, e);
    if (s->layout->mp_rank_files)
        return read_pipeline(s, a, out, e);
    if (s->layout->value_entries)
        return read_dcp(s, a, out, e);
    if (s->layout->entries)
        read_megatron(s, a, out);
    return 0;
}

void optim_groups_report_rule(const struct source *s, const struct optim_groups *g, struct report *notes)
{
    if (g->how == OPTIM_GROUPS_BY_RULE && g->n > 1)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "has the settings of the optimizer's %d groups but not their parameters: by Megatron's standard "
                   "rule, biases and vectors are assigned to the group without weight decay", g->n);
}
