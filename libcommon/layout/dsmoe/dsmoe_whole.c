/*
 * dsmoe_whole.c - assign the states of a run without ZeRO
 *
 *   {"optimizer_state_dict": {"state": {0: {"step", "exp_avg", "exp_avg_sq"}, ...}, "param_groups": [...]},
 *    "fp32_groups": [[master, ...], ...]}                  a list for each group
 *
 * An optimizer of fp32 weights is the inner dict alone. The file of an expert-parallel rank has the states of all
 * parameters of the rank: those that are not of experts, which are equal on all ranks, in the order of the model, and
 * then those of its experts, layer by layer. The files have no names, so the order and the shapes are all there is. If
 * several groups have parameters that are not of experts, or some parameters are not trained, that order is not known:
 * each master must then be the only one that, rounded, is the weight of a parameter.
 */
#include <stdlib.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/dsmoe/dsmoe.h"

/* Number of elements by which masters and weights are matched. verify and the converters compare all. */
enum { MATCHED = 4096 };

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
    int n_dense_groups;                 /* number of groups with parameters that are not of experts */
    bool mixed;                         /* layers have different numbers of expert-parallel ranks */
    struct whole_copy *copy;            /* [(n_params * TRAINED_STATES) * n_files] */
    int *n_holders;                     /* [n_params]: number of files with the parameter */
    int n_with[TRAINED_STATES];         /* number of copies of each state in all files */
    uint32_t *crc;                      /* [n_params]: of the first elements of a weight; NULL if not computed */
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
    int g = 0, most = 0;
    const struct pk *settings;

    w->n_ep = x->n_ranks;
    for (; (settings = dsmoe_settings(&w->file[0], g)) != NULL; g++) {
        const int stated = dsmoe_is_expert_group(settings) ? dsmoe_group_ranks(settings) : -1;
        uint32_t n = 0;

        if (!dsmoe_is_expert_group(settings))
            w->n_dense_groups += pk_items(pk_get(settings, "params"), &n) && n > 0;
        most = stated > most ? stated : most;
        w->mixed |= stated > 0 && stated != x->n_ranks;
    }
    if (most && most != x->n_ranks) {
        report_add(x->r, SEV_ERROR, most > x->n_ranks ? "missing_file" : "degrees", x->s->path, ERR_NO_BYTE, NULL,
                   "a group of the optimizer is of %d expert-parallel ranks (ep_size_%d), but there are the files "
                   "expp_rank_* of %d", most, most, x->n_ranks);
        return false;
    }
    for (int m = 0; m < x->n_layers; m++)
        if (!w->mixed && x->layer[m].n_experts % w->n_ep != 0)
            return refuse_whole(w, 0, arena_fmt(x->s->arena, "layer %d has %d experts, which %d ranks cannot share", m,
                                                x->layer[m].n_experts, w->n_ep));
    return true;
}

/*
 * List the parameters of expert-parallel rank `ep`; with w->mixed, those of all experts. The caller frees the array.
 */
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
                (!layer || w->mixed || expert / (layer->n_experts / w->n_ep) == ep))
                list.param[list.n++] = i;
        }
        if (!experts)
            list.n_dense = list.n;
    }
    return list;
}

/* ---- parameters in an unknown order ---- */

/*
 * Compute the CRC of the first elements of a weight (a map of 16-bit elements), or of a master as it is when rounded to
 * `half`. Returns false with *e set if they cannot be read.
 */
static bool crc_of_first(const struct dsmoe *x, const struct tmap *map, enum dtype half, uint32_t *crc, struct err *e)
{
    const uint64_t size = (uint64_t)dtype_size(map->dtype);
    const uint64_t n = map->len / size < MATCHED ? map->len / size : MATCHED;
    void *bytes = xcalloc((size_t)n + 1, sizeof(float));
    uint16_t *rounded = xcalloc((size_t)n + 1, sizeof *rounded);
    const bool good = tmap_read(map, x->s->files, (struct tmap_range){ 0, 0, n * size }, bytes, e) == 0;

    for (uint64_t i = 0; map->dtype == DTYPE_F32 && i < n; i++)
        rounded[i] = f32_to_half(half, ((const float *)bytes)[i]);
    *crc = crc_bytes(0, map->dtype == DTYPE_F32 ? (const void *)rounded : bytes, n * sizeof *rounded);
    free(rounded);
    free(bytes);
    return good;
}

