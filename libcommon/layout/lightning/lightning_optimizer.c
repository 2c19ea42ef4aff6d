/*
 * lightning_optimizer.c - read the optimizer of a checkpoint of Lightning: states by number, settings, steps
 *
 *   [{"state": {0: {"step": tensor, "exp_avg": tensor, ...}, ...}, "param_groups": [{"lr": ..., "params": [0, ...]}]}]
 *
 * Numbers run on over the groups, and in a group they have the order of the model. With one group, number i is tensor i
 * of the model. With two groups, one must have all matrices and the other one, without weight decay, all vectors.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/lightning/lightning.h"

struct lightning_optimizer {
    struct lightning *x;
    const struct pk *root;              /* {state, param_groups} */
    int n;                              /* how many parameters the groups number */
    int *tensor;                        /* [n]: index in x->tensor */
    int *group;                         /* [n] */
    const struct pk **state;            /* [n]: the dict of states, or NULL */
    struct names *more;                 /* names of states other than Adam's */
    struct strbuf more_text;
};

static const char *name_of(const struct lightning_optimizer *p, int number)
{
    return p->x->tensor[p->tensor[number]].name;
}

static bool refuse_states(const struct lightning_optimizer *p, const char *why)
{
    report_add(p->x->r, SEV_ERROR, "optimizer", p->x->path, ERR_NO_BYTE, NULL,
               "%s: which states belong to which parameters is not known; the weights alone can be converted "
               "(--weights-only)", why);
    return false;
}

/* ---- numbers ---- */

/*
 * Count the numbers in the groups, which must be 0, 1, 2 and so on. If these are not, reports this and returns false.
 */
static bool count_numbers(struct lightning_optimizer *p, struct pk *const *group, uint32_t n_groups)
{
    const int n_tensors = p->x->n_tensors;

    for (uint32_t g = 0; g < n_groups; g++) {
        uint32_t n = 0;
        struct pk **item = pk_items(pk_get(group[g], "params"), &n);

        for (uint32_t i = 0; i < n; i++) {
            int64_t number = -1;

            if (p->n == n_tensors || !pk_as_int(item[i], &number) || number != p->n)
                return refuse_states(p, p->n == n_tensors ? "the optimizer's groups number more parameters than the "
                                                            "model has" : "the groups do not number the parameters "
                                                                          "one after the other");
            p->group[p->n++] = (int)g;
        }
    }
    if (p->n < n_tensors)
        return refuse_states(p, arena_fmt(p->x->s->arena, "the optimizer's groups number %d parameters, and the model "
                                                          "has %d tensors", p->n, n_tensors));
    return true;
}

static bool is_without_decay(const struct pk *group)
{
    double decay = -1;

    return optim_settings_number(group, "weight_decay", &decay) && decay == 0;
}

/*
 * Assign the optimizer's numbers to the tensors, group by group. If that is not possible, reports this and returns
 * false.
 */
static bool assign_numbers(struct lightning_optimizer *p, struct pk *const *group, uint32_t n_groups)
{
    const struct lightning *x = p->x;
    int number = 0;

    if (n_groups == 2 && is_without_decay(group[0]) == is_without_decay(group[1]))
        return refuse_states(p, "two groups, and not exactly one of them is without weight decay");
    if (n_groups != 1 && n_groups != 2)
        return refuse_states(p, "more than two groups of parameters");
    for (uint32_t g = 0; g < n_groups; g++)
        for (int i = 0; i < x->n_tensors; i++) {
            if (n_groups == 2 && (x->tensor[i].ndim < 2) != is_without_decay(group[g]))
                continue;
            if (p->group[number] != (int)g)
                return refuse_states(p, "the group without weight decay has not all vectors and no other parameters");
            p->tensor[number++] = i;
        }
    return true;
}

/* Read the settings of the groups. If a group's parameters are not known, reports this and returns false. */
static bool read_lightning_groups(struct lightning_optimizer *p)
{
    struct source *s = p->x->s;
    const struct pk *list = pk_get(p->root, "param_groups");
    struct optim_groups *to = arena_alloc(s->arena, sizeof *to);
    uint32_t n_groups = 0;
    struct pk **group = pk_items(list, &n_groups);
    struct pk **settings;
    int n = 0;

    if (!group || !pk_get(p->root, "state"))
        return refuse_states(p, "optimizer_states is no state_dict of torch's optimizers");
    if (!count_numbers(p, group, n_groups) || !assign_numbers(p, group, n_groups))
        return false;
    settings = optim_groups_copy_settings(list, s->arena, &n);
    if (n != (int)n_groups)
        return refuse_states(p, "param_groups is no list of dicts");
    to->group = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *to->group);
    to->n = n;
    to->how = OPTIM_GROUPS_LISTED;
    for (int g = 0; g < n; g++)
        to->group[g] = (struct optim_group){ .settings = settings[g], .param =
                                             arena_alloc(s->arena, ((size_t)p->n + 1) * sizeof *to->group->param) };
    for (int i = 0; i < p->n; i++) {
        struct optim_group *g = &to->group[p->group[i]];

        g->param[g->n++] = name_of(p, i);
    }
    s->groups = to;
    return true;
}

