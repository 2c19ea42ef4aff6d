/*
 * dsmoe_whole.c - assign the states of a run without ZeRO
 *
 *   {"optimizer_state_dict": {"state": {0: {"step", "exp_avg", "exp_avg_sq"}, ...}, "param_groups": [...]},
 *    "fp32_groups": [[master, ...], ...]}                  a list for each group
 *
 * An optimizer of fp32 weights is the inner dict alone. The file of an expert-parallel rank has the states of all
 * parameters of the rank: those that are not of experts, which are equal on all ranks, in the order of the model, and
 * then those of its experts, layer by layer. The files have no names, so the order and the shapes are all there is. If
 * several groups have parameters that are not of experts, their order is not known.
 */
#include <stdlib.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dsmoe/dsmoe.h"

/* Where a file stores one state of a parameter. record is -1 if it does not. */
struct whole_copy {
    int record;
    enum dtype dtype;
    uint64_t at;
};

/* The optimizers of all ranks, which are being read. */
struct whole_reader {
    struct dsmoe *x;
    const struct dsmoe_optim *file;
    int n_files, n_ep;
    struct whole_copy *copy;            /* [(n_params * TRAINED_STATES) * n_files] */
    int *n_holders;                     /* [n_params]: number of files with the parameter */
    int n_with[TRAINED_STATES];         /* number of copies of each state in all files */
};

/* The parameters of a rank in the order of its optimizer. */
struct rank_params {
    int *param;                         /* [n]: index in s->param */
    int n, n_dense;                     /* the first n_dense are not of experts */
};

/* One parameter in the file of a rank. */
struct listed_param {
    int file, param;
    const struct pk *state, *master;    /* NULL if there is none */
};

static bool refuse_whole(const struct whole_reader *w, int file, const char *why)
{
    return dsmoe_refuse_optimizer(w->x, w->file[file].pt, why);
}

static struct whole_copy *copy_at(const struct whole_reader *w, int param, int state, int file)
{
    return &w->copy[((size_t)param * TRAINED_STATES + (size_t)state) * (size_t)w->n_files + (size_t)file];
}

/* ---- ranks and groups ---- */

/* Find the number of expert-parallel ranks. Returns false after a report if the groups contradict the files. */
static bool find_expert_ranks(struct whole_reader *w)
{
    const struct dsmoe *x = w->x;
    int n_dense = 0, g = 0;
    const struct pk *settings;

    w->n_ep = x->n_ranks;
    for (; (settings = dsmoe_settings(&w->file[0], g)) != NULL; g++) {
        const int stated = dsmoe_is_expert_group(settings) ? dsmoe_group_ranks(settings) : -1;
        uint32_t n = 0;

        if (!dsmoe_is_expert_group(settings))
            n_dense += pk_items(pk_get(settings, "params"), &n) && n > 0;
        if (stated < 0 || stated == x->n_ranks)
            continue;
        report_add(x->r, SEV_ERROR, stated > x->n_ranks ? "missing_file" : "degrees", x->s->path, ERR_NO_BYTE, NULL,
                   "a group of the optimizer is of %d expert-parallel ranks (ep_size_%d), but there are the files "
                   "expp_rank_* of %d", stated, stated, x->n_ranks);
        return false;
    }
    if (n_dense > 1)
        return refuse_whole(w, 0, arena_fmt(x->s->arena, "%d groups have parameters that are not of experts, and the "
                                            "files of ZeRO-0 have no names", n_dense));
    for (int m = 0; m < x->n_layers; m++)
        if (x->layer[m].n_experts % w->n_ep != 0)
            return refuse_whole(w, 0, arena_fmt(x->s->arena, "layer %d has %d experts, which %d ranks cannot share", m,
                                                x->layer[m].n_experts, w->n_ep));
    return true;
}

/* List the parameters of expert-parallel rank `ep`. The caller frees the array. */
static struct rank_params list_rank_params(const struct whole_reader *w, int ep)
{
    const struct source *s = w->x->s;
    struct rank_params list = { .param = xcalloc((size_t)s->n_params + 1, sizeof *list.param) };

