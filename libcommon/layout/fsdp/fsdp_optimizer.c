/*
 * fsdp_optimizer.c - read the optimizer of per-rank pickles: states by number, settings, steps
 *
 *   {"state": {0: {"step": tensor, "exp_avg": DTensor, "exp_avg_sq": DTensor}, ...},
 *    "param_groups": [{"lr": ..., "params": [0, 1, ...]}, ...]}
 *
 * Number i is the i-th parameter of the model's files; a tied weight counts once.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/names.h"
#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/fsdp/fsdp.h"

struct fsdp_optimizer {
    const struct fsdp *x;
    const struct fsdp_numbered *of;
    const char *const *name;            /* [n]: names of the parameters by number */
    int n;
    const struct pk **state;            /* [world * n]: the state dict of a parameter on a rank, or NULL */
    int *group;                         /* [n]: the number of its group */
    struct names *more;                 /* names of states other than Adam's */
    struct strbuf more_text;
};

static const struct pk *optimizer_root(const struct fsdp *x, int rank)
{
    const struct pt *pt = fsdp_file(x, FSDP_OPTIM, rank);

    return pt ? pt_root(pt) : NULL;
}

/*
 * Find the states of each parameter on a rank. If the file also has states of other parameters, reports this and
 * returns false.
 */
static bool list_rank_states(struct fsdp_optimizer *p, int rank)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(optimizer_root(p->x, rank), "state"), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        int64_t number = -1;

        if (!pk_as_int(pair[2 * i], &number) || number < 0 || number >= p->n) {
            report_add(p->x->r, SEV_ERROR, "optimizer", p->x->s->path, ERR_NO_BYTE, NULL,
                       "rank %d has states of a parameter that is not one of the model's %d", rank, p->n);
            return false;
        }
        p->state[(size_t)rank * (size_t)p->n + (size_t)number] = pair[2 * i + 1];
    }
    if (!pair)
        report_add(p->x->r, SEV_ERROR, "optimizer", p->x->s->path, ERR_NO_BYTE, NULL,
                   "the optimizer's file of rank %d is not a state_dict of torch", rank);
    return pair != NULL;
}

static void set_optimizer_state(struct fsdp_optimizer *p, int number, const char *key, const struct fsdp_tensor *t)
{
    struct source *s = p->x->s;
    struct param *of = source_param(s, p->name[number]);
    const bool first = strcmp(key, "exp_avg") == 0, second = strcmp(key, "exp_avg_sq") == 0;
    struct source_value v = { .name = arena_fmt(s->arena, "optim.state.%s.%s", p->name[number], key), .map = t->map,
                              .ndim = t->ndim };

    if (of && (first || second) && shape_equal(of->ndim, of->shape, t->ndim, t->shape)) {
        of->state[first ? STATE_EXP_AVG : STATE_EXP_AVG_SQ] = t->map;
        return;
    }
    if (strcmp(key, "step") != 0 && names_find(p->more, key) < 0) {
        names_add(p->more, arena_fmt(s->arena, "%s", key), 0);
        strbuf_addf(&p->more_text, "%s%s", p->more_text.len ? ", " : "", key);
    }
    memcpy(v.shape, t->shape, sizeof v.shape);
    fsdp_check_copies(p->x, v.name, t->map);
    fsdp_add_value(p->x, &v);
}

/* Add a state that is not a tensor, such as a step that is a whole number, as a value of rank 0. */
static void add_plain_state(struct fsdp_optimizer *p, int number, const char *key, struct pk *v)
{
    struct source *s = p->x->s;
    double step;

    if (key && strcmp(key, "step") == 0 && !pk_as_double(v, &step)) {
        report_add(p->x->r, SEV_ERROR, "step", s->path, ERR_NO_BYTE, p->name[number], "has a step that is no number");
        return;
    }
    if (key && pk_is_plain(v) && !pk_is_none(v))
        fsdp_add_value(p->x, &(struct source_value){
            .name = arena_fmt(s->arena, "optim.state.%s.%s", p->name[number], key), .tree = v,
            .pt = fsdp_file(p->x, FSDP_OPTIM, 0) });
}

