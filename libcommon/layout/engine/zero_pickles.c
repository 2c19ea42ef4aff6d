/*
 * zero_pickles.c - make the trees of DeepSpeed's files from the groups, values and shapes of a source
 */
#include "libcommon/layout/engine/zero_pickles.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/engine/zero_order.h"
#include "libcommon/model/loss_scale.h"
#include "libcommon/plan/tmap.h"

/* The arguments of the functions below. */
struct pickling {
    const struct source *s;
    const struct source *like;          /* template, or NULL */
    struct arena *a;
    enum dtype weights;
};

/*
 * Returns the type in which the run will compute: the type of the weights if all have the same type, otherwise fp32, to
 * which every type can be converted. Tensors of integers are skipped, because they are buffers (source_add_buffers()).
 */
static enum dtype common_dtype(const struct source *s)
{
    enum dtype t = DTYPE_N;

    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *m = zero_weights_map(&s->param[i]);

        if (m && m->dtype > DTYPE_BF16)
            continue;
        if (m && t != DTYPE_N && t != m->dtype)
            return DTYPE_F32;
        if (m)
            t = m->dtype;
    }
    return t == DTYPE_F16 || t == DTYPE_BF16 ? t : DTYPE_F32;
}

/* ---- the program's other values ---- */

/*
 * State of the copying of the program's values. `left` collects the first few names that are left out, for the report.
 */
struct carrying {
    struct arena *a;
    struct pk *root;                    /* root of the new file */
    struct strbuf left;
    int n_left;
};
enum { NAMED_MAX = 8 };

static void record_left_out_value(struct carrying *c, const char *name)
{
    if (c->n_left++ < NAMED_MAX)
        strbuf_addf(&c->left, "%s%s", c->left.len ? ", " : "", name);
}

/*
 * Returns true if `name` is a value of the optimizer. Such values are left out here, because the optimizer's tree is
 * made from these.
 */
static bool is_optimizers(const char *name)
{
    const char *groups = strstr(name, "param_groups."), *state = strstr(name, "state.");

    return (groups && (groups == name || groups[-1] == '.')) ||
           (state && (state == name || state[-1] == '.') && str_ends(name, ".step"));
}

/*
 * Returns true if a DeepSpeed engine writes the key `name` itself. The new file then gets its own value for this key.
 */
static bool is_deepspeed_engine_key(const char *name)
{
    static const char *const names[] = {
        "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
        "frozen_param_fragments", "data_sampler", "random_ltd", "sparse_tensor_module_names", "dp_world_size",
        "mp_world_size", "ds_config", "ds_version", "universal_checkpoint_info", "checkpoint_parallel_dimensions",
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/*
 * Copy the value v to the key `name` of the new file. A number that is already there is replaced. Values named
 * "lr_scheduler.*" are collected in one dict. Returns false if v cannot be stored.
 */
static bool add_client_state_value(struct carrying *c, const char *name, const struct pk *v)
{
    static const char schedule[] = "lr_scheduler.";
    struct pk *was = pk_get(c->root, name), *dict = pk_get(c->root, "lr_scheduler");

    if (!pk_is_plain(v) || is_deepspeed_engine_key(name) ||
        (!pk_is_none(was) && (was->type != PK_INT || v->type != PK_INT)))
        return false;
    if (!str_starts(name, schedule)) {
        pk_set_str(c->a, c->root, name, pk_copy(c->a, v));
        return true;
    }
    if (pk_is_none(dict)) {
        dict = pk_dict(c->a);
        pk_set_str(c->a, c->root, "lr_scheduler", dict);
    }
    pk_set_str(c->a, dict, name + sizeof schedule - 1, pk_copy(c->a, v));
    return true;
}

/* Copy the values of pt's root. Dicts are copied as a whole, because the program expects them in this form. */
static void add_file_client_state(struct carrying *c, const struct pt *pt)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pt_root(pt), &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (key && !is_deepspeed_engine_key(key) && !pk_is_none(pair[2 * i + 1]) &&
            !add_client_state_value(c, key, pair[2 * i + 1]))
            record_left_out_value(c, key);
    }
}

