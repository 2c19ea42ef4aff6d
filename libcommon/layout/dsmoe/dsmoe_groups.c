/*
 * dsmoe_groups.c - groups, names and steps of the optimizer, which the readers of both forms of states share
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dsmoe/dsmoe.h"

bool dsmoe_refuse_optimizer(const struct dsmoe *x, const struct pt *pt, const char *why)
{
    report_add(x->r, SEV_ERROR, "optimizer", pt ? pt_path(pt) : x->s->path, ERR_NO_BYTE, NULL,
               "%s: which states belong to which parameters is not known; the weights alone can be converted "
               "(--weights-only)", why);
    return false;
}

const struct pk *dsmoe_torch_dict(const struct pk *tree)
{
    const struct pk *base = adam_base(tree);

    return base ? base : tree;
}

/* ---- groups ---- */

const struct pk *dsmoe_settings(const struct dsmoe_optim *f, int g)
{
    return adam_list_at(pk_get(dsmoe_torch_dict(f->tree), "param_groups"), g);
}

bool dsmoe_is_expert_group(const struct pk *settings)
{
    return pk_int_or(pk_get(settings, "moe"), 0) != 0;
}

int dsmoe_group_ranks(const struct pk *settings)
{
    static const char prefix[] = "ep_size_";
    const char *name = pk_as_str(pk_get(settings, "name"));
    const char *digits = name && str_starts(name, prefix) ? name + sizeof prefix - 1 : "";
    const size_t n = strspn(digits, "0123456789");

    return n > 0 && n < 7 && !digits[n] ? atoi(digits) : -1;
}

const char *dsmoe_global_name(const struct dsmoe *x, const char *name, int ep, int n_ep)
{
    const char *rest;
    int local = 0;
    const struct dsmoe_layer *layer = dsmoe_layer_of(x, name, &local, &rest);
    const int per_rank = layer && layer->n_experts % n_ep == 0 ? layer->n_experts / n_ep : 0;
    const char *all;
    int i;

    if (local >= per_rank)
        return NULL;
    all = arena_fmt(x->s->arena, "%s%d%s", layer->prefix, ep * per_rank + local, rest);
    i = names_find(x->known, all);
    return i < 0 ? NULL : x->s->param[i].name;
}

void dsmoe_new_groups(const struct dsmoe *x, const struct dsmoe_optim *f)
{
    const struct pk *list = pk_get(dsmoe_torch_dict(f->tree), "param_groups");
    struct optim_groups *g = arena_alloc(x->s->arena, sizeof *g);
    int n;
    struct pk **settings = optim_groups_copy_settings(list, x->s->arena, &n);

    *g = (struct optim_groups){ .n = n, .how = OPTIM_GROUPS_LISTED,
                                .group = arena_alloc(x->s->arena, ((size_t)n + 1) * sizeof *g->group) };
    for (int i = 0; i < n; i++)
        g->group[i] = (struct optim_group){
            settings[i], 0, arena_alloc(x->s->arena, ((size_t)x->s->n_params + 1) * sizeof(char *)) };
    x->s->groups = g;
}

void dsmoe_sort_group(const struct dsmoe *x, int g)
{
    struct optim_group *of = &x->s->groups->group[g];
    bool *has = xcalloc((size_t)x->s->n_params + 1, sizeof *has);
    int n = 0;

    for (int i = 0; i < of->n; i++)
        has[names_find(x->known, of->param[i])] = true;
    for (int i = 0; i < x->s->n_params; i++)
        if (has[i])
            of->param[n++] = x->s->param[i].name;
    of->n = n;
    free(has);
}

/* ---- states ---- */

void dsmoe_set_step(const struct dsmoe *x, const struct dsmoe_optim *f, const struct pk *state)
{
    const struct pk *v = pk_get(state, "step");
    struct run_state *run = &x->s->run;
    double step;
    bool is_tensor = false;
    const bool is_number = v && adam_read_number(x->s->files, f->pt, v, x->r, &step, &is_tensor);

    run->step_is_tensor |= is_tensor;
    if (!v)
        adam_check_step_there(state, pk_get(dsmoe_torch_dict(f->tree), "param_groups"), pt_path(f->pt), x->r);
    else if (!is_number && !is_tensor)
        report_add(x->r, SEV_ERROR, "optimizer", pt_path(f->pt), ERR_NO_BYTE, NULL, "a step is not one number");
    if (!is_number)
        return;
    run->step_in_state = true;
    if (!adam_step_is_valid(step))
        report_add(x->r, SEV_ERROR, "optimizer", pt_path(f->pt), ERR_NO_BYTE, NULL,
                   "a step is %g, which is no number of steps", step);
    else if (run->opt_step < 0)
        run->opt_step = (int64_t)step;
    else if (run->opt_step != (int64_t)step && !report_has(x->r, "mixed_saves", pt_path(f->pt), ERR_NO_BYTE))
        report_add(x->r, dsmoe_mismatch(x), "mixed_saves", pt_path(f->pt), ERR_NO_BYTE, NULL,
                   "optimizer step %.0f, other parameters or files have %lld: they are from different saves", step,
                   (long long)run->opt_step);
}

bool dsmoe_adam_alone(const struct dsmoe *x, const struct dsmoe_optim *f, const struct pk *state)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(state, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (!key || (strcmp(key, "step") != 0 && strcmp(key, "exp_avg") != 0 && strcmp(key, "exp_avg_sq") != 0))
            return dsmoe_refuse_optimizer(x, f->pt, arena_fmt(x->s->arena, "has states other than Adam's (%s)",
                                                              key ? key : "no name"));
    }
    return true;
}
