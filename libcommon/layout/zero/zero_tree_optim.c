/*
 * zero_tree_optim.c - make the trees of optim_states: the vectors of a rank, and the values that describe them
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/engine/zero_groups.h"
#include "libcommon/layout/zero/zero_tree_impl.h"

/* An optim_states file that is being made. */
struct optim {
    const struct zero_target *t;
    struct zero_tree *x;
    struct arena *a;                    /* the tree's arena */
    int rank;
};

/* ---- vectors ---- */

/* Returns this rank's vector of state st of group g. */
static struct pk *vector(struct optim *k, int g, enum state st)
{
    const struct zero_shape *x = &k->t->shape;
    bool lean = k->t->elastic || (st == STATE_FP32 && !k->t->whole);
    int64_t n = lean ? zero_lean(x, g, k->rank) : x->group[g].part, at, skip;
    const enum dtype type = zero_target_vector(k->t, g, st);
    const uint64_t out_size = (uint64_t)dtype_size(type);
    int storage = zero_tree_storage(k->x, (uint64_t)n * out_size);

    for (int i = 0; i < x->group[g].n; i++) {
        const struct zero_slot *s = &x->group[g].slot[i];
        const struct param *p = source_param(k->t->src, s->name);
        int64_t elems = zero_piece(x, g, s, k->rank, &at, &skip);
        int op;
        const struct tmap *m = zero_state_map(p, st, &op);
        uint64_t size = (uint64_t)dtype_size(m->dtype);

        if (elems > 0)
            zero_tree_fill(k->x, &(struct zero_fill){
                .storage = storage, .at = (uint64_t)at * out_size, .map = m,
                .op = m->dtype == type ? PLAN_COPY : (enum plan_op)op,
                .from = (uint64_t)skip * size, .len = (uint64_t)elems * size, .param = source_param_index(k->t->src, p),
                .state = st });
    }
    return zero_tree_vector(k->x, storage, type, n, st == STATE_FP32);
}

static struct pk *masters(struct optim *k)
{
    struct pk *list = pk_list(k->a);

    for (int g = 0; g < k->t->shape.n_groups; g++)
        pk_add(k->a, list, vector(k, g, STATE_FP32));
    return list;
}

/* ---- Adam's state ---- */

/*
 * Returns the number of the state in the source from which the state of the optimizer's group `og` is made. This is
 * `og`, or in ZeRO-3 the number of the group's first sub-group.
 */
static int first_source_group(const struct zero_target *t, int og)
{
    uint32_t n;
    struct pk **item = pk_items(pk_get(adam_list_at(t->param_groups, og), "params"), &n);
    int64_t id;

    return source_zero_stage(t->src) == 3 && item && n && pk_as_int(item[0], &id) ? (int)id : og;
}

/* Returns the state of group g: the source's step counter, and the vectors of the moments. */
static struct pk *make_adam_state_tree(struct optim *k, int g)
{
    const struct pk *was = adam_group_state(k->t->opt, first_source_group(k->t, k->t->group_of[g]));
    const struct run_state *run = source_run(k->t->src);
    struct pk *d = pk_dict(k->a), *step = pk_get(was, "step");

    if (step)
        pk_set_str(k->a, d, "step", zero_tree_copy_value(k->x, step, k->t->opt_pt));
    else if (k->t->step_in_state && k->t->step_is_tensor)
        pk_set_str(k->a, d, "step", pt_new_tensor(k->a, &(struct pt_new){
            .storage = zero_tree_number(k->x, (float)run->opt_step), .dtype = DTYPE_F32, .storage_elems = 1 }));
    else if (k->t->step_in_state)
        pk_set_str(k->a, d, "step", pk_int(k->a, run->opt_step));
    pk_set_str(k->a, d, "exp_avg", vector(k, g, STATE_EXP_AVG));
    pk_set_str(k->a, d, "exp_avg_sq", vector(k, g, STATE_EXP_AVG_SQ));
    return d;
}

/* Returns param_groups: the settings of each optimizer group, and the numbers of its states. */
static struct pk *groups(struct optim *k)
{
    const struct zero_target *t = k->t;
    struct pk *list = pk_list(k->a);