    for (int experts = 0; experts < 2; experts++) {
        for (int i = 0; i < s->n_params; i++) {
            const char *rest;
            int expert = 0;
            const struct dsmoe_layer *layer = dsmoe_layer_of(w->x, s->param[i].name, &expert, &rest);

            if ((layer != NULL) == experts && !s->param[i].shared_with &&
                (!layer || expert / (layer->n_experts / w->n_ep) == ep))
                list.param[list.n++] = i;
        }
        if (!experts)
            list.n_dense = list.n;
    }
    return list;
}

/* ---- states ---- */

/* Returns the state dict of a parameter by its number, or NULL. */
static const struct pk *state_of_number(const struct pk *states, int64_t number)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(states, &n);
    int64_t key;

    /* numbers usually are positions */
    if (number >= 0 && number < (int64_t)n && pk_as_int(pair[2 * number], &key) && key == number)
        return pair[2 * number + 1];
    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_int(pair[2 * i], &key) && key == number)
            return pair[2 * i + 1];
    return NULL;
}

/* Record where a file stores the states of a parameter. Returns false after a report if they do not fit it. */
static bool record_states(struct whole_reader *w, const struct listed_param *l)
{
    const struct pk *value[TRAINED_STATES] = { l->master, pk_get(l->state, "exp_avg"), pk_get(l->state, "exp_avg_sq") };
    const struct param *p = &w->x->s->param[l->param];

    if (!dsmoe_adam_alone(w->x, &w->file[l->file], l->state))
        return false;
    for (int k = 0; k < TRAINED_STATES; k++) {
        struct pt_tensor t;

        if (!value[k])
            continue;
        if (!pt_tensor(w->file[l->file].pt, value[k], &t) || !t.contiguous || !dtype_is_float(t.dtype) ||
            !shape_equal(t.ndim, t.shape, p->ndim, p->shape))
            return refuse_whole(w, l->file, arena_fmt(w->x->s->arena, "the %s in the place of %s is no tensor of its "
                                                      "shape", state_name(trained_states[k]), p->name));
        *copy_at(w, l->param, k, l->file) = (struct whole_copy){ t.record, t.dtype, t.at };
        w->n_with[k]++;
    }
    w->n_holders[l->param]++;
    dsmoe_set_step(w->x, &w->file[l->file], pk_get(l->state, "step"));
    return true;
}

/* Record the states of group g in a file. *at is the number of parameters of this kind in the groups before it. */
static bool read_whole_group(struct whole_reader *w, int file, int g, const struct rank_params *list, int *at)
{
    const struct dsmoe_optim *f = &w->file[file];
    const struct pk *settings = dsmoe_settings(f, g), *masters = pk_get(f->tree, "fp32_groups");
    const bool experts = dsmoe_is_expert_group(settings);
    struct optim_group *to = &w->x->s->groups->group[g];
    const int first = experts ? list->n_dense : 0, end = experts ? list->n : list->n_dense;
    uint32_t n = 0, n_masters = 0;
    struct pk **id = pk_items(pk_get(settings, "params"), &n);
    struct pk **master = pk_items(adam_list_at(masters, g), &n_masters);

    if (!id || (masters && n_masters != n))
        return refuse_whole(w, file, "a group has another number of fp32 masters than of parameters");
    if ((int64_t)first + *at + (int64_t)n > end)
        return refuse_whole(w, file, arena_fmt(w->x->s->arena, "the optimizer has more parameters%s than the model, "
                                               "which has %d on this rank", experts ? " of experts" : "", end - first));
    for (uint32_t i = 0; i < n; i++, ++*at) {
        struct listed_param l = { .file = file, .param = list->param[first + *at],
                                  .master = masters ? master[i] : NULL };
        int64_t number;

        if (!pk_as_int(id[i], &number))
            return refuse_whole(w, file, "a group lists parameters by other means than numbers");
        l.state = state_of_number(pk_get(dsmoe_torch_dict(f->tree), "state"), number);
        if (!record_states(w, &l))
            return false;
        if (file < w->x->n_ranks && (experts || file == 0))
            to->param[to->n++] = w->x->s->param[l.param].name;
    }
    return true;
}