/* ---- states ---- */

/* List the dicts of states, one per parameter. If a dict belongs to no parameter, reports this and returns false. */
static bool list_states(struct lightning_optimizer *p)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(p->root, "state"), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        int64_t number = -1;

        if (!pk_as_int(pair[2 * i], &number) || number < 0 || number >= p->n)
            return refuse_states(p, "there are states of a parameter that no group numbers");
        p->state[number] = pair[2 * i + 1];
    }
    return true;
}

/*
 * Returns true if a state has the shape of its parameter. Otherwise, or if the state is not a tensor, reports this and
 * returns false.
 */
static bool check_state_shape(const struct lightning_optimizer *p, int number, const char *key,
                              const struct pt_tensor *t)
{
    const struct lightning_tensor *of = &p->x->tensor[p->tensor[number]];
    const bool same = shape_equal(of->ndim, of->shape, t->ndim, t->shape);
    char mine[SHAPE_TEXT], theirs[SHAPE_TEXT];

    if (!same)
        report_add(p->x->r, SEV_ERROR, "optimizer", p->x->path, ERR_NO_BYTE, of->name,
                   "its %s has the shape %s, and the parameter %s: the states belong to other parameters", key,
                   shape_text(t->ndim, t->shape, mine), shape_text(of->ndim, of->shape, theirs));
    return same;
}

/* Store a state that is a tensor. */
static void set_lightning_state(struct lightning_optimizer *p, int number, const char *key, const struct pt_tensor *t)
{
    struct lightning *x = p->x;
    struct source *s = x->s;
    const bool first = strcmp(key, "exp_avg") == 0, second = strcmp(key, "exp_avg_sq") == 0;
    struct tmap *map = lightning_map(x, t);
    struct source_value v = { .map = map, .ndim = t->ndim,
                              .name = arena_fmt(s->arena, "optim.state.%s.%s", name_of(p, number), key) };

    if (!map) {
        source_add_unread(s, x->o, x->r, (struct source_spot){ x->path, ERR_NO_BYTE }, v.name,
                          "its elements are scattered over its storage");
        return;
    }
    if (first || second) {
        if (check_state_shape(p, number, key, t))
            source_param(s, name_of(p, number))->state[first ? STATE_EXP_AVG : STATE_EXP_AVG_SQ] = map;
        return;
    }
    if (strcmp(key, "step") != 0 && names_find(p->more, key) < 0) {
        names_add(p->more, arena_fmt(s->arena, "%s", key), 0);
        strbuf_addf(&p->more_text, "%s%s", p->more_text.len ? ", " : "", key);
    }
    memcpy(v.shape, t->shape, sizeof v.shape);
    lightning_add_value(x, &v);
}

static void read_states_of(struct lightning_optimizer *p, int number)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(p->state[number], &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        struct pt_tensor t;

        if (key && pt_tensor(p->x->pt, pair[2 * i + 1], &t))
            set_lightning_state(p, number, key, &t);
        else if (key && pk_is_plain(pair[2 * i + 1]) && !pk_is_none(pair[2 * i + 1]))
            lightning_add_value(p->x, &(struct source_value){
                .name = arena_fmt(p->x->s->arena, "optim.state.%s.%s", name_of(p, number), key),
                .tree = pair[2 * i + 1], .pt = p->x->pt });
        else
            source_add_unread(p->x->s, p->x->o, p->x->r, (struct source_spot){ p->x->path, ERR_NO_BYTE },
                              arena_fmt(p->x->s->arena, "optim.state.%s.%s", name_of(p, number), key ? key : "?"),
                              "it is neither a tensor that can be read nor a plain value");
    }
}

/*
 * Report each parameter that lacks one of Adam's states although another parameter has this state. Parameters without
 * any state are not reported.
 */