/* Compute w->crc. Returns false after a report if a weight has not 16 bits, or cannot be read. */
static bool compute_weight_crcs(struct whole_reader *w)
{
    const struct source *s = w->x->s;
    struct err e = {0};

    w->crc = xcalloc((size_t)s->n_params + 1, sizeof *w->crc);
    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *map = s->param[i].state[STATE_BF16];

        if (!map || dtype_size(map->dtype) != 2)
            return refuse_whole(w, 0, arena_fmt(s->arena, "%s is not a weight of 16 bits, which an fp32 master would "
                                                "confirm", s->param[i].name));
        if (!crc_of_first(w->x, map, map->dtype, &w->crc[i], &e))
            return refuse_whole(w, 0, arena_fmt(s->arena, "%s", e.msg));
    }
    return true;
}

/* A master in the file of a rank, and the parameters whose weight it is when rounded. */
struct matched {
    int group;
    int first;                          /* the first k for which it is the weight of list->param[k] */
    int n;                              /* number of such parameters */
};

/* Returns true if two weights have the same shape, type and first elements. */
static bool is_same_weight(const struct whole_reader *w, int a, int b)
{
    const struct param *p = &w->x->s->param[a], *q = &w->x->s->param[b];

    return w->crc[a] == w->crc[b] && p->state[STATE_BF16]->dtype == q->state[STATE_BF16]->dtype &&
           shape_equal(p->ndim, p->shape, q->ndim, q->shape);
}

/* Find m->first and m->n among k, range[0] <= k < range[1]. Returns false after a report if there is none. */
static bool match_master(const struct whole_reader *w, int file, const struct pk *master,
                         const struct rank_params *list, const int range[2], struct matched *m)
{
    struct arena *a = w->x->s->arena;
    enum dtype half = DTYPE_N;
    uint32_t crc = 0;
    struct pt_tensor t;
    struct tmap *map;
    struct err e = {0};

    if (!pt_tensor(w->file[file].pt, master, &t) || !t.contiguous || t.dtype != DTYPE_F32)
        return refuse_whole(w, file, "fp32_groups has a master that is no tensor of fp32");
    map = dsmoe_new_map(w->x, t.dtype, t.n_elems, 1);
    if (t.n_elems)
        map->slice->extent[map->slice->n_extents++] = (struct extent){ t.record, t.at, map->len };
    for (int k = range[0]; k < range[1]; k++) {
        const struct param *p = &w->x->s->param[list->param[k]];

        if (!shape_equal(t.ndim, t.shape, p->ndim, p->shape))
            continue;
        if (half != p->state[STATE_BF16]->dtype &&
            !crc_of_first(w->x, map, half = p->state[STATE_BF16]->dtype, &crc, &e))
            return refuse_whole(w, file, arena_fmt(a, "%s", e.msg));
        if (crc == w->crc[list->param[k]] && m->n++ == 0)
            m->first = k;
    }
    return m->n || refuse_whole(w, file, arena_fmt(a, "a master of %lld elements is not, rounded, the weight of any "
                                                   "parameter", (long long)t.n_elems));
}

/* Returns false after a report if the parameter is one of an expert that the rank of the file does not have. */
static bool check_expert_rank(const struct whole_reader *w, int file, const struct pk *settings, int param)
{
    const char *name = w->x->s->param[param].name, *rest;
    const int n_ep = dsmoe_group_ranks(settings), rank = w->file[file].rank;
    int expert = 0;
    const struct dsmoe_layer *layer = dsmoe_layer_of(w->x, name, &expert, &rest);

    if (!layer || n_ep < 1 || (layer->n_experts % n_ep == 0 && expert / (layer->n_experts / n_ep) == rank % n_ep))
        return true;
    return refuse_whole(w, file, arena_fmt(w->x->s->arena, "has the master of %s, an expert that rank %d of %d does "
                                           "not have", name, rank % n_ep, n_ep));
}

/* Returns the number of parameters in the groups of a file that are of experts, or that are not. */
static int count_listed(const struct whole_reader *w, int file, bool experts)
{
    int sum = 0;
    const struct pk *settings;

    for (int g = 0; (settings = dsmoe_settings(&w->file[file], g)) != NULL; g++) {
        uint32_t n = 0;

        if (dsmoe_is_expert_group(settings) == experts && pk_items(pk_get(settings, "params"), &n))
            sum += (int)n;
    }
    return sum;
}

/*
 * Returns the k of the parameter of master number i of n. If several weights are equal, such as those of norms that are
 * all 1, their masters must be as many and in one group, whose parameters have the order of the model. Returns -1 after
 * a report otherwise.
 */
