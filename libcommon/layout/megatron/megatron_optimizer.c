/*
 * megatron_optimizer.c - read the optimizer: settings of groups, steps, and the states of a plain optimizer
 *
 * A mixed-precision optimizer that is not distributed:
 *   {"optimizer": {"state": {0: {"step", "exp_avg", "exp_avg_sq"}, ...}, "param_groups": [{..., "params": [0, ...]}]},
 *    "fp32_from_fp16_params": [[master, ...], ...]}           a list for each group
 * An optimizer of fp32 weights is the inner dict alone. Group by group, the parameters are numbered in the model's
 * order: those with weight decay, then biases and vectors (megatron/core/optimizer, _get_param_groups). A distributed
 * optimizer has only param_groups here; its states are in distrib_optim.pt.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/megatron/megatron.h"
#include "libcommon/plan/tmap.h"

enum { GROUPS_MAX = 2 };

/* Returns the optimizer's dict of a rank. If the file has a list of one optimizer, returns this optimizer. */
static const struct pk *optimizer_of(const struct pt *pt)
{
    const struct pk *o = pt ? pk_get(pt_root(pt), "optimizer") : NULL;
    uint32_t n = 0;
    struct pk **item = o && !pk_is_none(o) ? pk_items(o, &n) : NULL;

    return pk_is_none(o) ? NULL : item && n == 1 ? item[0] : o;
}

/* Returns torch's dict, with the members state and param_groups. */
static const struct pk *torch_dict_of(const struct pk *optimizer)
{
    const struct pk *inner = pk_get(optimizer, "optimizer");

    return inner ? inner : optimizer;
}

/* ---- groups ---- */

/* Returns true if the group's parameters have weight decay. */
static bool group_decays(const struct pk *settings)
{
    const struct pk *mult = pk_get(settings, "wd_mult");
    double f = 1;

    pk_as_double(mult ? mult : pk_get(settings, "weight_decay"), &f);
    return f != 0;
}

static bool weight_decays(const struct param *p)
{
    return p->ndim != 1 && !str_ends(p->name, ".bias");
}

/* Returns the number of the group to which the weight belongs by Megatron-core's rule. */
static int group_of_weight(const struct megatron *x, const struct megatron_weight *w)
{
    const struct optim_groups *g = x->s->groups;

    return g->n == 2 && group_decays(g->group[0].settings) != weight_decays(&x->s->param[w->param]);
}

/* Compare the settings of a rank's groups with those of rank 0. If they differ, reports this and returns false. */
static bool compare_group_settings(const struct megatron *x, const struct pt *pt, struct pk *const *first, int n)
{
    int n_other;
    struct pk **other = optim_groups_copy_settings(pk_get(torch_dict_of(optimizer_of(pt)), "param_groups"),
                                                   x->s->arena, &n_other);
    bool same = n == n_other;

    for (int g = 0; same && g < n; g++)
        same = pk_same_text(first[g], other[g]);
    if (!same)
        report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "groups", pt_path(pt), ERR_NO_BYTE, NULL,
                   "the settings of its optimizer's groups differ from those of rank 0: it is of another save");
    return same || (x->o->accept_mismatch && n == n_other);
}

/* Record the groups with their parameters. Returns the number of groups. If that fails, reports this and returns 0. */
static int read_megatron_groups(const struct megatron *x)
{
    const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, 0, 0);
    struct source *s = x->s;
    struct optim_groups *g = arena_alloc(s->arena, sizeof *g);
    int n;
    struct pk **settings = optim_groups_copy_settings(pk_get(torch_dict_of(optimizer_of(pt)), "param_groups"),
                                                      s->arena, &n);

    if (n < 1 || n > GROUPS_MAX || (n == 2 && group_decays(settings[0]) == group_decays(settings[1]))) {
        megatron_refuse_optimizer(x, pt, arena_fmt(s->arena, "has %d groups of parameters, not one with and one "
                                                   "without weight decay", n));
        return 0;
    }
    for (int i = 0; i < x->tp * x->pp; i++)
        if (!compare_group_settings(x, megatron_pt(x, MEGATRON_MODEL, i / x->tp, i % x->tp), settings, n))
            return 0;
    *g = (struct optim_groups){ .n = n, .how = OPTIM_GROUPS_BY_RULE,
                                .group = arena_alloc(s->arena, (size_t)n * sizeof *g->group) };
    for (int i = 0; i < n; i++)
        g->group[i] = (struct optim_group){ settings[i], 0,
                                            arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof(char *)) };
    s->groups = g;
    for (int p = 0; p < x->pp; p++)
        for (int i = 0; i < x->stage[p].n; i++) {
            const struct megatron_weight *w = &x->stage[p].weight[i];
            struct optim_group *of = &g->group[group_of_weight(x, w)];

            if (!w->tied_copy)
                of->param[of->n++] = s->param[w->param].name;
        }
    return n;
}