/*
 * Copy the values that the program saved next to model and optimizer. DeepSpeed's client_state consists of the keys of
 * `root`, so they become keys of `root`. Tensors, and objects of classes that are not allowed in `root`, are left out
 * and reported as a WARNING.
 */
static void add_client_state(const struct pickling *k, struct pk *root, struct report *notes)
{
    const struct source *s = k->s;
    struct carrying c = { .a = k->a, .root = root };
    const struct pt *file = s->run.values_pt;

    if (file)
        add_file_client_state(&c, file);
    for (int i = 0; i < s->n_values; i++) {
        const struct source_value *v = &s->value[i];

        if (!v->buffer && !is_optimizers(v->name) && !(file && (v->pt == file || str_starts(v->name, "optimizer."))) &&
            (!v->tree || v->pt || !add_client_state_value(&c, v->name, v->tree)))
            record_left_out_value(&c, v->name);
    }
    if (c.n_left > NAMED_MAX)
        strbuf_addf(&c.left, " and %d more", c.n_left - NAMED_MAX);
    if (c.n_left)
        report_add(notes, SEV_WARNING, "left_out", s->path, ERR_NO_BYTE, NULL,
                   "these values cannot be stored in ZeRO files and are omitted: %s", c.left.buf);
    strbuf_free(&c.left);
    if (pk_is_none(pk_get(root, "lr_scheduler")))
        report_add(notes, SEV_WARNING, "fresh", s->path, ERR_NO_BYTE, NULL,
                   "has no state of a learning rate schedule: if the engine has a schedule, load this checkpoint with "
                   "load_lr_scheduler_states=False");
}

/* ---- model_states ---- */

static struct pk *make_param_shapes_tree(const struct pickling *k)
{
    const struct optim_groups *groups = k->s->groups;
    struct zero_shape x = { .n_groups = groups->n };

    x.group = arena_alloc(k->a, (size_t)groups->n * sizeof *x.group);
    for (int g = 0; g < groups->n; g++) {
        x.group[g] = zero_order_new_group(k->a, groups->group[g].n);
        for (int i = 0; i < groups->group[g].n; i++) {
            const struct param *p = source_param(k->s, groups->group[g].param[i]);
            struct zero_slot *slot = &x.group[g].slot[x.group[g].n++];

            *slot = (struct zero_slot){ .name = p->name, .ndim = p->ndim };
            memcpy(slot->shape, p->shape, sizeof slot->shape);
        }
    }
    return zero_shape_tree(k->a, &x);
}

/*
 * Returns the tree of `module`: a dict with an entry for each name. The writer fills in the tensors later. If there is
 * a template, its names are used; they may be more than those of the source.
 */
static struct pk *module(const struct pickling *k, struct pk *buffer_names)
{
    const struct source *s = k->s, *by = k->like ? k->like : s;
    struct pk *d = pk_ordered_dict(k->a);
    const int64_t none = 0;

    for (int i = 0; i < by->n_params; i++)
        pk_set_str(k->a, d, by->param[i].name, pt_new_filled(k->a, &(struct pt_new){
            .dtype = k->weights, .ndim = 1, .shape = &none }, ""));
    for (int i = 0; i < s->n_values; i++)
        if (s->value[i].buffer) {
            pk_set_str(k->a, d, s->value[i].name, pk_none(k->a));
            pk_add(k->a, buffer_names, pk_str(k->a, s->value[i].name));
        }
    return d;
}

static struct pk *enabled(struct arena *a, bool on)
{
    struct pk *d = pk_dict(a);

    pk_set_str(a, d, "enabled", pk_bool(a, on));
    return d;
}

static struct pk *config(const struct pickling *k)
{
    struct pk *d = pk_dict(k->a), *zero = pk_dict(k->a);

