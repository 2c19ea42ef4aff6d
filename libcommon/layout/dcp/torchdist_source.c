/*
 * torchdist_source.c - open a folder: metadata.json identifies it, .metadata lists tensors, common.pt holds the rest
 */
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/dcp/torchdist.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/tile.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/core_args.h"
#include "libcommon/layout/dcp/dcp.h"
#include "libcommon/layout/dcp/dcp_groups.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/dcp/buckets/torchdist_buckets.h"
#include "libcommon/layout/dcp/check/torchdist_masters.h"
#include "libcommon/layout/dcp/check/torchdist_modules.h"
#include "libcommon/layout/dcp/torchdist_names.h"
#include "libcommon/layout/dcp/torchdist_programs.h"
#include "libcommon/layout/dcp/check/torchdist_settings.h"
#include "libcommon/layout/dcp/check/torchdist_sizes.h"
#include "libcommon/model/topology.h"

/*
 * Limits for the values of common.pt. Nested dicts and lists are flattened. A pickle can refer to one object several
 * times, so it can describe many more values than it has bytes.
 */
enum { MAX_VALUES = 1 << 16, MAX_DEPTH = 16, MAX_RUNS = 1 << 16 };

/* ---- metadata.json ---- */

/*
 * Check that the settings `o` name the backend `want` with version 1 under the key `which`. As in Megatron-core, a
 * missing name means `preset` (NULL: there is no default), and a missing version means 1. The name and version found
 * are appended to *found for the message.
 */
static bool is_backend(const json_t *o, const char *which, const char *want, const char *preset, struct strbuf *found)
{
    char *key = str_fmt("%s_version", which);
    const json_t *name = json_object_get(o, which), *version = json_object_get(o, key);
    const char *s = name ? json_string_value(name) : preset;
    json_int_t n = version ? json_integer_value(version) : 1;

    free(key);
    strbuf_addf(found, "%s is %.60s, version %lld", which, s ? s : "not there", (long long)n);
    return s && strcmp(s, want) == 0 && n == 1;
}

static int check_backends(const char *path, const json_t *o, struct err *e)
{
    struct strbuf sharded = {0}, common = {0};
    bool ok = false;

    if (!json_is_object(o))
        err_data(e, path, ERR_NO_BYTE, "no object of settings");
    else if (!is_backend(o, "sharded_backend", "torch_dist", NULL, &sharded))
        err_data(e, path, ERR_NO_BYTE, "%s; torch_dist, version 1 can be read", sharded.buf);
    else if (!is_backend(o, "common_backend", "torch", "torch", &common))
        err_data(e, path, ERR_NO_BYTE, "%s; torch, version 1 can be read", common.buf);
    else
        ok = true;
    strbuf_free(&sharded);
    strbuf_free(&common);
    return ok ? 0 : -1;
}

static int read_torchdist_config(struct source *s, const struct source_listing *l, struct err *e)
{
    enum { MOST = 1 << 16 };
    int file = dcp_listed(l, TORCHDIST_CONFIG), rc = -1;
    uint64_t size = file < 0 ? 0 : files_size(s->files, file);
    json_error_t je;
    json_t *o = NULL;
    char *text;

    if (file < 0) {
        err_data(e, s->path, ERR_NO_BYTE,
                 "no " TORCHDIST_CONFIG ": the save did not finish, or the file was deleted; restore it, or use an "
                 "earlier checkpoint");
        return -1;
    }
    text = xcalloc(1, MOST + 1);
    if (files_read(s->files, file, 0, text, min_u64(size, MOST), e) == 0) {
        o = json_loads(text, 0, &je);
        if (!o)
            err_data(e, files_name(s->files, file), (uint64_t)je.position, "no JSON: %s", je.text);
        else
            rc = check_backends(files_name(s->files, file), o, e);
    }
    json_decref(o);
    free(text);
    return rc;
}

/* ---- common.pt ---- */

struct flattening {
    struct source *s;
    const struct pt *pt;
    int cap;
    bool too_many;
};

static void add_common_value(struct flattening *w, const struct source_value *v)
{
    struct source *s = w->s;

    if (s->n_values == w->cap) {
        struct source_value *old = s->value;

        w->cap = 2 * w->cap + 64;
        s->value = arena_alloc(s->arena, (size_t)w->cap * sizeof *s->value);
        memcpy(s->value, old, (size_t)s->n_values * sizeof *old);
    }
    s->value[s->n_values++] = *v;
}