static void check_states_alike(const struct lightning_optimizer *p)
{
    static const char *const keys[] = { "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq" };

    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        const char *has[64] = { NULL };    /* of each group: a parameter that has it */

        for (int i = 0; i < p->n; i++)
            if (p->state[i] && pk_get(p->state[i], keys[k]))
                has[p->group[i] & 63] = name_of(p, i);
        for (int i = 0; i < p->n; i++)
            if (p->state[i] && !pk_get(p->state[i], keys[k]) && has[p->group[i] & 63])
                report_add(p->x->r, SEV_ERROR, "optimizer", p->x->path, ERR_NO_BYTE, name_of(p, i),
                           "has no state %s, which %s has", keys[k], has[p->group[i] & 63]);
    }
}

/* ---- steps ---- */

/*
 * Read the step of a parameter. Returns false if there is none. If it is not a number of steps, reports this and
 * returns false.
 */
static bool read_lightning_step(const struct lightning_optimizer *p, int of, double *step, bool *is_tensor)
{
    const struct pk *v = p->state[of] ? pk_get(p->state[of], "step") : NULL;

    *is_tensor = false;
    if (!v)
        return false;
    if (!adam_read_number(p->x->s->files, p->x->pt, v, p->x->r, step, is_tensor)) {
        if (!*is_tensor)
            report_add(p->x->r, SEV_ERROR, "step", p->x->path, ERR_NO_BYTE, name_of(p, of),
                       "has a step that is not one number");
        return false;
    }
    if (adam_step_is_valid(*step))
        return true;
    report_add(p->x->r, SEV_ERROR, "step", p->x->path, ERR_NO_BYTE, name_of(p, of),
               "has the step %g, which is no number of steps", *step);
    return false;
}

/* Set run.opt_step to the step that all parameters share, and compare it with global_step. */
static void find_lightning_step(const struct lightning_optimizer *p)
{
    struct run_state *run = &p->x->s->run;
    double step, shared = -1;
    bool tensor = false, is_tensor;
    int first = -1;

    for (int i = 0; i < p->n; i++) {
        if (!read_lightning_step(p, i, &step, &is_tensor))
            continue;
        if (first >= 0 && step != shared) {
            report_add(p->x->r, SEV_WARNING, "step", p->x->path, ERR_NO_BYTE, name_of(p, i),
                       "has the step %g, and %s %g", step, name_of(p, first), shared);
            return;
        }
        first = i;
        shared = step;
        tensor = is_tensor;
    }
    if (first < 0) {
        optim_groups_check_step_there(p->x->s, p->x->r);
        return;
    }
    run->opt_step = (int64_t)shared;
    run->step_in_state = true;
    run->step_is_tensor = tensor;
    if (run->iteration >= 0 && run->opt_step > run->iteration)
        report_add(p->x->r, SEV_WARNING, "counters", p->x->path, ERR_NO_BYTE, NULL,
                   "global_step is %lld, but the optimizer has made %lld steps", (long long)run->iteration,
                   (long long)run->opt_step);
}

void lightning_read_optimizer(struct lightning *x)
{
    uint32_t n = 0;
    struct pk **item = pk_items(pk_get(pt_root(x->pt), "optimizer_states"), &n);
    struct lightning_optimizer p = { .x = x, .root = n ? item[0] : NULL, .more = names_new(x->s->arena) };
    const size_t room = (size_t)x->n_tensors + 1;
    int first = 0, lacking;

    if (n == 0) {
        report_add(x->r, SEV_WARNING, "no_optimizer", x->path, ERR_NO_BYTE, NULL,
                   "no optimizer states here: weights only");
        return;
    }
    if (n > 1) {
        refuse_states(&p, "the states of several optimizers");
        return;
    }
    p.tensor = xcalloc(room, sizeof *p.tensor);
    p.group = xcalloc(room, sizeof *p.group);
    p.state = xcalloc(room, sizeof *p.state);
    if (read_lightning_groups(&p) && list_states(&p)) {
        for (int i = 0; i < p.n; i++)
            read_states_of(&p, i);
        lacking = adam_count_stateless(p.state, p.n, &first);
        adam_report_no_state(x->r, x->path, lacking ? name_of(&p, first) : NULL, lacking, p.n, false);
        check_states_alike(&p);
        find_lightning_step(&p);
        if (p.more_text.len)
            x->s->run.more_states = arena_fmt(x->s->arena, "%s", p.more_text.buf);
    }
    strbuf_free(&p.more_text);
    free(p.tensor);
    free(p.group);
    free(p.state);
}