    for (int og = 0; og < t->n_groups; og++) {
        struct pk *d = zero_tree_copy_value(k->x, adam_list_at(t->param_groups, og), t->opt_pt), *ids = pk_list(k->a);

        for (int g = 0; g < t->shape.n_groups; g++)
            if (t->group_of[g] == og)
                pk_add(k->a, ids, pk_int(k->a, g));
        pk_set_str(k->a, d, "params", ids);
        pk_add(k->a, list, d);
    }
    return list;
}

static struct pk *base_state(struct optim *k)
{
    struct pk *d = pk_dict(k->a), *state = pk_dict(k->a), *list = pk_list(k->a);

    for (int g = 0; g < k->t->shape.n_groups; g++)
        if (k->t->elastic)
            pk_add(k->a, list, make_adam_state_tree(k, g));
        else
            pk_set(k->a, state, pk_int(k->a, g), make_adam_state_tree(k, g));
    if (k->t->elastic)
        return list;
    pk_set_str(k->a, d, "state", state);
    pk_set_str(k->a, d, "param_groups", groups(k));
    return d;
}

/* ---- values that follow from the shape ---- */

/* Returns the stage as the source records it: as a number, or as a member of DeepSpeed's ZeroStageEnum. */
static struct pk *stage_value(struct optim *k, const struct pk *was)
{
    struct pk *args = pk_tuple(k->a);
    int64_t n;

    if (pk_as_int(was, &n))
        return pk_int(k->a, k->t->shape.stage);
    pk_add(k->a, args, pk_int(k->a, k->t->shape.stage));
    return pk_call(k->a, pk_global(k->a, "deepspeed.runtime.zero.config", "ZeroStageEnum"), args);
}

static struct pk *make_partition_counts(struct optim *k)
{
    const struct zero_shape *x = &k->t->shape;
    struct pk *list = pk_list(k->a);

    if (x->stage == 3)
        return pk_int(k->a, x->world);
    for (int g = 0; g < x->n_groups; g++)
        pk_add(k->a, list, pk_int(k->a, x->world));
    return list;
}

static struct pk *paddings(struct optim *k)
{
    const struct zero_shape *x = &k->t->shape;
    struct pk *list = pk_list(k->a);

    for (int g = 0; g < x->n_groups; g++)
        pk_add(k->a, list, pk_int(k->a, x->group[g].part - zero_lean(x, g, k->rank)));
    return list;
}

static struct pk *alignments(struct optim *k)
{
    struct pk *list = pk_list(k->a);

    for (int g = 0; g < k->t->shape.n_groups; g++)
        pk_add(k->a, list, zero_alignment_tree(k->a, &k->t->shape, g));
    return list;
}

static struct pk *mappings(struct optim *k)
{
    struct pk *list = pk_list(k->a);

    for (int g = 0; g < k->t->shape.n_groups; g++)
        pk_add(k->a, list, zero_mapping_tree(k->a, &k->t->shape, g, k->rank));
    return list;
}

/* ---- optimizer_state_dict ---- */

/*
 * Returns the threshold of gradient clipping. ZeRO-3 does not save this threshold, but the loaders of the other stages
 * require it.
 */
static struct pk *clip_grad(struct optim *k, const struct pk *was)
{
    double clip = 0;

    if (was)
        return pk_copy(k->a, was);
    pk_as_double(pk_get(pk_get(k->t->root, "ds_config"), "gradient_clipping"), &clip);
    return pk_float(k->a, clip);
}

/*
 * Returns the step counter of the elastic form, because its loader requires one. DeepSpeed's writer of the elastic form
 * omits the counter if the optimizer is torch's Adam.
 */
static struct pk *step_number(struct optim *k)
{
    return source_run(k->t->src)->opt_step >= 0 ? pk_int(k->a, source_run(k->t->src)->opt_step) : NULL;
}