static bool add_common_tensor(struct flattening *w, const char *name, const struct pk *v)
{
    struct source_value x = { .name = name };
    struct tile_flaw flaw;
    static const int64_t begin[TENSOR_MAX_DIM];
    struct tile_chunk c = { .at = begin };
    struct pt_tensor t;

    if (!pt_tensor(w->pt, v, &t))
        return false;
    x.ndim = t.ndim;
    memcpy(x.shape, t.shape, sizeof x.shape);
    c.len = t.shape;
    c.extent = tile_runs(w->s->arena, &t, MAX_RUNS, &c.n_extents);
    x.map = c.extent ? tile_map(w->s->arena, &(struct tile_tensor){ t.dtype, t.ndim, x.shape }, &c, 1, &flaw) : NULL;
    if (x.map)
        add_common_value(w, &x);
    return x.map != NULL;
}

/*
 * Returns true if the members of v are listed as separate values: v is a dict, or a list that begins with a dict. Any
 * other object is listed as one value.
 */
static bool is_walked(const struct pk *v, uint32_t *n)
{
    struct pk **item;

    if (v->type == PK_DICT || pk_is_class(v, "collections", "OrderedDict"))
        return pk_pairs(v, n) != NULL;
    item = v->type == PK_LIST ? pk_items(v, n) : NULL;
    return item && *n && item[0]->type == PK_DICT;
}

static void flatten(struct flattening *w, const char *name, const struct pk *v, int depth)
{
    uint32_t n;

    if (w->s->n_values > MAX_VALUES || depth > MAX_DEPTH) {
        w->too_many = true;
        return;
    }
    if (!is_walked(v, &n)) {
        if (!add_common_tensor(w, name, v))
            add_common_value(w, &(struct source_value){ .name = name, .tree = v, .pt = w->pt });
        return;
    }
    for (uint32_t i = 0; i < n && !w->too_many; i++) {
        struct pk **item = v->type == PK_LIST ? pk_items(v, &n) : pk_pairs(v, &n);
        const struct pk *below = v->type == PK_LIST ? item[i] : item[2 * i + 1];
        struct strbuf key = {0};

        if (v->type == PK_LIST)
            strbuf_addf(&key, "%u", i);
        else if (pk_as_str(item[2 * i]))
            strbuf_addf(&key, "%s", pk_as_str(item[2 * i]));
        else
            pk_text(item[2 * i], &key);
        flatten(w, *name ? arena_fmt(w->s->arena, "%s.%s", name, key.buf) : arena_fmt(w->s->arena, "%s", key.buf),
                below, depth + 1);
        strbuf_free(&key);
    }
}

/*
 * Read Adam's step counter. Megatron's plain optimizers store one counter for all parameters, and its distributed
 * optimizer stores one in each group. The first group's counter is read. Returns the value that was read, or NULL.
 */
static const struct source_value *torchdist_find_step(struct source *s, bool holes, struct report *r)
{
    struct source_hit hit;

    if ((source_find(s, "optimizer.state.common_step", &hit) ||
         source_find(s, "optimizer.0.state.common_step", &hit)) && hit.value) {
        s->run.opt_step = dcp_read_step(s, hit.value, holes, r);
        s->run.step_in_state = s->run.step_is_tensor = s->run.opt_step >= 0;
        return hit.value;
    }
    if ((source_find(s, "optimizer.optimizer.param_groups.0.step", &hit) ||
         source_find(s, "optimizer.0.optimizer.param_groups.0.step", &hit)) && hit.value && hit.value->tree) {
        /* The step is a float if the inner optimizer is torch's AdamW. */
        s->run.opt_step = dcp_read_step(s, hit.value, holes, r);
        return hit.value;
    }
    return NULL;
}

/* Returns true if the value's name is that of a step counter of the optimizer, or of one of several optimizers. */
static bool is_step_name(const char *name)
{
    return str_starts(name, "optimizer.") &&
           (str_ends(name, "state.common_step") || (strstr(name, ".param_groups.") && str_ends(name, ".step")));
}

/*
 * Compare the step counters of all groups with each other. Megatron-core saves equal counters. `first` is the counter
 * that was read as the step of the run; it may be NULL.
 */
static void compare_group_steps(const struct source *s, const struct source_value *first, bool holes, struct report *r)
{
    int64_t step = first ? s->run.opt_step : -1;

    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];
        const int64_t one = v != first && is_step_name(v->name) ? dcp_read_step(s, v, holes, r) : -1;

        if (one < 0 || (first && step < 0))
            continue;
        if (!first) {
            first = v;
            step = one;
        } else if (one != step) {
            report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "mixed_saves", s->path, ERR_NO_BYTE, v->name,
                       "is %lld, %s is %lld: in one save all groups have the same step", (long long)one, first->name,
                       (long long)step);
            return;
        }
    }
}