    pk_set_int(k->a, zero, "stage", 2);
    pk_set_str(k->a, d, "zero_optimization", zero);
    pk_set_str(k->a, d, "bf16", enabled(k->a, k->weights == DTYPE_BF16));
    pk_set_str(k->a, d, "fp16", enabled(k->a, k->weights == DTYPE_F16));
    return d;
}

/* Make shared_params, which lists the second name of each tied weight together with the first name. */
static struct pk *make_shared_params(const struct pickling *k)
{
    struct pk *d = pk_dict(k->a);

    for (int i = 0; i < k->s->n_params; i++)
        if (k->s->param[i].shared_with)
            pk_set_str(k->a, d, k->s->param[i].name, pk_str(k->a, k->s->param[i].shared_with));
    return d;
}

/* Make the tree of model_states, with its keys in DeepSpeed's order. */
static struct pk *model_states(const struct pickling *k)
{
    static const char *const empty[] = { "lr_scheduler", "data_sampler", "random_ltd" };
    const struct source *s = k->s, *like = k->like;
    struct arena *a = k->a;
    struct pk *d = pk_dict(a), *buffer_names = pk_list(a);
    const int64_t step = s->run.iteration >= 0 ? s->run.iteration : s->run.opt_step >= 0 ? s->run.opt_step : 0;
    const struct pk *root = like ? pt_root(zero_order_root(like)) : NULL;

    pk_set_str(a, d, "module", module(k, buffer_names));
    pk_set_str(a, d, "buffer_names", buffer_names);
    pk_set_str(a, d, "optimizer", pk_none(a));
    pk_set_str(a, d, "param_shapes", make_param_shapes_tree(k));
    pk_set_str(a, d, "frozen_param_shapes", pk_none(a));
    pk_set_str(a, d, "shared_params", like ? pk_copy(a, pk_get(root, "shared_params")) : make_shared_params(k));
    pk_set_str(a, d, "frozen_param_fragments", pk_none(a));
    for (int i = 0; i < 3; i++)
        pk_set_str(a, d, empty[i], pk_none(a));
    pk_set_int(a, d, "skipped_steps", 0);
    pk_set_int(a, d, "global_steps", step);
    pk_set_int(a, d, "global_samples", s->run.consumed_samples >= 0 ? s->run.consumed_samples : 0);
    pk_set_int(a, d, "dp_world_size", 1);
    pk_set_int(a, d, "mp_world_size", 1);
    pk_set_str(a, d, "ds_config", like ? pk_copy(a, pk_get(root, "ds_config")) : config(k));
    pk_set_str(a, d, "ds_version", like ? pk_copy(a, pk_get(root, "ds_version")) : pk_str(a, DS_WRITTEN_VERSION));
    return d;
}

/* ---- the optimizer ---- */

static struct pk *param_groups(const struct pickling *k)
{
    const struct optim_groups *groups = k->s->groups;
    struct arena *a = k->a;
    struct pk *list = pk_list(a);

    for (int g = 0; g < groups->n; g++) {
        struct pk *d = groups->group[g].settings ? pk_copy(a, groups->group[g].settings) : pk_dict(a);
        struct pk *ids = pk_list(a);

        pk_add(a, ids, pk_int(a, g));
        pk_set_str(a, d, "params", ids);
        pk_add(a, list, d);
    }
    return list;
}

/*
 * Returns the state of the loss scaler. For fp16 it is the source's state if the source has one, otherwise DeepSpeed's
 * initial state.
 */
static struct loss_scale scale_of(const struct pickling *k)
{
    struct loss_scale scale = k->weights == DTYPE_F16 ? loss_scale_dynamic(65536) : loss_scale_static(1);

    if (k->weights == DTYPE_F16)
        loss_scale_read(&scale, pk_get(k->s->run.optimizer, "loss_scaler"));
    return scale;
}

/*
 * Set where Adam's step counter is stored. If the template has a counter, its place is used. Otherwise the counter is
 * in the state, where torch's and DeepSpeed's Adam both read it.
 */