enum optim_part {
    P_STAGE, P_SCALER, P_DYNAMIC, P_OVERFLOW, P_CLIP, P_BASE, P_STEP, P_MASTERS, P_PADDINGS, P_ALIGNMENTS, P_COUNTS,
    P_VERSION, P_MAPPINGS, P_BASE3, P_MASTERS3, P_N
};
static const char *const keys[P_N] = {
    [P_STAGE] = "zero_stage", [P_SCALER] = "loss_scaler", [P_DYNAMIC] = "dynamic_loss_scale", [P_OVERFLOW] = "overflow",
    [P_CLIP] = "clip_grad", [P_BASE] = "base_optimizer_state", [P_STEP] = "base_optimizer_state_step",
    [P_MASTERS] = "single_partition_of_fp32_groups", [P_PADDINGS] = "group_paddings",
    [P_ALIGNMENTS] = "param_alignment_paddings", [P_COUNTS] = "partition_count", [P_VERSION] = "ds_version",
    [P_MAPPINGS] = "param_slice_mappings", [P_BASE3] = "optimizer_state_dict", [P_MASTERS3] = "fp32_flat_groups",
};

static struct pk *part_value(struct optim *k, enum optim_part p, const struct pk *was)
{
    switch (p) {
    case P_STAGE: return stage_value(k, was);
    case P_CLIP: return clip_grad(k, was);
    case P_BASE: case P_BASE3: return base_state(k);
    case P_MASTERS: case P_MASTERS3: return masters(k);
    case P_PADDINGS: return paddings(k);
    case P_ALIGNMENTS: return alignments(k);
    case P_COUNTS: return make_partition_counts(k);
    case P_MAPPINGS: return mappings(k);
    case P_STEP: return was ? zero_tree_copy_value(k->x, was, k->t->opt_pt) : step_number(k);
    case P_VERSION: return zero_tree_copy_value(k->x, was ? was : pk_get(k->t->root, "ds_version"), NULL);
    default: return was ? zero_tree_copy_value(k->x, was, k->t->opt_pt) : NULL;
    }
}

static int optim_key_part(const char *key)
{
    for (int i = 0; i < P_N; i++)
        if (strcmp(key, keys[i]) == 0)
            return i;
    /*
     * In a universal form, the settings are stored under a separate key. Very old versions of DeepSpeed use another key
     * for the paddings.
     */
    return strcmp(key, "param_groups") == 0 || strcmp(key, "groups_padding") == 0 ? P_N : -1;
}

/*
 * Returns true if optimizer_state_dict has part p in the target's stage. BF16_Optimizer stores no stage number. Only
 * newer versions of DeepSpeed write param_alignment_paddings.
 */
static bool has_part(const struct optim *k, enum optim_part p)
{
    static const enum optim_part of3[] = { P_STAGE, P_SCALER, P_DYNAMIC, P_OVERFLOW, P_COUNTS, P_BASE3, P_MASTERS3 };

    for (int i = 0; k->t->shape.stage == 3 && i < 7; i++)
        if (of3[i] == p)
            return true;
    if (k->t->shape.stage == 3 || p == P_BASE3 || p == P_MASTERS3)
        return false;
    if (p == P_STEP)
        return k->t->elastic;
    if (p == P_STAGE)
        return !k->t->whole;
    return true;
}

static struct pk *optimizer_state(struct optim *k)
{
    struct pk *d = pk_dict(k->a);
    uint32_t n = 0;
    struct pk **pair = pk_pairs(k->t->opt, &n);

    for (int p = 0; p < P_N; p++) {
        struct pk *v = has_part(k, (enum optim_part)p)
                           ? part_value(k, (enum optim_part)p, pk_get(k->t->opt, keys[p])) : NULL;

        if (v)
            pk_set_str(k->a, d, keys[p], v);
    }
    for (uint32_t i = 0; pair && i < n; i++)
        if (pk_as_str(pair[2 * i]) && optim_key_part(pk_as_str(pair[2 * i])) < 0)
            pk_set_str(k->a, d, pk_as_str(pair[2 * i]), zero_tree_copy_value(k->x, pair[2 * i + 1], k->t->opt_pt));
    return d;
}

void zero_tree_optim(const struct zero_target *t, int rank, struct arena *keep, struct zero_tree *out)
{
    struct optim k = { .t = t, .x = out, .rank = rank };

    zero_tree_new(out, keep);
    k.a = out->ds.arena;
    pk_set_str(k.a, out->ds.root, "optimizer_state_dict", optimizer_state(&k));
    pk_set_str(k.a, out->ds.root, "ds_config", zero_tree_config(out, t));
    pk_set_str(k.a, out->ds.root, "ds_version", zero_tree_copy_value(out, pk_get(t->root, "ds_version"), NULL));
}