/* Returns true if the run was in fp16, where the loss scale causes steps to be skipped. */
static bool skips_steps(const struct source *s)
{
    int64_t fp16 = 0;
    bool half = pk_as_int(pk_get(s->run.args, "fp16"), &fp16) && fp16;

    for (int i = 0; i < s->n_params && !half; i++) {
        const struct param *p = &s->param[i];

        half = (p->copy && p->copy->dtype == DTYPE_F16) ||
               (p->state[STATE_BF16] && p->state[STATE_BF16]->dtype == DTYPE_F16);
    }
    return half;
}

/*
 * Compare the optimizer's step with the iteration. They must be equal, with two exceptions: a run in fp16 may have
 * skipped steps, and some releases of DeepSpeed, whose checkpoints are converted to this layout, count one step more.
 */
static void compare_step_with_iteration(const struct source *s, struct report *r)
{
    const int64_t step = s->run.opt_step, iteration = s->run.iteration;

    if (step >= 0 && iteration >= 0 && (step > iteration + 1 || (step < iteration && !skips_steps(s))))
        report_add(r, SEV_WARNING, "mixed_saves", s->path, ERR_NO_BYTE, NULL,
                   TORCHDIST_COMMON " records iteration %lld, the optimizer's step is %lld: they are from different "
                   "saves, or the optimizer started at another step", (long long)iteration, (long long)step);
}

/* Append the settings of the groups in an optimizer's dict to the source's groups. */
static void add_torchdist_settings(struct source *s, const struct pk *optimizer, struct optim_groups *groups)
{
    const struct pk *inner = pk_get(optimizer, "optimizer");
    struct optim_group *group;
    int n;
    struct pk **settings = optim_groups_copy_settings(pk_get(inner ? inner : optimizer, "param_groups"), s->arena, &n);

    group = arena_alloc(s->arena, ((size_t)groups->n + (size_t)n + 1) * sizeof *group);
    if (groups->n)
        memcpy(group, groups->group, (size_t)groups->n * sizeof *group);
    for (int g = 0; g < n; g++)
        group[groups->n++] = (struct optim_group){ .settings = settings[g] };
    groups->group = group;
}

/*
 * Record the settings of the optimizer's groups. If the experts have an optimizer of their own, the optimizers are
 * members of a dict under their numbers. The lists of parameters stay empty, because common.pt does not contain them.
 */
static void read_torchdist_settings(struct source *s)
{
    struct optim_groups *groups = arena_alloc(s->arena, sizeof *groups);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(s->run.optimizer, &n);

    *groups = (struct optim_groups){ .how = OPTIM_GROUPS_UNLISTED };
    add_torchdist_settings(s, s->run.optimizer, groups);
    for (uint32_t i = 0; pair && i < n; i++)
        if (pair[2 * i]->type == PK_INT)
            add_torchdist_settings(s, pair[2 * i + 1], groups);
    s->groups = groups;
}

/*
 * Read the run state. The model's configuration and the topology are reset, because they are not known for this layout.
 */
static void read_run(struct source *s, const struct pt *pt, bool holes, struct report *r)
{
    run_state_read(s, pt);
    memset(&s->config, 0, sizeof s->config);
    s->topo = (struct topology){0};
    s->run.optimizer = torchdist_optimizer_of(pt_root(pt));
    lightning_counters_read(s, pt_root(pt));
    read_torchdist_settings(s);
    compare_group_steps(s, torchdist_find_step(s, holes, r), holes, r);
    compare_step_with_iteration(s, r);
    if (!s->weights_only)
        torchdist_settings_check(s, r);
}

static int read_common(struct source *s, const struct source_listing *l, bool holes, struct report *r, struct err *e)
{
    int file = dcp_listed(l, TORCHDIST_COMMON);
    struct flattening w = { .s = s, .cap = s->n_values };
    struct err unreadable = {0};
    struct pt *pt;

    if (file < 0) {
        err_data(e, s->path, ERR_NO_BYTE, "no " TORCHDIST_COMMON " next to " TORCHDIST_CONFIG
                 ": the checkpoint was copied incompletely");
        return -1;
    }
    pt = pt_open(s->files, file, &unreadable);
    dcp_add_listed(s, l, TORCHDIST_COMMON, pt);
    dcp_add_listed(s, l, TORCHDIST_CONFIG, NULL);
    if (!pt) {
        report_add_err(r, "unreadable", &unreadable);
        return 0;
    }
    pt_check(pt, s->files, file, r);
    w.pt = pt;
    flatten(&w, "", pt_root(pt), 0);
    if (w.too_many)
        report_add(r, SEV_ERROR, "key", files_name(s->files, file), ERR_NO_BYTE, NULL,
                   "is nested deeper than %d levels or has more than %d values", MAX_DEPTH, MAX_VALUES);
    read_run(s, pt, holes, r);
    return 0;
}

