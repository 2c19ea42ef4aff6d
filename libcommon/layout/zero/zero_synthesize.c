/*
 * zero_synthesize.c - make DeepSpeed's trees from the groups and shapes of a source
 */
#include "libcommon/layout/zero/zero_synthesize.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed_synthesize.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/zero/zero_template_values.h"
#include "libcommon/layout/zero/zero_template.h"
#include "libcommon/layout/zero/zero_order.h"
#include "libcommon/model/loss_scale.h"
#include "libcommon/model/topology.h"
#include "libcommon/plan/tmap.h"

/* ---- parameters ---- */

static const struct tmap *source_weights_map(const struct param *p)
{
    return p->state[STATE_BF16] ? p->state[STATE_BF16] : p->state[STATE_FP32];
}

/* Returns true for a tensor of integers, and for a buffer of `like`. Types of floats come first in the enum. */
static bool is_buffer_param(const struct param *p, const struct source *like)
{
    const struct tmap *m = source_weights_map(p);

    return m && (m->dtype > DTYPE_BF16 || (like && zero_like_buffer(like, p->name)));
}

/* Move the model's buffers from the parameters to the values. */
static void split_buffers(struct source *s, const struct source *like)
{
    struct source_value *value = arena_alloc(s->arena, (size_t)(s->n_values + s->n_params + 1) * sizeof *value);
    int n = 0;

    if (s->n_values)
        memcpy(value, s->value, (size_t)s->n_values * sizeof *value);
    s->value = value;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];

        if (!is_buffer_param(p, like)) {
            s->param[n] = *p;
            s->param[n++].group = -1;   /* not in a new group yet */
            continue;
        }
        s->value[s->n_values] = (struct source_value){ .name = p->name, .map = source_weights_map(p), .ndim = p->ndim,
                                                       .buffer = true };
        memcpy(s->value[s->n_values++].shape, p->shape, sizeof p->shape);
    }
    s->n_params = n;
    *s->names = (struct source_names){0};
}

/*
 * Returns the type that the run computes with: the type of all weights, or fp32, to which any of them can be
 * converted.
 */
static enum dtype common_dtype(const struct source *s)
{
    enum dtype t = DTYPE_N;

    for (int i = 0; i < s->n_params; i++) {
        const struct tmap *m = source_weights_map(&s->param[i]);

        if (m && t != DTYPE_N && t != m->dtype)
            return DTYPE_F32;
        if (m)
            t = m->dtype;
    }
    return t == DTYPE_F16 || t == DTYPE_BF16 ? t : DTYPE_F32;
}

/*
 * Make one group in the order of the model, for weights without an optimizer, and for forms that store parameters by
 * name.
 */
static void one_group(const struct source *s, struct optim_groups *out, enum state due)
{
    struct optim_group *g = arena_alloc(s->arena, sizeof *g);

    *out = (struct optim_groups){ .n = 1, .group = g };
    *g = (struct optim_group){ .param = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *g->param) };
    for (int i = 0; i < s->n_params; i++)
        if (due == STATE_FP32 ? source_weights_map(&s->param[i]) != NULL : s->param[i].state[due] != NULL)
            g->param[g->n++] = s->param[i].name;
}

/*
 * Remove frozen parameters from the groups. AdamW(model.parameters()) lists them too, without states, whereas
 * DeepSpeed's groups contain only trained parameters. A group that becomes empty stays, so that the numbers of
 * groups do not change.
 */
static void leave_out_frozen(const struct source *s, struct optim_groups *groups, struct report *notes)
{
    struct strbuf first = {0};
    int left = 0;

    for (int g = 0; g < groups->n; g++) {
        struct optim_group *x = &groups->group[g];
        int n = 0;

        for (int i = 0; i < x->n; i++) {
            const struct param *p = source_param(s, x->param[i]);

            if (p->state[STATE_EXP_AVG] || p->state[STATE_EXP_AVG_SQ] || !source_weights_map(p))
                x->param[n++] = x->param[i];
            else if (left++ == 0)
                strbuf_addf(&first, "%s", p->name);
        }
        x->n = n;
    }
    if (left)
        report_add(notes, SEV_NOTE, "frozen", s->path, ERR_NO_BYTE, first.buf,
                   "has no moments though a group of the optimizer lists it%s: it is written as a frozen parameter",
                   left > 1 ? ", as others do" : "");
    strbuf_free(&first);
}