static int resolve_matched(const struct whole_reader *w, int file, const struct matched *m, int i, int n,
                           const struct rank_params *list)
{
    int n_equal = 0, before = 0, k = m[i].first;
    bool one_group = true;

    for (int j = 0; j < n; j++) {
        if (m[j].first != m[i].first)
            continue;
        n_equal++;
        before += j < i;
        one_group &= m[j].group == m[i].group;
    }
    if (n_equal != m[i].n || !one_group) {
        refuse_whole(w, file, arena_fmt(w->x->s->arena, "the weights of %s are, rounded, those of %d masters%s, and "
                                        "the model has them %d times", w->x->s->param[list->param[k]].name, n_equal,
                                        one_group ? "" : " in several groups", m[i].n));
        return -1;
    }
    for (; before > 0; before--)
        for (k++; !is_same_weight(w, list->param[k], list->param[m[i].first]);)
            k++;
    return k;
}

/* Match the masters of all groups of one kind, and append their parameters to `found`. Returns false after a report. */
static bool match_kind(const struct whole_reader *w, int file, const struct rank_params *list, bool experts,
                       struct rank_params *found)
{
    const struct pk *masters = pk_get(w->file[file].tree, "fp32_groups"), *settings;
    const int range[2] = { experts ? list->n_dense : 0, experts ? list->n : list->n_dense };
    const int n_listed = count_listed(w, file, experts);
    struct matched *m = xcalloc((size_t)n_listed + 1, sizeof *m);
    bool good = n_listed <= range[1] - range[0] ||
                refuse_whole(w, file, "the optimizer has more parameters than the model");
    int n_found = 0;

    for (int g = 0; (settings = dsmoe_settings(&w->file[file], g)) != NULL && good; g++) {
        uint32_t n = 0;
        struct pk **master = pk_items(adam_list_at(masters, g), &n);

        if (dsmoe_is_expert_group(settings) != experts)
            continue;
        for (uint32_t i = 0; good && i < n; i++) {
            good = n_found < n_listed || refuse_whole(w, file, "a group has more fp32 masters than parameters");
            if (good)
                m[n_found].group = g;
            good = good && match_master(w, file, master[i], list, range, &m[n_found++]);
        }
    }
    for (int i = 0; i < n_found && good; i++) {
        const int k = resolve_matched(w, file, m, i, n_found, list);

        good = k >= 0 && check_expert_rank(w, file, dsmoe_settings(&w->file[file], m[i].group), list->param[k]);
        if (good)
            found->param[found->n++] = list->param[k];
    }
    free(m);
    return good;
}

/*
 * Put the parameters of a rank in the order of its optimizer. A master belongs to the parameter whose weights are the
 * rounded master. Parameters without a master in the optimizer are left out. Returns false after a report if a master
 * fits no parameter, or several.
 */
static bool match_rank_params(const struct whole_reader *w, int file, struct rank_params *list)
{
    struct rank_params found = { .param = xcalloc((size_t)list->n + 1, sizeof *found.param) };
    bool good = match_kind(w, file, list, false, &found);

    found.n_dense = found.n;
    good = good && match_kind(w, file, list, true, &found);
    free(list->param);
    *list = found;
    return good;
}

/* ---- states ---- */

const struct pk *dsmoe_state_of_number(const struct pk *states, int64_t number)
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
    dsmoe_set_step(w->x, &w->file[l->file], l->state);
    return true;
}

/*
 * Record where the file stores the states of group g. *at is the number of parameters of the same kind in the groups
 * before g.
 */
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
        l.state = dsmoe_state_of_number(pk_get(dsmoe_torch_dict(f->tree), "state"), number);
        if (!record_states(w, &l))
            return false;
        if (w->n_holders[l.param] == 1)
            to->param[to->n++] = w->x->s->param[l.param].name;
    }
    return true;
}

static bool read_whole_file(struct whole_reader *w, int file)
{
    struct rank_params list = list_rank_params(w, w->file[file].rank);
    int at[2] = {0};
    bool good = true;

    if (pk_get(w->file[file].tree, "fp32_groups") &&
        (w->n_dense_groups > 1 || w->mixed || count_listed(w, file, false) != list.n_dense ||
         count_listed(w, file, true) != list.n - list.n_dense))
        good = (w->crc || compute_weight_crcs(w)) && match_rank_params(w, file, &list);
    else if (w->n_dense_groups > 1 || w->mixed)
        good = refuse_whole(w, file, "several groups have parameters of one kind, and without fp32 masters nothing "
                            "shows which");
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
    free(w.crc);
    free(w.copy);
    free(w.n_holders);
    return good;
}
