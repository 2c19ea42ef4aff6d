/*
 * deepspeed_tree_optim.c - check that the source's optimizer can be written, or make up its settings
 */
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

#include <stdio.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "libcommon/model/schedule_lr.h"

/* Callback for each node of a copied tree. Sets *ctx to true if the node is a tensor's storage. */
static struct pk *find_storage(void *ctx, const struct pk *v)
{
    bool *found = ctx;

    *found |= v->type == PK_PERSID;
    return NULL;
}

static bool only_str_keys(const struct pk *dict)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(dict, &n);

    for (uint32_t i = 0; pair && i < n; i++)
        if (!pk_as_str(pair[2 * i]))
            return false;
    return true;
}

/*
 * Returns true if v contains no tensor. If a value with a tensor were copied unchanged, the tensor would lose its
 * storage.
 */
static bool is_tensor_free(const struct pk *v)
{
    struct arena *a = arena_new(0);
    bool found = false;

    pk_copy_swap(a, v, find_storage, &found);
    arena_free(a);
    return !found;
}

static const char *odd_value(const struct pk *dict, const char *const *ours, int n_ours)
{
    uint32_t n = 0;
    struct pk **pair = pk_pairs(dict, &n);

    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        bool rebuilt = false;

        for (int k = 0; k < n_ours; k++)
            rebuilt |= strcmp(key, ours[k]) == 0 || ds_tree_is_elastic(key);
        if (!rebuilt && !is_tensor_free(pair[2 * i + 1]))
            return key;
    }
    return NULL;
}

static int check_optimizer(const struct source *s, struct err *e)
{
    static const char *const rebuilt[] = { "optimizer_state_dict", "base_optimizer_state",
                                           "single_partition_of_fp32_groups", "state" };
    const struct run_state *r = &s->run;
    const struct pk *base = pk_get(r->optimizer, "base_optimizer_state");
    uint32_t n = 0;
    struct pk **item = pk_items(r->param_groups, &n);
    const char *path = r->optimizer_pt ? pt_path(r->optimizer_pt) : s->path, *key = NULL;
    bool universal = !s->layout->pipeline_files;

    if (!r->optimizer) {
        err_data(e, path, ERR_NO_BYTE, "has no optimizer files; --weights-only converts without them");
        return -1;
    }
    if (base && !pk_get(base, "state")) {
        err_data(e, path, ERR_NO_BYTE, "ZeRO shards in the elastic form (elastic_checkpoint) cannot be resharded "
                                       "directly; convert with ds2universal first, then reshape the result");
        return -1;
    }
    /* A universal form may lack param_groups, which are then made up. */
    if (!(universal && !item) && (universal ? n != 2 && n != 3 : (int)n != r->n_groups)) {
        err_data(e, path, ERR_NO_BYTE, "%u param_groups for %d optimizer groups", n, r->n_groups);
        return -1;
    }
    if (r->step_in_state && r->opt_step < 0) {
        err_data(e, path, ERR_NO_BYTE, "cannot read the step of the optimizer");
        return -1;
    }
    if ((r->optimizer_pt && !only_str_keys(pt_root(r->optimizer_pt))) || !only_str_keys(r->optimizer) ||
        !only_str_keys(base)) {
        err_data(e, path, ERR_NO_BYTE, "a key is not a string: unknown form of optimizer state");
        return -1;
    }
    key = r->optimizer_pt ? odd_value(pt_root(r->optimizer_pt), rebuilt, 4) : NULL;
    key = key ? key : odd_value(r->optimizer, rebuilt, 4);
    key = key ? key : odd_value(base, rebuilt, 4);
    if (key) {
        err_data(e, path, ERR_NO_BYTE, "'%.60s' holds a tensor of an unknown kind, which cannot be resharded", key);
        return -1;
    }
    return 0;
}

/* ---- made-up optimizer settings ---- */

/* Return the run's argument `key`, or `otherwise` if the run does not have it. */
static struct pk *from_args(const struct ds_target *t, const char *key, double otherwise)
{
    const struct pk *v = pk_get(t->src->run.args, key);

    return v && !pk_is_none(v) && is_tensor_free(v) ? pk_copy(t->arena, v) : pk_float(t->arena, otherwise);
}

/*
 * Return the learning rate that the schedule has reached and that the next step uses. Without a schedule, return the
 * highest rate.
 */
static struct pk *rate_now(const struct ds_target *t)
{
    const struct pk *mp = t->mp_root;
    struct schedule_lr lr;