/*
 * Returns the group's factor of weight decay, which is stored under one of two keys. Returns -1 if the group has none.
 */
static double decay_factor(const struct pk *settings)
{
    const struct pk *v = pk_get(settings, "wd_mult");
    double f = -1;

    pk_as_double(v ? v : pk_get(settings, "pre_wd_mult"), &f);
    return f;
}

/* Returns true if the group's parameters are those of experts, which have their own optimizer. */
static bool is_of_expert_group(const struct pk *settings)
{
    int64_t v = 0;

    return pk_as_int(pk_get(settings, "is_expert_parallel"), &v) && v;
}

/*
 * Returns the number of the group that has a parameter. If the groups differ in weight decay, `decay` decides; if there
 * are groups of experts, `expert` decides. Returns -1 if no group fits, or if several do.
 */
static int find_group_of(const struct optim_groups *from, bool decays, bool of_experts)
{
    bool experts = false;
    int found = -1;

    for (int k = 0; k < from->n; k++)
        experts |= is_of_expert_group(from->group[k].settings);
    for (int g = 0; g < from->n; g++) {
        const struct pk *settings = from->group[g].settings;
        bool others = false;

        if (experts && is_of_expert_group(settings) != of_experts)
            continue;
        for (int k = 0; k < from->n; k++)
            others |= k != g && is_of_expert_group(from->group[k].settings) == is_of_expert_group(settings);
        if (others && decay_factor(settings) != decays)
            continue;
        if (found >= 0)
            return -1;
        found = g;
    }
    return found;
}

/*
 * Assign the parameters to the groups by Megatron-core's default rule: biases and vectors are in a group without weight
 * decay, and with expert parallelism, experts are in separate groups. The files do not list the parameters of a group.
 * If groups were also made by other criteria (learning rate), no groups are returned.
 */
static int read_torchdist_groups(const struct source *s, struct arena *a, struct optim_groups *out, struct err *e)
{
    const size_t room = (size_t)s->n_params + 1;
    const struct optim_groups *from = s->groups;
    struct optim_groups g = {0};

    (void)e;
    if (!from || from->n < 1)
        return 0;
    g.group = arena_alloc(a, (size_t)from->n * sizeof *g.group);
    g.how = OPTIM_GROUPS_BY_RULE;
    for (; g.n < from->n; g.n++)
        g.group[g.n] = (struct optim_group){ from->group[g.n].settings, 0, arena_alloc(a, room * sizeof(char *)) };
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        const bool decays = p->ndim != 1 && !str_ends(p->name, ".bias");
        const int of = find_group_of(from, decays, strstr(p->name, ".experts.") != NULL);

        if (p->state[STATE_EXP_AVG] && of < 0)
            return 0;
        if (p->state[STATE_EXP_AVG])
            g.group[of].param[g.group[of].n++] = p->name;
    }
    *out = g;
    return 0;
}

/* Returns true if an optimizer stores one step for all of its groups, next to its states. */
static bool has_common_step(const struct source *s)
{
    for (int i = 0; i < s->n_values; i++)
        if (str_ends(s->value[i].name, "optimizer.state.common_step") ||
            strcmp(s->value[i].name, "optimizer.0.state.common_step") == 0)
            return true;
    return false;
}

/*
 * Report that a group has no step, if the optimizer is Adam and other groups have one. For states in buckets, report it
 * if no group has a step.
 */
static void check_steps_there(const struct source *s, struct report *r)
{
    int n_with = 0, first = -1;

    for (int g = 0; s->groups && g < s->groups->n; g++) {
        const struct pk *settings = s->groups->group[g].settings;

        if (pk_get(settings, "step"))
            n_with++;
        else if (first < 0 && adam_is_due(settings))
            first = g;
    }
    if (first < 0 || has_common_step(s))
        return;
    if (n_with)
        report_add(r, s->accept_mismatch ? SEV_WARNING : SEV_ERROR, "step", s->path, ERR_NO_BYTE, NULL,
                   "group %d of the optimizer has no step, and %d other groups have one", first, n_with);
    else if (s->dcp->buckets || pk_get(s->run.optimizer, "state"))
        report_add(r, SEV_WARNING, "step", s->path, ERR_NO_BYTE, NULL,
                   "has moments, but no step of the optimizer: a run that resumes counts from another step");
}