/* Read the states of one parameter. All ranks must have these states. */
static void read_param_states(struct fsdp_optimizer *p, int number)
{
    const struct pk **v = xcalloc((size_t)p->x->world, sizeof *v);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(p->state[number], &n);

    for (int r = 1; r < p->x->world; r++)
        if (!fsdp_check_same_keys(p->x, p->name[number], r, p->state[number],
                                  p->state[(size_t)r * (size_t)p->n + (size_t)number])) {
            free(v);
            return;
        }
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        struct fsdp_tensor t;
        struct pt_tensor probe;
        struct pt_dtensor d;
        const char *why;

        if (!key || (!pt_tensor(fsdp_file(p->x, FSDP_OPTIM, 0), pair[2 * i + 1], &probe) &&
                     !pt_dtensor(fsdp_file(p->x, FSDP_OPTIM, 0), pair[2 * i + 1], &d, &why))) {
            add_plain_state(p, number, key, pair[2 * i + 1]);
            continue;
        }
        for (int r = 0; r < p->x->world; r++)
            v[r] = pk_get(p->state[(size_t)r * (size_t)p->n + (size_t)number], key);
        t = fsdp_join(p->x, FSDP_OPTIM, v);
        if (fsdp_is_joined(p->x, arena_fmt(p->x->s->arena, "optim.state.%s.%s", p->name[number], key), &t) &&
            fsdp_check_state(p->x, p->of, number, key, &t, v))
            set_optimizer_state(p, number, key, &t);
    }
    free(v);
}

/* Read a step, and check its record. If the step is not a whole number, reports this and returns false. */
static bool read_param_step(const struct fsdp *x, const struct source_value *v, double *step)
{
    struct err e = {0};
    char bytes[16];
    double number = 0;

    if (v->map ? v->map->len != (uint64_t)dtype_size(v->map->dtype) || v->map->len > sizeof bytes
               : !pk_as_double(v->tree, &number)) {
        report_add(x->r, SEV_ERROR, "step", x->s->path, ERR_NO_BYTE, v->name, "is not one number");
        return false;
    }
    if (v->map && tmap_read_checked(v->map, x->s->files, (struct tmap_range){ 0, 0, v->map->len }, bytes, &e) < 0) {
        report_add_err(x->r, "crc", &e);
        return false;
    }
    *step = v->map ? dtype_value(v->map->dtype, bytes) : number;
    if (adam_step_is_valid(*step))
        return true;
    report_add(x->r, SEV_ERROR, "step", x->s->path, ERR_NO_BYTE, v->name, "is %g, which is no number of steps", *step);
    return false;
}

/* Set run.opt_step to the step that all parameters share. */
static void find_shared_step(const struct fsdp *x)
{
    struct source *s = x->s;
    const char *first = NULL;
    double step, shared = -1;
    bool tensor = false;

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];

        if ((!v->map && !v->tree) || !str_starts(v->name, "optim.state.") || !str_ends(v->name, ".step") ||
            !read_param_step(x, v, &step))
            continue;
        if (first && step != shared) {
            report_add(x->r, SEV_WARNING, "step", s->path, ERR_NO_BYTE, v->name, "is %g, and %s is %g", step, first,
                       shared);
            return;
        }
        first = v->name;
        shared = step;
        tensor = v->map != NULL;
    }
    if (!first) {
        optim_groups_check_step_there(s, x->r);
        return;
    }
    s->run.opt_step = (int64_t)shared;
    s->run.step_in_state = true;
    s->run.step_is_tensor = tensor;
}

/* ---- groups ---- */

/*
 * Set the names of the parameters of a group. Returns false if a number in the group does not belong to a parameter, or
 * was also in an earlier group.
 */
static bool name_group_params(const struct fsdp_optimizer *p, const struct pk *list, bool *listed, int group,
                              struct optim_group *g)
{
    uint32_t n = 0;
    struct pk **item = pk_items(list, &n);

    g->param = arena_alloc(p->x->s->arena, ((size_t)n + 1) * sizeof *g->param);
    for (uint32_t i = 0; item && i < n; i++) {
        int64_t number = -1;

        if (!pk_as_int(item[i], &number) || number < 0 || number >= p->n || listed[number])
            return false;
        listed[number] = true;
        p->group[number] = group;
        g->param[g->n++] = p->name[number];
    }
    return item != NULL;
}

/* Returns the settings of all groups as text, so that ranks can be compared. The caller frees the text. */
static char *settings_text(const struct pk *groups)
{
    struct strbuf sb = {0};

    if (groups)
        pk_text(groups, &sb);
    return sb.buf ? sb.buf : xstrdup("");
}