static int read_optimizer_groups(struct source *s, const struct zero_synthesis_request *q, struct optim_groups *out,
                                 struct report *notes, struct err *e)
{
    const enum zero_synthesis what = q->what;
    struct optim_groups own = {0};

    if (what == ZERO_SYNTHESIS_WEIGHTS)
        one_group(s, &own, STATE_FP32);
    else if (optim_groups_read(s, s->arena, &own, e) < 0)
        return -1;
    if (what != ZERO_SYNTHESIS_WEIGHTS && s->layout->value_entries && source_has_moments(s))
        leave_out_frozen(s, &own, notes);
    optim_groups_report_rule(s, &own, notes);
    *out = own;
    if (q->like && zero_like_groups(s, q->like, &own, out, notes, e) < 0)
        return -1;
    if (what == ZERO_SYNTHESIS_WEIGHTS)
        return 0;
    if (out->n == 0 && what == ZERO_SYNTHESIS_NAMES)
        one_group(s, out, STATE_EXP_AVG);
    if (what == ZERO_SYNTHESIS_NAMES && !source_has_moments(s)) {
        err_data(e, s->path, ERR_NO_BYTE, "has no moments: a universal form is made of masters and moments; start from "
                 "a checkpoint that has its optimizer states");
        return -1;
    }
    if (out->n == 0) {
        err_data(e, s->path, ERR_NO_BYTE, "does not record the parameters and settings of the optimizer's groups: it "
                                          "cannot be converted to ZeRO%s; --to zero1 or zero2 with --weights-only "
                                          "writes the weights",
                 source_has_moments(s) ? " without an existing checkpoint's (--like)" : "");
        return -1;
    }
    if (s->run.opt_step < 0 && what == ZERO_SYNTHESIS_RANKS) {
        err_data(e, s->path, ERR_NO_BYTE, "has no step of the optimizer that all parameters share: ZeRO keeps one");
        return -1;
    }
    return 0;
}

/* Report missing groups and steps. A form that stores each parameter by its name is made without them. */
static void report_missing_settings(const struct source *s, const struct optim_groups *groups, struct report *notes)
{
    bool said = false;

    for (int g = 0; g < groups->n; g++)
        said = said || groups->group[g].settings;
    if (!said)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "does not record the parameters and settings of the optimizer's groups: all parameters are put into "
                   "one group with the engine's default settings");
    if (groups->how != OPTIM_GROUPS_LISTED)
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL,
                   "has optimizer settings per parameter: parameters with equal settings form a group, %d in total, in "
                   "the model's order; the engine must use the same groups; --like uses the groups and order of "
                   "another checkpoint", groups->n);
    if (s->run.opt_step < 0)
        report_add(notes, SEV_WARNING, "step", s->path, ERR_NO_BYTE, NULL,
                   "has no optimizer step that all parameters share: none is written, and Adam's step counter starts "
                   "at 0");
}

/* Refuse moments of a parameter in no group, because they would be lost silently. */
static int check_moments_have_group(const struct source *s, const struct source *like, struct report *notes,
                                    struct err *e)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].group < 0 && s->param[i].state[STATE_EXP_AVG] && like) {
            report_add(notes, SEV_WARNING, "frozen", s->path, ERR_NO_BYTE, s->param[i].name,
                       "is frozen in the one of --like: its moments are left out");
        } else if (s->param[i].group < 0 && s->param[i].state[STATE_EXP_AVG]) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: has moments, and no group of the optimizer lists it",
                     s->param[i].name);
            return -1;
        }
    return 0;
}

/* ---- model_states ---- */

static struct pk *make_param_shapes_tree(struct source *s, const struct optim_groups *groups)
{
    struct zero_shape x = { .n_groups = groups->n };