static bool read_whole_file(struct whole_reader *w, int file)
{
    struct rank_params list = list_rank_params(w, w->file[file].rank);
    int at[2] = {0};
    bool good = true;

    for (int g = 0; g < w->x->s->groups->n && good; g++)
        good = read_whole_group(w, file, g, &list, &at[dsmoe_is_expert_group(dsmoe_settings(&w->file[file], g))]);
    if (good && (at[0] != list.n_dense || at[1] != list.n - list.n_dense))
        good = refuse_whole(w, file, arena_fmt(w->x->s->arena, "the optimizer has %d parameters, and the model has %d "
                                               "on this rank", at[0] + at[1], list.n));
    free(list.param);
    return good;
}

/* Make the map of a state from its copies. Returns false after a report if some files lack it. */
static bool join_copies(const struct whole_reader *w, int param, int state)
{
    struct param *p = &w->x->s->param[param];
    const int64_t n_elems = shape_count(p->ndim, p->shape);
    struct tmap *map = NULL;
    int n = 0;

    for (int k = 0; k < w->n_files; k++) {
        const struct whole_copy *c = copy_at(w, param, state, k);
        struct tmap *one;
        struct tmap_slice slice;

        if (c->record < 0)
            continue;
        if (map && map->dtype != c->dtype)
            return refuse_whole(w, k, arena_fmt(w->x->s->arena, "%s of %s has another type than on other ranks",
                                                state_name(trained_states[state]), p->name));
        one = dsmoe_new_map(w->x, c->dtype, n_elems, 1);
        if (n_elems)
            one->slice->extent[one->slice->n_extents++] = (struct extent){ c->record, c->at, one->len };
        slice = *one->slice;
        if (!map) {
            map = one;
            map->slice = arena_alloc(w->x->s->arena, (size_t)w->n_files * sizeof *map->slice);
        }
        map->slice[n++] = slice;
    }
    if (n != w->n_holders[param] && w->n_with[state])
        return refuse_whole(w, 0, arena_fmt(w->x->s->arena, "%d of the %d files that list %s have its %s", n,
                                            w->n_holders[param], p->name, state_name(trained_states[state])));
    if (n > 1) {
        map->op = TMAP_REPLICAS;
        map->n_slices = n;
    }
    if (map && trained_states[state] == STATE_FP32 && p->state[STATE_FP32])
        p->copy = p->state[STATE_FP32];
    if (map)
        p->state[trained_states[state]] = map;
    return true;
}

/* Compare the kinds of states with each other. Returns false after a report if one of the moments is missing. */
static bool check_kinds(const struct whole_reader *w)
{
    const struct dsmoe *x = w->x;

    if (!w->n_with[1] != !w->n_with[2])
        return refuse_whole(w, 0, arena_fmt(x->s->arena, "the files have no %s",
                                            state_name(trained_states[w->n_with[1] ? 2 : 1])));
    if (!w->n_with[1])
        report_add(x->r, SEV_WARNING, "no_moments", x->s->path, ERR_NO_BYTE, NULL, "has no moments of Adam");
    else if (!w->n_with[0])
        report_add(x->r, SEV_NOTE, "optimizer", x->s->path, ERR_NO_BYTE, NULL,
                   "states have no names in the files of ZeRO-0 and are those of the parameters in the model's order; "
                   "without fp32 masters, values cannot confirm it");
    return true;
}

bool dsmoe_read_whole(struct dsmoe *x, const struct dsmoe_optim *f, int n)
{
    struct whole_reader w = { .x = x, .file = f, .n_files = n };
    const size_t n_copies = (size_t)x->s->n_params * TRAINED_STATES * (size_t)n;
    bool good = find_expert_ranks(&w);

    w.copy = xcalloc(n_copies + 1, sizeof *w.copy);
    w.n_holders = xcalloc((size_t)x->s->n_params + 1, sizeof *w.n_holders);
    for (size_t i = 0; i < n_copies; i++)
        w.copy[i].record = -1;
    if (good)
        dsmoe_new_groups(x, &f[0]);
    for (int k = 0; k < n && good; k++)
        good = read_whole_file(&w, k);
    good = good && check_kinds(&w);
    for (int i = 0; i < x->s->n_params && good; i++)
        for (int k = 0; k < TRAINED_STATES && good; k++)
            good = join_copies(&w, i, k);
    for (int g = 0; good && g < x->s->groups->n; g++)
        if (dsmoe_is_expert_group(x->s->groups->group[g].settings))
            dsmoe_sort_group(x, g);
    if (!good)
        x->s->groups = NULL;
    free(w.copy);
    free(w.n_holders);
    return good;
}