/* ---- steps ---- */

/*
 * Record a step, which must be the same for all parameters and groups. If the step is another one or is not valid,
 * reports this. Returns false if the step cannot be accepted.
 */
static bool set_megatron_step(const struct megatron *x, const struct pt *pt, const char *where, double step)
{
    struct source *s = x->s;

    if (adam_step_is_valid(step) && (s->run.opt_step < 0 || s->run.opt_step == (int64_t)step)) {
        s->run.opt_step = (int64_t)step;
        return true;
    }
    if (!adam_step_is_valid(step))
        report_add(x->r, SEV_ERROR, "step", pt_path(pt), ERR_NO_BYTE, NULL, "%s is %g, which is no number of steps",
                   where, step);
    else
        report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "step", pt_path(pt), ERR_NO_BYTE, NULL,
                   "%s is at step %g, but other parameters are at step %lld: in one save all are at one step",
                   where, step, (long long)s->run.opt_step);
    return adam_step_is_valid(step) && x->o->accept_mismatch;
}

/*
 * Read the step v, which may be NULL. Returns false if there is none. If it is not a number, reports this and returns
 * false.
 */
static bool read_step_value(const struct megatron *x, const struct pt *pt, const struct pk *v, double *step)
{
    bool is_tensor;

    if (!v)
        return false;
    if (adam_read_number(x->s->files, pt, v, x->r, step, &is_tensor))
        return true;
    if (!is_tensor)
        report_add(x->r, SEV_ERROR, "step", pt_path(pt), ERR_NO_BYTE, NULL,
                   "a step of the optimizer is not one number");
    return false;
}

/*
 * Read the steps of a rank's groups. Optimizers other than torch's store their steps there. If the steps are not valid,
 * reports this and returns false.
 */
static bool read_group_steps(const struct megatron *x, const struct pt *pt)
{
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(torch_dict_of(optimizer_of(pt)), "param_groups"), &n);
    bool good = true;

    for (uint32_t g = 0; item && g < n && good; g++) {
        const struct pk *v = pk_get(item[g], "step");
        double step;

        if (v && read_step_value(x, pt, v, &step))
            good = set_megatron_step(x, pt, "the step of a group", step);
    }
    return good;
}

/* ---- states of a plain optimizer ---- */

/* The optimizer's tensors of one weight on one tensor rank. */
struct weight_states {
    const struct pk *master, *state;
};

/* A plain optimizer of one rank, while parameters are being assigned to its states. */
struct plain_rank {
    const struct pt *pt;
    const struct pk *state;             /* torch's dict of states by number */
    struct pk **number[GROUPS_MAX], **master[GROUPS_MAX];
    uint32_t n_numbers[GROUPS_MAX], n_masters[GROUPS_MAX];
    uint32_t at_number[GROUPS_MAX], at_master[GROUPS_MAX];
};

/* Read the numbers and the masters that the groups list. Returns the reason if they have another form. */
static const char *begin_plain_rank(const struct pt *pt, int n_groups, struct plain_rank *k)
{
    const struct pk *optimizer = optimizer_of(pt), *masters = pk_get(optimizer, "fp32_from_fp16_params");
    uint32_t n = 0, n_lists = 0;
    struct pk **group = pk_items(pk_get(torch_dict_of(optimizer), "param_groups"), &n);
    struct pk **list = masters ? pk_items(masters, &n_lists) : NULL;

    *k = (struct plain_rank){ .pt = pt, .state = pk_get(torch_dict_of(optimizer), "state") };
    if (!group || n != (uint32_t)n_groups || !k->state)
        return "the optimizer is not one of Megatron-core's plain optimizers";
    if (masters && n_lists != n)
        return "has another number of lists of fp32 masters than groups";
    for (int g = 0; g < n_groups; g++) {
        k->number[g] = pk_items(pk_get(group[g], "params"), &k->n_numbers[g]);
        if (list)
            k->master[g] = pk_items(list[g], &k->n_masters[g]);
        if (!k->number[g] || (list && !k->master[g]))
            return "a group has no list of parameters";
    }
    return NULL;
}

/* Returns the state dict with this number, or NULL. */
static const struct pk *state_by_number(const struct pk *states, const struct pk *number)
{
    int64_t want, key;
    uint32_t n = 0;
    struct pk **pair = pk_pairs(states, &n);

    if (!pk_as_int(number, &want))
        return NULL;
    /* numbers usually are positions */
    if (want >= 0 && want < (int64_t)n && pk_as_int(pair[2 * want], &key) && key == want)
        return pair[2 * want + 1];
    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_int(pair[2 * i], &key) && key == want)
            return pair[2 * i + 1];
    return NULL;
}