static void place_step(const struct pickling *k, struct zero_pickles *out)
{
    const struct run_state *like = k->like && k->like->run.opt_step >= 0 ? &k->like->run : NULL;

    out->step_in_state = k->s->run.opt_step >= 0 && (!like || like->step_in_state);
    out->step_is_tensor = !like || like->step_is_tensor;
}

static void make_zero_optimizer(const struct pickling *k, struct zero_pickles *out)
{
    struct arena *a = k->a;
    struct pk *d = pk_dict(a), *base = pk_dict(a), *args = pk_tuple(a), *list = param_groups(k);
    const struct loss_scale scale = scale_of(k);
    const struct pk *clip = pk_get((k->like ? k->like : k->s)->run.optimizer, "clip_grad");

    pk_set_str(a, d, "loss_scaler", loss_scale_write(a, &scale));
    pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, scale.dynamic));
    pk_set_str(a, d, "overflow", pk_bool(a, false));
    pk_set_str(a, d, "clip_grad", clip && pk_is_plain(clip) ? pk_copy(a, clip) : pk_float(a, 0));
    pk_set_str(a, base, "state", pk_dict(a));
    pk_set_str(a, base, "param_groups", list);
    pk_set_str(a, d, "base_optimizer_state", base);
    pk_add(a, args, pk_int(a, 2));
    pk_set_str(a, d, "zero_stage", pk_call(a, pk_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"), args));
    pk_set_str(a, d, "ds_version", pk_str(a, DS_WRITTEN_VERSION));
    out->optimizer = d;
    out->param_groups = list;
    place_step(k, out);
}

/* ---- public functions ---- */

static bool has_value(const struct source *s, const char *name)
{
    for (int i = 0; i < s->n_values; i++)
        if (strcmp(s->value[i].name, name) == 0)
            return true;
    return false;
}

/*
 * Report that the source has no groups or no step. The result stores each parameter by its name, so it can be made
 * without these.
 */
static void report_missing_settings(const struct source *s, struct report *notes)
{
    const struct optim_groups *groups = s->groups;
    bool known = false;

    for (int g = 0; g < groups->n; g++)
        known = known || groups->group[g].settings;
    if (!known)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "does not record which parameters and settings the optimizer groups have; all parameters form one "
                   "group with DeepSpeed's default settings");
    if (groups->how != OPTIM_GROUPS_LISTED)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "has optimizer settings for each parameter: parameters with equal settings form a group, %d in "
                   "total, in the order of the model; the program that loads the result must have the same groups; "
                   "--like copies the groups and their order from another checkpoint", groups->n);
    if (s->run.opt_step < 0)
        report_add(notes, SEV_WARNING, "step", s->path, ERR_NO_BYTE, NULL,
                   "has no optimizer step that all parameters share, so no step is written, and the step counter of "
                   "Adam starts at 0");
}

void zero_pickles_make(struct zero_pickles *out, const struct source *s, const struct zero_import *q, struct arena *a,
                       struct report *notes)
{
    const struct pickling k = { s, q->like, a,
                              q->weights != DTYPE_N ? q->weights : q->like ? q->like->weights : common_dtype(s) };
    struct pk *root = model_states(&k);

    *out = (struct zero_pickles){ .model = root, .weights = k.weights };
    if (q->purpose == ZERO_FOR_WEIGHTS)
        return;
    add_client_state(&k, root, notes);
    report_missing_settings(s, notes);
    make_zero_optimizer(&k, out);
    if (q->purpose == ZERO_FOR_RANKS && !q->like)
        report_add(notes, SEV_WARNING, "config", s->path, ERR_NO_BYTE, NULL,
                   "%s, so the order of the parameters is that of DeepSpeed's defaults (no "
                   "round_robin_gradients, no parameter_alignment, sub_group_size 1e9)",
                   has_value(s, "ds_config") ? "its ds_config is that of other ranks" : "has no ds_config");
}