    x.group = arena_alloc(s->arena, (size_t)groups->n * sizeof *x.group);
    for (int g = 0; g < groups->n; g++) {
        x.group[g] = zero_order_new_group(s->arena, groups->group[g].n);
        for (int i = 0; i < groups->group[g].n; i++) {
            struct param *p = source_param(s, groups->group[g].param[i]);
            struct zero_slot *slot = &x.group[g].slot[x.group[g].n++];

            p->group = g;
            *slot = (struct zero_slot){ .name = p->name, .ndim = p->ndim };
            memcpy(slot->shape, p->shape, sizeof slot->shape);
        }
    }
    return zero_shape_tree(s->arena, &x);
}

/*
 * Returns a dict of all names. The writer fills in the tensors. With `like` the names are those of `like`, which may
 * have additional ones.
 */
static struct pk *module(struct source *s, const struct source *like, struct pk *buffer_names)
{
    struct pk *d = pk_ordered_dict(s->arena);
    const int64_t none = 0;
    const struct source *by = like ? like : s;

    for (int i = 0; i < by->n_params; i++)
        pk_set_str(s->arena, d, by->param[i].name, pt_new_filled(s->arena, &(struct pt_new){
            .dtype = s->weights, .ndim = 1, .shape = &none }, ""));
    for (int i = 0; i < s->n_values; i++)
        if (s->value[i].buffer) {
            pk_set_str(s->arena, d, s->value[i].name, pk_none(s->arena));
            pk_add(s->arena, buffer_names, pk_str(s->arena, s->value[i].name));
        }
    return d;
}

static struct pk *enabled(struct arena *a, bool on)
{
    struct pk *d = pk_dict(a);

    pk_set_str(a, d, "enabled", pk_bool(a, on));
    return d;
}

static struct pk *config(const struct source *s)
{
    struct pk *d = pk_dict(s->arena), *zero = pk_dict(s->arena);

    pk_set_int(s->arena, zero, "stage", 2);
    pk_set_str(s->arena, d, "zero_optimization", zero);
    pk_set_str(s->arena, d, "bf16", enabled(s->arena, s->weights == DTYPE_BF16));
    pk_set_str(s->arena, d, "fp16", enabled(s->arena, s->weights == DTYPE_F16));
    return d;
}

/* Make the tree with its keys in DeepSpeed's order. */
static struct pk *model_states(struct source *s, const struct source *like, const struct optim_groups *groups)
{
    static const char *const empty[] = { "lr_scheduler", "data_sampler", "random_ltd" };
    struct arena *a = s->arena;
    struct pk *d = pk_dict(a), *buffer_names = pk_list(a);
    const int64_t step = s->run.iteration >= 0 ? s->run.iteration : s->run.opt_step >= 0 ? s->run.opt_step : 0;
    const struct pk *root = like ? pt_root(zero_order_root(like)) : NULL;

    pk_set_str(a, d, "module", module(s, like, buffer_names));
    pk_set_str(a, d, "buffer_names", buffer_names);
    pk_set_str(a, d, "optimizer", pk_none(a));
    pk_set_str(a, d, "param_shapes", make_param_shapes_tree(s, groups));
    pk_set_str(a, d, "frozen_param_shapes", pk_none(a));
    pk_set_str(a, d, "shared_params", like ? pk_copy(a, pk_get(root, "shared_params")) : pk_dict(a));
    pk_set_str(a, d, "frozen_param_fragments", pk_none(a));
    for (int i = 0; i < 3; i++)
        pk_set_str(a, d, empty[i], pk_none(a));
    pk_set_int(a, d, "skipped_steps", 0);
    pk_set_int(a, d, "global_steps", step);
    pk_set_int(a, d, "global_samples", s->run.consumed_samples >= 0 ? s->run.consumed_samples : 0);
    pk_set_int(a, d, "dp_world_size", 1);
    pk_set_int(a, d, "mp_world_size", 1);
    pk_set_str(a, d, "ds_config", like ? pk_copy(a, pk_get(root, "ds_config")) : config(s));
    pk_set_str(a, d, "ds_version", like ? pk_copy(a, pk_get(root, "ds_version")) : pk_str(a, ds_synthesis_version));
    return d;
}

/* ---- the optimizer ---- */

static struct pk *param_groups(const struct source *s, const struct optim_groups *groups)
{
    struct arena *a = s->arena;
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

/* Returns the source's loss scaler, or else the one that DeepSpeed starts with. */
static struct loss_scale scale_of(const struct source *s)
{
    struct loss_scale scale = s->weights == DTYPE_F16 ? loss_scale_dynamic(65536) : loss_scale_static(1);