/* Find the next tensors of group g that fit weight w of tensor rank t. Returns the reason if there are none. */
static const char *find_rank_states(const struct megatron *x, struct plain_rank *k, int g,
                                      const struct megatron_weight *w, int t, struct weight_states *out)
{
    const struct pt_tensor *part = &w->part[t];
    const bool is_fp32 = part->dtype == DTYPE_F32;
    struct pt_tensor m;

    *out = (struct weight_states){0};
    if (k->at_number[g] >= k->n_numbers[g])
        return "the optimizer has fewer parameters than the model";
    out->state = state_by_number(k->state, k->number[g][k->at_number[g]++]);
    if (is_fp32 || !k->master[g])
        return NULL;
    if (k->at_master[g] >= k->n_masters[g])
        return "the optimizer has fewer fp32 masters than the model has parameters";
    out->master = k->master[g][k->at_master[g]++];
    if (!pt_tensor(k->pt, out->master, &m) || !shape_equal(m.ndim, m.shape, part->ndim, part->shape))
        return arena_fmt(x->s->arena, "the fp32 master that is in the place of %s has another shape",
                         x->s->param[w->param].name);
    return NULL;
}

/*
 * Join one tensor from all tensor ranks, v[t], and store it as a state of the weight. Returns the reason if that fails.
 */
static const char *join_state(const struct megatron *x, const struct megatron_weight *w, struct plain_rank *const *k,
                              const struct pk *const *v, enum state st)
{
    struct pt_tensor *part = arena_alloc(x->s->arena, (size_t)x->tp * sizeof *part);
    int64_t shape[TENSOR_MAX_DIM];
    const char *why = NULL;
    struct tmap *map;

    for (int t = 0; t < x->tp; t++)
        if (!pt_tensor(k[t]->pt, v[t], &part[t]) ||
            !shape_equal(part[t].ndim, part[t].shape, w->part[t].ndim, w->part[t].shape))
            return arena_fmt(x->s->arena, "the state %s that is in the place of %s has another shape", state_name(st),
                             x->s->param[w->param].name);
    map = megatron_join(x, w->cut, part, shape, &why);
    if (map)
        megatron_set_state(x, w, st, map);
    return why;
}

/* Returns a reason if a weight has other states than Adam's. */
static const char *refuse_other_states(const struct megatron *x, const struct pk *state)
{
    static const char *const known[] = { "step", "exp_avg", "exp_avg_sq" };
    uint32_t n = 0;
    struct pk **pair = pk_pairs(state, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        bool is_known = false;

        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            is_known |= key && strcmp(key, known[k]) == 0;
        if (!is_known)
            return arena_fmt(x->s->arena, "the optimizer has states other than Adam's (%s)", key ? key : "no name");
    }
    return NULL;
}

/*
 * Read the optimizer states of one weight from all tensor ranks, and store them in its parameter. Returns NULL on
 * success. If the states of the ranks contradict each other or the weight, returns the reason.
 */
static const char *read_weight_states(const struct megatron *x, struct plain_rank *const *k, int g,
                                      const struct megatron_weight *w)
{
    struct weight_states *found = xcalloc((size_t)x->tp, sizeof *found);
    const struct pk **v = xcalloc((size_t)x->tp, sizeof *v);
    const char *why = NULL;

    for (int t = 0; t < x->tp && !why; t++) {
        double step;

        why = find_rank_states(x, k[t], g, w, t, &found[t]);
        if (!why && !found[t].state != !found[0].state)
            why = "tensor ranks have states of different parameters";
        if (!why)
            why = refuse_other_states(x, found[t].state);
        if (!why && read_step_value(x, k[t]->pt, pk_get(found[t].state, "step"), &step) &&
            !set_megatron_step(x, k[t]->pt, "the step of a parameter", step))
            why = "the steps of parameters differ";
        adam_check_step_there(found[t].state, pk_get(torch_dict_of(optimizer_of(k[t]->pt)), "param_groups"),
                              pt_path(k[t]->pt), x->r);
        x->s->run.step_in_state = x->s->run.step_is_tensor =
            x->s->run.step_in_state || pk_get(found[t].state, "step") != NULL;
        v[t] = found[t].master;
    }
    if (!why && found[0].master)
        why = join_state(x, w, k, v, STATE_FP32);
    for (int m = 0; m < 2 && !why && found[0].state; m++) {
        for (int t = 0; t < x->tp; t++)
            v[t] = pk_get(found[t].state, m ? "exp_avg_sq" : "exp_avg");
        for (int t = 1; t < x->tp && !why; t++)
            if (!v[t] != !v[0])
                why = "tensor ranks have different states of a parameter";
        if (!why && v[0])
            why = join_state(x, w, k, v, m ? STATE_EXP_AVG_SQ : STATE_EXP_AVG);
    }
    free(v);
    free(found);
    return why;
}

