/*
 * optim_groups.c - get the groups, which the opener recorded or the layout reads from its own tables
 */
#include "libcommon/ckpt/optim_groups.h"

#include <float.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"

int optim_groups_adam_alone(const struct source *s, struct err *e)
{
    if (!s->run.more_states)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "the optimizer stores %s, which cannot be converted to another number of ranks; "
                                      "export-hf --dtype fp32 writes the masters, reshape --weights-only the weights",
             s->run.more_states);
    return -1;
}

/* Check that the source has every parameter that the groups list. Returns -1 with ERR_DATA if not. */
static int check_params_there(const struct source *s, const struct optim_groups *groups, struct err *e)
{
    for (int g = 0; g < groups->n; g++)
        for (int i = 0; i < groups->group[g].n; i++)
            if (!source_param(s, groups->group[g].param[i])) {
                err_data(e, s->path, ERR_NO_BYTE, "param_groups list a parameter that does not exist: %s",
                         groups->group[g].param[i]);
                return -1;
            }
    return 0;
}

/* Copy the groups and their lists of parameters, so that the caller may change them. */
static void copy_groups(const struct optim_groups *from, struct arena *a, struct optim_groups *out)
{
    *out = *from;
    out->group = arena_alloc(a, ((size_t)from->n + 1) * sizeof *out->group);
    for (int g = 0; g < from->n; g++) {
        const struct optim_group *x = &from->group[g];

        out->group[g] = *x;
        out->group[g].param = arena_alloc(a, ((size_t)x->n + 1) * sizeof *x->param);
        if (x->n)
            memcpy(out->group[g].param, x->param, (size_t)x->n * sizeof *x->param);
    }
}

int optim_groups_read(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    *out = (struct optim_groups){0};
    if (s->groups && s->groups->how != OPTIM_GROUPS_UNLISTED) {
        copy_groups(s->groups, a, out);
        return check_params_there(s, out, e);
    }
    return s->read_groups ? s->read_groups(s, a, out, e) : 0;
}

const struct pk *optim_groups_settings(const struct source *s, int g)
{
    if (s->groups)
        return g < s->groups->n ? s->groups->group[g].settings : NULL;
    return adam_list_at(s->run.param_groups, g);
}

bool optim_settings_number(const struct pk *settings, const char *name, double *v)
{
    const struct pk *x = pk_get(settings, name);

    return x && pk_as_double(x, v);
}

bool optim_settings_betas(const struct pk *settings, double *beta1, double *beta2)
{
    uint32_t n = 0;
    struct pk **beta = pk_items(pk_get(settings, "betas"), &n);
    double b1, b2;

    if (!beta || n != 2 || !pk_as_double(beta[0], &b1) || !pk_as_double(beta[1], &b2))
        return false;
    *beta1 = b1;
    *beta2 = b2;
    return true;
}

/* Report the setting `name` of group g. */
static void report_setting(const struct source *s, int g, const char *name, double v, const char *range,
                           struct report *r)
{
    report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "groups", s->path, ERR_NO_BYTE, NULL,
               "the optimizer's group %d has %s %g, which must be %s", g, name, v, range);
}

void optim_groups_check_settings(const struct source *s, struct report *r)
{
    static const char *const not_negative[] = { "lr", "weight_decay", "eps", "momentum" };
    const struct pk *settings;

    for (int g = 0; (settings = optim_groups_settings(s, g)) != NULL; g++) {
        uint32_t n = 0;
        struct pk **beta = pk_items(pk_get(settings, "betas"), &n);
        double v;

        for (size_t i = 0; i < sizeof not_negative / sizeof *not_negative; i++)
            if (optim_settings_number(settings, not_negative[i], &v) && !(v >= 0 && v <= DBL_MAX))
                report_setting(s, g, not_negative[i], v, "a finite number of 0 or more", r);
        for (uint32_t i = 0; beta && i < n; i++)
            if (pk_as_double(beta[i], &v) && !(v >= 0 && v < 1))
                report_setting(s, g, "a beta of", v, "0 or more and less than 1", r);
    }
}

/* Returns true if the source has Adam's second moments, and states max_exp_avg_sq of none of them. */
static bool lacks_max_squares(const struct source *s)
{
    bool moments = false;

    for (int i = 0; i < s->n_params && !moments; i++)
        moments = s->param[i].state[STATE_EXP_AVG_SQ] != NULL;
    for (int i = 0; i < s->n_values; i++)
        if (strstr(s->value[i].name, "max_exp_avg_sq"))
            return false;
    return moments;
}

void optim_groups_check_amsgrad(const struct source *s, struct report *r)
{
    const struct pk *settings;
    int64_t on;

    for (int g = 0; (settings = optim_groups_settings(s, g)) != NULL; g++) {
        if (!pk_as_int(pk_get(settings, "amsgrad"), &on) || !on || !lacks_max_squares(s))
            continue;
        report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "groups", s->path, ERR_NO_BYTE, NULL,
                   "the optimizer's group %d has amsgrad, but no parameter has the state max_exp_avg_sq, without which "
                   "torch does not go on", g);
        return;
    }
}

void optim_groups_report_rule(const struct source *s, const struct optim_groups *g, struct report *notes)
{
    if (g->how == OPTIM_GROUPS_BY_RULE && g->n > 1)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "does not record the parameters of the %d groups of its optimizer; by Megatron's standard rule, "
                   "biases and vectors are assigned to the group without weight decay", g->n);
}

struct pk **optim_groups_copy_settings(const struct pk *list, struct arena *a, int *n)
{
    uint32_t n_groups = 0;
    struct pk **group = pk_items(list, &n_groups), **settings;

    *n = group ? (int)n_groups : 0;
    settings = arena_alloc(a, ((size_t)*n + 1) * sizeof *settings);
    for (int g = 0; g < *n; g++) {
        uint32_t pairs = 0;

        settings[g] = pk_pairs(group[g], &pairs) ? pk_copy(a, group[g]) : pk_dict(a);
        pk_remove(settings[g], "params");
    }
    return settings;
}

struct optim_group *optim_groups_of_settings(const struct source *s, struct arena *a, struct names *known,
                                             const struct pk *settings, struct optim_groups *out)
{
    struct strbuf text = {0};
    int g;

    pk_text(settings, &text);
    g = names_find(known, text.buf);
    if (g < 0) {
        g = out->n++;
        names_add(known, arena_strndup(a, text.buf, text.len), g);
        out->group[g] = (struct optim_group){ settings, 0,
                                              arena_alloc(a, ((size_t)s->n_params + 1) * sizeof(char *)) };
    }
    strbuf_free(&text);
    return &out->group[g];
}

struct optim_groups *optim_groups_by_decay(const struct source *s, int n)
{
    struct optim_groups *x = arena_alloc(s->arena, sizeof *x);
    int n_decay = 0, place = 0;

    *x = (struct optim_groups){ .n = n, .group = arena_alloc(s->arena, (size_t)n * sizeof *x->group) };
    memset(x->group, 0, (size_t)n * sizeof *x->group);
    for (int g = 0; g < n; g++)
        x->group[g].param = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof(char *));
    for (int i = 0; i < s->n_params; i++)
        n_decay += s->param[i].ndim == 2;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        /* parameters without weight decay (LayerNorms and biases) are vectors */
        struct optim_group *g = &x->group[p->ndim != 2 ? n - 1 : n == 3 && place >= n_decay / 2];

        g->param[g->n++] = p->name;
        place += p->ndim == 2;
    }
    return x;
}