/*
 * Set the step of the run to the step in the groups of the distributed optimizer's settings. All groups have the same
 * step.
 */
static void read_bucket_step(struct source *s, struct report *r)
{
    for (int g = 0; g < s->groups->n; g++) {
        double step;

        if (!pk_as_double(pk_get(s->groups->group[g].settings, "step"), &step))
            continue;
        if (!adam_step_is_valid(step) || (s->run.opt_step >= 0 && s->run.opt_step != (int64_t)step)) {
            report_add(r, SEV_ERROR, "mixed_saves", s->path, ERR_NO_BYTE, NULL,
                       "the step of group %d of the distributed optimizer is %g, which is no number of steps or not "
                       "that of the other groups", g, step);
            return;
        }
        s->run.opt_step = (int64_t)step;
    }
    compare_step_with_iteration(s, r);
}

/*
 * If the form in which the distributed optimizer was saved depends on the number of ranks, find the states of the
 * parameters in the optimizer's buckets. Reports an ERROR "optimizer" with the reason if they cannot be found.
 */
static void read_form_of_ranks(struct source *s, const struct source_opts *o, struct report *r)
{
    const char *entry, *form = torchdist_form_of_ranks(s, &entry), *why = NULL;
    const struct pk *optimizer = NULL;

    /* if tensors are not read, only a form whose states can never be found is an error */
    if (!form || (o->no_tensors && strcmp(form, "dp_reshardable") == 0))
        return;
    if (strcmp(form, "dp_reshardable") == 0)
        why = torchdist_place_buckets(s, !o->no_tensors && !o->holes, &optimizer);
    if (optimizer && !why) {
        s->run.optimizer = optimizer;
        read_torchdist_settings(s);
        read_bucket_step(s, r);
        return;
    }
    report_add(r, SEV_ERROR, "optimizer", s->path, ERR_NO_BYTE, entry,
               "the distributed optimizer was saved as %s, whose buckets depend on the ranks and record no offsets of "
               "parameters%s%s; save it as fully_reshardable, or convert with --weights-only", form, why ? ": " : "",
               why ? why : "");
}

static int assign_checked_names(struct dcp_naming *n, struct report *r, struct err *e)
{
    if (torchdist_names_assign(n, r, e) < 0)
        return -1;
    torchdist_modules_check(n, r);
    torchdist_sizes_check(n, r);
    return 0;
}

int torchdist_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e)
{
    int rc;

    if (read_torchdist_config(s, l, e) < 0)
        return -1;
    rc = dcp_open(s, l, o, assign_checked_names, r, e);
    s->layout = &torchdist_layout;
    s->read_groups = read_torchdist_groups;
    if (rc == 0)
        torchdist_masters_find(s);
    if (rc == 0)
        rc = read_common(s, l, o->holes, r, e);
    if (rc == 0)
        bridge_files_read(s, l, o->holes, r);
    if (rc == 0 && !o->no_optimizer) {
        read_form_of_ranks(s, o, r);
        if (!o->holes)
            check_steps_there(s, r);
    }
    if (rc == 0) {
        const enum severity severity = s->accept_mismatch || o->holes ? SEV_WARNING : SEV_ERROR;

        core_args_check_layers(s, severity, r);
        core_args_check(s, false, severity, r);
    }
    return rc;
}

int nemo_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o, struct report *r,
                     struct err *e)
{
    const struct source_listing in = { l->n, l->member, NEMO_WEIGHTS };

    if (nemo_check_weights(s, l, e) < 0 || torchdist_source_open(s, &in, o, r, e) < 0)
        return -1;
    nemo_files_read(s, &in, o->holes, r);
    return 0;
}

bool torchdist_marks(const char *name)
{
    return strcmp(name, TORCHDIST_COMMON) == 0 || dcp_marks(name);
}

/* Returns true if Megatron-core saved the folder, by means of torch.distributed.checkpoint. */
bool torchdist_fits(const struct source_listing *l)
{
    return dcp_listed(l, TORCHDIST_COMMON) >= 0 || dcp_listed(l, TORCHDIST_CONFIG) >= 0;
}