/* Read the states of one stage. If the states cannot be assigned to weights, reports this and returns false. */
static bool read_plain_stage(const struct megatron *x, int stage, int n_groups)
{
    struct plain_rank *rank = xcalloc((size_t)x->tp, sizeof *rank), **k = xcalloc((size_t)x->tp, sizeof *k);
    const struct megatron_stage *st = &x->stage[stage];
    const char *why = NULL;

    for (int t = 0; t < x->tp && !why; t++) {
        k[t] = &rank[t];
        why = begin_plain_rank(megatron_pt(x, MEGATRON_MODEL, stage, t), n_groups, k[t]);
    }
    for (int i = 0; i < st->n && !why; i++)
        why = read_weight_states(x, k, group_of_weight(x, &st->weight[i]), &st->weight[i]);
    for (int t = 0; t < x->tp && !why; t++)
        for (int g = 0; g < n_groups && !why; g++)
            if (rank[t].at_number[g] != rank[t].n_numbers[g] || rank[t].at_master[g] != rank[t].n_masters[g])
                why = "the optimizer has more parameters than the model";
    free(k);
    free(rank);
    return why ? megatron_refuse_optimizer(x, megatron_pt(x, MEGATRON_MODEL, stage, 0), why) : true;
}

/* ---- all of it ---- */

/* Returns true if files distrib_optim.pt are there. */
static bool has_distributed_files(const struct megatron *x)
{
    for (int i = 0; i < x->tp * x->pp; i++)
        if (x->file[MEGATRON_DISTRIBUTED][i] >= 0)
            return true;
    return false;
}

/*
 * Add those values of the optimizer that are not states to the values of the source: settings of groups, a loss scale.
 */
static void add_optimizer_values(const struct megatron *x, const struct pt *pt)
{
    static const char *const keys[] = { "param_groups", "grad_scaler" };
    static const char *const names[] = { MEGATRON_GROUPS, "optimizer.grad_scaler" };
    struct source *s = x->s;

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const struct pk *v = pk_get(i ? optimizer_of(pt) : torch_dict_of(optimizer_of(pt)), keys[i]);

        if (v)
            s->value[s->n_values++] = (struct source_value){ .name = names[i], .tree = v, .pt = pt };
    }
}

bool megatron_read_optimizer(const struct megatron *x)
{
    const struct pt *pt = megatron_pt(x, MEGATRON_MODEL, 0, 0);
    const bool distributed = has_distributed_files(x);
    bool good = true;
    int n_groups;

    for (int i = 0; i < x->tp * x->pp; i++)
        if (!megatron_pt(x, MEGATRON_MODEL, i / x->tp, i % x->tp) || x->s->n_unread)
            return false;               /* has been reported */
    for (int i = 0; i < x->tp * x->pp; i++) {
        const struct pt *other = megatron_pt(x, MEGATRON_MODEL, i / x->tp, i % x->tp);
        uint32_t n = 0;

        if (!optimizer_of(other) != !optimizer_of(pt))
            return megatron_refuse_optimizer(x, other, "some ranks have an optimizer, others have none");
        if (optimizer_of(other) && pk_items(optimizer_of(other), &n))
            return megatron_refuse_optimizer(x, other, arena_fmt(x->s->arena, "has a list of %u optimizers, and only "
                                                                 "one can be read", n));
    }
    if (!optimizer_of(pt)) {
        report_add(x->r, SEV_WARNING, "no_optimizer", x->s->path, ERR_NO_BYTE, NULL,
                   "no optimizer states here: weights only");
        return false;
    }
    if (!pk_get(torch_dict_of(optimizer_of(pt)), "param_groups"))
        return megatron_refuse_optimizer(x, pt, "the optimizer has no param_groups");
    if (!distributed && pk_int_or(pk_get(x->s->run.args, "use_distributed_optimizer"), 0)) {
        report_add(x->r, SEV_ERROR, "missing_file", x->s->path, ERR_NO_BYTE, NULL,
                   "no mp_rank_* folder has distrib_optim.pt, but args.use_distributed_optimizer is true");
        return false;
    }
    add_optimizer_values(x, pt);
    n_groups = read_megatron_groups(x);
    for (int i = 0; i < x->tp * x->pp && n_groups && good; i++)
        good = read_group_steps(x, megatron_pt(x, MEGATRON_MODEL, i / x->tp, i % x->tp));
    for (int p = 0; p < x->pp && n_groups && good; p++)
        good = distributed ? megatron_read_buffers(x, p) : read_plain_stage(x, p, n_groups);
    if (n_groups && good && x->s->run.opt_step < 0)
        optim_groups_check_step_there(x->s, x->r);
    return n_groups && good;
}