    if (mp && schedule_lr_read(&lr, pk_get(mp, "lr_scheduler"), t->src->run.args))
        return pk_float(t->arena, schedule_lr_now(&lr));
    return from_args(t, "lr", 0);
}

static struct pk *made_group(const struct ds_target *t, int g)
{
    struct arena *a = t->arena;
    struct pk *d = pk_dict(a), *betas = pk_tuple(a), *ids = pk_list(a);

    pk_add(a, betas, from_args(t, "adam_beta1", 0.9));
    pk_add(a, betas, from_args(t, "adam_beta2", 0.999));
    pk_add(a, ids, pk_int(a, g));
    pk_set_str(a, d, "lr", rate_now(t));
    pk_set_str(a, d, "bias_correction", pk_bool(a, true));
    pk_set_str(a, d, "betas", betas);
    pk_set_str(a, d, "eps", from_args(t, "adam_eps", 1e-8));
    pk_set_str(a, d, "weight_decay", g < t->n_groups - 1 ? from_args(t, "weight_decay", 0) : pk_float(a, 0));
    pk_set_str(a, d, "amsgrad", pk_bool(a, false));
    pk_set_str(a, d, "foreach", pk_none(a));
    pk_set_str(a, d, "maximize", pk_bool(a, false));
    pk_set_str(a, d, "capturable", pk_bool(a, false));
    pk_set_int(a, d, "step", t->opt_step);
    pk_set_str(a, d, "params", ids);
    return d;
}

/*
 * Return the step counter that corresponds to the target's iteration. DeepSpeed before 0.13.2 began with an empty step,
 * so its counter is one larger than the iteration.
 */
static int64_t likely_step(const struct ds_target *t)
{
    const struct run_state *r = &t->src->run;
    int major, minor, patch;
    bool new = sscanf(r->ds_version, "%4d.%4d.%4d", &major, &minor, &patch) == 3 &&
               major * 10000 + minor * 100 + patch >= 1302;

    return r->iteration < 0 ? 0 : (t->iteration >= 0 ? t->iteration : r->iteration) + !new;
}

/*
 * Make up the optimizer's tree. For ZeRO stage 1 the tree has no loss scaler; DeepSpeed and `train` then continue with
 * a new one.
 */
static void synthesize_optimizer_tree(struct ds_target *t, struct report *notes)
{
    struct arena *a = t->arena;
    struct pk *d = pk_dict(a), *groups = pk_list(a);

    if (t->opt_step < 0)
        t->opt_step = likely_step(t);
    t->step_in_state = t->step_is_tensor = true;
    for (int g = 0; g < t->n_groups; g++)
        pk_add(a, groups, made_group(t, g));
    if (t->src->zero_stage_1)
        pk_set_str(a, d, "overflow", pk_bool(a, false));
    pk_set_str(a, d, "clip_grad", from_args(t, "clip_grad", 1));
    if (t->src->zero_stage_1)
        pk_set_str(a, d, "zero_stage", ds_pickles_zero_stage_1(a));
    pk_set_str(a, d, "group_paddings", pk_list(a));
    pk_set_str(a, d, "partition_count", pk_list(a));
    pk_set_str(a, d, "ds_version", pk_str(a, *t->src->run.ds_version ? t->src->run.ds_version : "0.0.0"));
    t->opt = t->src->run.optimizer ? t->src->run.optimizer : d;
    t->param_groups = groups;
    report_add(notes, SEV_WARNING, "optimizer", NULL, ERR_NO_BYTE, NULL,
               "IN has no optimizer settings; they are derived from its arguments and schedule, with step %lld",
               (long long)t->opt_step);
}

int ds_tree_optimizer(struct ds_target *t, struct report *notes, struct err *e)
{
    const struct run_state *r = &t->src->run;

    t->opt = r->optimizer;
    t->param_groups = r->param_groups;
    t->step_in_state = r->step_in_state;
    t->step_is_tensor = r->step_is_tensor;
    if (t->made && t->src->groups->group[0].settings) {
        t->opt = ds_pickles_optimizer(t->src, t->arena);
        t->param_groups = pk_get(pk_get(t->opt, "base_optimizer_state"), "param_groups");
        return 0;
    }
    if ((r->optimizer || t->src->layout->pipeline_files) && check_optimizer(t->src, e) < 0)
        return -1;
    if (!r->param_groups)
        synthesize_optimizer_tree(t, notes);
    return 0;
}