    if (s->weights == DTYPE_F16)
        loss_scale_read(&scale, pk_get(s->run.optimizer, "loss_scaler"));
    return scale;
}

/*
 * Decide where the counter is stored: as in `like` if it has one, else in the state, where torch's Adam and
 * DeepSpeed's read it.
 */
static void place_step(struct run_state *run, const struct run_state *like)
{
    const bool said = like && like->opt_step >= 0;

    run->step_in_state = run->opt_step >= 0 && (!said || like->step_in_state);
    run->step_is_tensor = !said || like->step_is_tensor;
}

static void make_zero_optimizer(struct source *s, const struct source *like, const struct optim_groups *groups)
{
    struct arena *a = s->arena;
    struct pk *d = pk_dict(a), *base = pk_dict(a), *args = pk_tuple(a), *list = param_groups(s, groups);
    const struct loss_scale scale = scale_of(s);
    const struct pk *clip = pk_get((like ? like : s)->run.optimizer, "clip_grad");

    pk_set_str(a, d, "loss_scaler", loss_scale_write(a, &scale));
    pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, scale.dynamic));
    pk_set_str(a, d, "overflow", pk_bool(a, false));
    pk_set_str(a, d, "clip_grad", clip && pk_is_plain(clip) ? pk_copy(a, clip) : pk_float(a, 0));
    pk_set_str(a, base, "state", pk_dict(a));
    pk_set_str(a, base, "param_groups", list);
    pk_set_str(a, d, "base_optimizer_state", base);
    pk_add(a, args, pk_int(a, 2));
    pk_set_str(a, d, "zero_stage", pk_call(a, pk_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"), args));
    pk_set_str(a, d, "ds_version", pk_str(a, ds_synthesis_version));
    s->run.optimizer = d;
    s->run.param_groups = list;
    s->run.optimizer_pt = NULL;
    place_step(&s->run, like ? &like->run : NULL);
}

/* ---- public functions ---- */

/*
 * Returns true if the source has such trees already, or if it is the pipeline engine's and the target a universal
 * form.
 */
static bool stays(const struct source *s, enum zero_synthesis what)
{
    return s->zero_stage || (what == ZERO_SYNTHESIS_NAMES && s->layout->mp_rank_files);
}

int zero_synthesize_trees(struct source *s, const struct zero_synthesis_request *q, struct report *notes, struct err *e)
{
    const enum zero_synthesis what = q->what;
    struct optim_groups groups;
    struct pk *root;

    if (stays(s, what))
        return 0;
    if (source_one_model(s, e) < 0 || source_in_torch(s, e) < 0)
        return -1;
    split_buffers(s, q->like);
    if (read_optimizer_groups(s, q, &groups, notes, e) < 0)
        return -1;
    s->weights = q->weights != DTYPE_N ? q->weights : q->like ? q->like->weights : common_dtype(s);
    root = model_states(s, q->like, &groups);
    if (what != ZERO_SYNTHESIS_WEIGHTS && check_moments_have_group(s, q->like, notes, e) < 0)
        return -1;
    if (what != ZERO_SYNTHESIS_WEIGHTS) {
        zero_add_client_state(s, root, notes);
        report_missing_settings(s, &groups, notes);
    }
    if (ds_synthesize_file(s, root, e) < 0)
        return -1;
    s->zero_root = s->file[s->n_files - 1].pt;
    if (what != ZERO_SYNTHESIS_WEIGHTS)
        make_zero_optimizer(s, q->like, &groups);
    if (what == ZERO_SYNTHESIS_RANKS && !q->like)
        report_add(notes, SEV_WARNING, "config", s->path, ERR_NO_BYTE, NULL,
                   "has no ds_config: files are laid out for an engine without round_robin_gradients and "
                   "parameter_alignment and with a sub_group_size of 1e9, as they are by default");
    s->run.n_groups = groups.n;
    s->zero_stage = 2;
    s->topo = (struct topology){ .tp = 1, .pp = 1, .dp = 1 };
    return 0;
}