/*
 * Compare the settings with those of rank 0. If the file is that of another rank or of another save, reports this and
 * returns false.
 */
static bool compare_settings(const struct fsdp *x, const struct pk *groups)
{
    char *first = settings_text(groups);
    bool same = true;

    for (int r = 0; r < x->world; r++) {
        char *other = settings_text(pk_get(optimizer_root(x, r), "param_groups"));

        same = fsdp_is_of_rank(x, FSDP_OPTIM, r, pk_get(optimizer_root(x, r), "state")) && same;
        if (strcmp(first, other) != 0) {
            same = same && x->o->accept_mismatch;
            report_add(x->r, x->o->accept_mismatch ? SEV_WARNING : SEV_ERROR, "groups",
                       pt_path(fsdp_file(x, FSDP_OPTIM, r)), ERR_NO_BYTE, NULL,
                       "its param_groups differ from those of rank 0: it is of another save");
        }
        free(other);
    }
    free(first);
    return same;
}

/* Read the groups. If these do not list each parameter of the model exactly once, reports this and returns false. */
static bool read_fsdp_groups(const struct fsdp_optimizer *p)
{
    struct source *s = p->x->s;
    const struct pk *list = pk_get(optimizer_root(p->x, 0), "param_groups");
    struct optim_groups *g = arena_alloc(s->arena, sizeof *g);
    bool *listed = xcalloc((size_t)p->n + 1, sizeof *listed), good = true;
    uint32_t n_items = 0;
    struct pk **item = pk_items(list, &n_items);
    int n, n_listed = 0;
    struct pk **settings = optim_groups_copy_settings(list, s->arena, &n);

    g->group = arena_alloc(s->arena, ((size_t)n + 1) * sizeof *g->group);
    g->how = OPTIM_GROUPS_LISTED;
    for (; item && g->n < n && (uint32_t)g->n < n_items && good; g->n++) {
        g->group[g->n] = (struct optim_group){ .settings = settings[g->n] };
        good = name_group_params(p, pk_get(item[g->n], "params"), listed, g->n, &g->group[g->n]);
    }
    for (int i = 0; i < p->n; i++)
        n_listed += listed[i];
    free(listed);
    if (good && n_listed == p->n) {
        s->groups = g;
        return true;
    }
    report_add(p->x->r, SEV_ERROR, "optimizer", s->path, ERR_NO_BYTE, NULL,
               "the optimizer's groups number %d parameters, and the model's files have %d: which states belong to "
               "which is not known; the weights alone can be converted (--weights-only)", n_listed, p->n);
    return false;
}

void fsdp_read_optimizer(const struct fsdp *x, const struct fsdp_numbered *of)
{
    struct fsdp_optimizer p = { .x = x, .of = of, .name = of->name, .n = of->n, .more = names_new(x->s->arena) };
    const int n = of->n;
    bool good = true;
    int n_files = 0, first = 0, lacking;

    for (int r = 0; r < x->world; r++)
        n_files += fsdp_file(x, FSDP_OPTIM, r) != NULL;
    if (n_files < x->world || n == 0)   /* missing files have been reported */
        return;
    if (x->version_1) {
        report_add(x->r, SEV_ERROR, "optimizer", x->s->path, ERR_NO_BYTE, NULL,
                   "the optimizer of FSDP version 1 has flat pieces without names, which are not read; the weights "
                   "alone can be converted (--weights-only)");
        return;
    }
    p.state = xcalloc((size_t)x->world * (size_t)n, sizeof *p.state);
    p.group = xcalloc((size_t)n, sizeof *p.group);
    good = compare_settings(x, pk_get(optimizer_root(x, 0), "param_groups")) && read_fsdp_groups(&p);
    for (int r = 0; r < x->world && good; r++)
        good = list_rank_states(&p, r);
    for (int i = 0; i < n && good; i++)
        read_param_states(&p, i);
    if (good) {
        lacking = adam_count_stateless(p.state, n, &first);     /* on rank 0 */
        adam_report_no_state(x->r, x->s->path, p.name[first], lacking, n, false);
        fsdp_check_missing_states(x, of, p.state, p.group);
    }
    free(p.state);
    free(p.group);
    if (p.more_text.len)
        x->s->run.more_states = arena_fmt(x->s->arena, "%s", p.more_text.buf);
    strbuf_free(&p.more_text);
    if (good)
        find_shared_step(x);
}
