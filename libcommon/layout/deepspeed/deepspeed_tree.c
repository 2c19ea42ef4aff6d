/*
 * deepspeed_tree.c - make the trees of layer files and optimizer shards of a target
 */
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_info.h"
#include "libcommon/model/zero_partition.h"

void ds_tree_renew_int(struct arena *a, struct pk *dict, const char *key, int64_t v)
{
    if (dict && pk_get(dict, key))
        pk_set_int(a, dict, key, v);
}

static void tree_begin(struct ds_tree *x)
{
    *x = (struct ds_tree){ .arena = arena_new(0) };
}

static struct pk *add_tree_tensor(struct ds_tree *x, struct ds_storage st, enum dtype dtype, int ndim,
                                  const int64_t *shape, bool requires_grad)
{
    const struct pt_new t = { .storage = x->n++, .dtype = dtype, .ndim = ndim, .shape = shape,
                              .storage_elems = (int64_t)(st.len / (uint64_t)dtype_size(dtype)),
                              .requires_grad = requires_grad };

    ARRAY_ROOM(x->storage, x->cap, x->n);
    x->storage[t.storage] = st;
    return pt_new_tensor(x->arena, &t);
}

/* ---- layer files ---- */

void ds_tree_layer(const struct ds_target *t, int layer, struct ds_tree *x)
{
    tree_begin(x);
    x->root = pk_ordered_dict(x->arena);
    for (int i = 0; i < t->n_params; i++) {
        const struct ds_tparam *p = &t->param[i];
        struct ds_storage st = { .fill = DS_FILL_WEIGHTS, .param = i, .state = STATE_BF16,
                                 .len = (uint64_t)p->slice_elems * (uint64_t)dtype_size(t->weights) };

        if (p->layer == layer)
            pk_set_str(x->arena, x->root, p->key, add_tree_tensor(x, st, t->weights, p->ndim, p->slice, false));
    }
}

/* ---- optimizer shards ---- */

/* A shard under construction. */
struct shard {
    const struct ds_target *t;
    const struct ds_group *group;      /* groups of its stage */
    int n_groups;
    int dp;
    struct ds_tree *x;
};

/*
 * Return the number of padding elements of group g: F (padded size) minus S (size without padding). Only the last
 * data-parallel rank records it; other ranks record 0.
 */
static int64_t padding(const struct shard *k, int g)
{
    int64_t sum = k->group[g].sum;

    return k->dp == k->t->topo.dp - 1 ? zero_flat_elems(sum, k->t->topo.dp) - sum : 0;
}

/* Make the flat tensor of state st of group g. The master weights of ZeRO-1 are saved without their padding. */
static struct pk *flat_tensor(struct shard *k, int g, enum state st)
{
    int64_t n = k->group[g].partition;
    struct ds_storage storage = { .fill = DS_FILL_FLAT, .group = g, .state = st };

    if (k->t->src->zero_stage_1 && st == STATE_FP32)
        n = n > padding(k, g) ? n - padding(k, g) : 0;
    storage.len = (uint64_t)n * sizeof(float);
    return add_tree_tensor(k->x, storage, DTYPE_F32, 1, &n, st == STATE_FP32);
}

/*
 * Return the number of the source's group that provides the settings of the target's group g. All groups with weight
 * decay have the same settings.
 */
static int group_like(const struct ds_target *t, int g)
{
    uint32_t n = 0;
    int from;

    pk_items(t->param_groups, &n);
    from = (int)n;
    return from == t->n_groups ? g : g == t->n_groups - 1 ? from - 1 : 0;
}

/*
 * Return a step counter in the form of the source's counter `was`: a torch tensor, or an int. ds_tree_set_step() sets
 * its value later.
 */
static struct pk *step_value(struct shard *k, const struct pk *was)
{
    const struct run_state *r = &k->t->src->run;
    struct ds_storage st = { .fill = DS_FILL_BYTES, .len = sizeof(float) };
    struct pt_tensor t;

    if (was ? !pt_tensor(r->optimizer_pt, was, &t) : !k->t->step_is_tensor)
        return pk_int(k->x->arena, 0);
    if (was)
        return add_tree_tensor(k->x, st, DTYPE_F32, t.ndim, t.shape, t.requires_grad);
    return add_tree_tensor(k->x, st, DTYPE_F32, 0, NULL, false);
}

/*
 * Make the state of group g, with its keys in the source's order. A universal source stores step and moments elsewhere
 * and has no such state; in this case the default keys are used.
 */
static struct pk *make_group_adam_state(struct shard *k, int g)
{
    struct arena *a = k->x->arena;
    const struct pk *was = adam_group_state(k->t->opt, group_like(k->t, k->group[g].rule));
    struct pk *d = pk_dict(a), **pair;
    uint32_t n = 0;

    pair = pk_pairs(was, &n);
    if (!pair) {
        if (k->t->step_in_state)
            pk_set_str(a, d, "step", step_value(k, NULL));
        pk_set_str(a, d, "exp_avg", flat_tensor(k, g, STATE_EXP_AVG));
        pk_set_str(a, d, "exp_avg_sq", flat_tensor(k, g, STATE_EXP_AVG_SQ));
    }
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (strcmp(key, "step") == 0)
            pk_set_str(a, d, key, step_value(k, pair[2 * i + 1]));
        else
            pk_set_str(a, d, key, flat_tensor(k, g, strcmp(key, "exp_avg") == 0 ? STATE_EXP_AVG : STATE_EXP_AVG_SQ));
    }
    return d;
}

/*
 * Make one entry of param_groups: the source's settings, and the number of the group's only parameter, the flat
 * buffer.
 */
static struct pk *param_group(struct shard *k, int g)
{
    struct arena *a = k->x->arena;
    uint32_t n = 0;
    struct pk **item = pk_items(k->t->param_groups, &n);
    int like = group_like(k->t, k->group[g].rule);
    struct pk *d = pk_copy(a, item[like]), *ids = pk_list(a);

    pk_add(a, ids, pk_int(a, g));
    pk_set_str(a, d, "params", ids);
    return d;
}

static struct pk *base_optimizer_state(struct shard *k)
{
    struct arena *a = k->x->arena;
    const struct pk *was = pk_get(k->t->opt, "base_optimizer_state");
    struct pk *d = pk_dict(a), *state = pk_dict(a), *groups = pk_list(a), **pair;
    uint32_t n = 0;

    pair = pk_pairs(was, &n);
    /*
     * The states come before the groups, as in torch's state_dict(), so their tensors have the lowest storage numbers.
     */
    for (int g = 0; g < k->n_groups; g++)
        pk_set(a, state, pk_int(a, g), make_group_adam_state(k, g));
    for (int g = 0; g < k->n_groups; g++)
        pk_add(a, groups, param_group(k, g));
    for (uint32_t i = 0; pair && i < n; i++)
        pk_set_str(a, d, pk_as_str(pair[2 * i]), pk_copy(a, pair[2 * i + 1]));
    pk_set_str(a, d, "state", state);
    pk_set_str(a, d, "param_groups", groups);
    return d;
}

/*
 * Find the Python module that defines the class of the slice mappings' entries: the source's, or else the one of its
 * DeepSpeed version. Returns false if no mappings are written.
 */
static bool mapping_class(const struct ds_target *t, const char **module)
{
    const struct pk *was = pk_get(t->opt, "param_slice_mappings");
    uint32_t n = 0, n_pairs = 0;
    struct pk **item = pk_items(was, &n), **pair = item && n ? pk_pairs(item[0], &n_pairs) : NULL;
    int major, minor, patch;

    *module = "deepspeed.utils.tensor_fragment";
    if (pair && n_pairs && pair[1]->type == PK_OBJ && pair[1]->fn->type == PK_GLOBAL) {
        *module = pair[1]->fn->module;
        return true;
    }
    if (t->src->layout->pipeline_files)
        return was != NULL;
    if (sscanf(t->src->run.ds_version, "%4d.%4d.%4d", &major, &minor, &patch) != 3 || major > 0 || minor > 7 ||
        minor == 0)
        return true;
    if (minor < 7 || patch < 3)
        *module = "deepspeed.runtime.bf16_optimizer";
    return minor == 7 || (minor == 6 && patch > 7);
}

static struct pk *slice_mapping(struct shard *k, const char *module, int g)
{
    struct arena *a = k->x->arena;
    const struct ds_group *group = &k->group[g];
    struct pk *d = pk_ordered_dict(a);

    for (int i = 0; i < group->n; i++) {
        const struct ds_slice *p = &group->slice[i];
        int64_t start, skip, n = zero_fragment(p->first, p->n_elems, group->partition, k->dp, &start, &skip);
        struct pk *fragment;

        if (n == 0)
            continue;
        fragment = pk_dict(a);
        pk_set_int(a, fragment, "numel", n);
        pk_set_int(a, fragment, "start", start);
        pk_set_str(a, d, p->name, pk_object(a, module, "fragment_address", fragment));
    }
    return d;
}

bool ds_tree_is_elastic(const char *key)
{
    return strcmp(key, "base_optimizer_state_step") == 0 || strcmp(key, "elastic_checkpoint") == 0;
}

enum tree_part { PART_BASE, PART_FP32, PART_PADDINGS, PART_COUNTS, PART_MAPPINGS, PART_ALIGNMENT, PART_KEEP };

static enum tree_part optimizer_tree_part(const char *key)
{
    static const char *const keys[] = { "base_optimizer_state", "single_partition_of_fp32_groups", "group_paddings",
                                        "partition_count", "param_slice_mappings", "param_alignment_paddings" };

    for (int i = 0; i < PART_KEEP; i++)
        if (strcmp(key, keys[i]) == 0)
            return (enum tree_part)i;
    return strcmp(key, "groups_padding") == 0 ? PART_PADDINGS : PART_KEEP;
}

/*
 * ZeRO-1 since DeepSpeed 0.19 lists the alignment padding after each parameter. Here it is always 0, because the slice
 * mappings assume that parameters follow each other without gaps.
 */
static struct pk *alignment(struct shard *k, int g)
{
    struct pk *zeros = pk_list(k->x->arena);

    for (int i = 0; i < k->group[g].n; i++)
        pk_add(k->x->arena, zeros, pk_int(k->x->arena, 0));
    return zeros;
}

static struct pk *make_part(struct shard *k, enum tree_part part)
{
    struct arena *a = k->x->arena;
    struct pk *list = pk_list(a);
    const char *module = "";

    if (part == PART_BASE)
        return base_optimizer_state(k);
    if (part == PART_MAPPINGS && !mapping_class(k->t, &module))
        return NULL;
    for (int g = 0; g < k->n_groups; g++)
        pk_add(a, list, part == PART_FP32 ? flat_tensor(k, g, STATE_FP32)
                      : part == PART_PADDINGS ? pk_int(a, padding(k, g))
                      : part == PART_COUNTS ? pk_int(a, k->t->topo.dp)
                      : part == PART_ALIGNMENT ? alignment(k, g) : slice_mapping(k, module, g));
    return list;
}

/*
 * Make the optimizer's dict with its keys in DeepSpeed's order. A universal checkpoint lacks three of the keys, so they
 * are added here: two after clip_grad, and one at the end.
 */
static struct pk *optimizer_state_dict(struct shard *k)
{
    struct arena *a = k->x->arena;
    const struct pk *was = k->t->opt;
    bool whole = pk_get(was, "base_optimizer_state") != NULL, made = whole;
    struct pk *d = pk_dict(a), *mappings, **pair;
    uint32_t n = 0;

    pair = pk_pairs(was, &n);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        enum tree_part part = optimizer_tree_part(key);
        struct pk *v = part == PART_KEEP ? pk_copy(a, pair[2 * i + 1]) : make_part(k, part);

        if (!whole && (strcmp(key, "param_groups") == 0 || ds_tree_is_elastic(key)))
            continue;
        if (v)
            pk_set_str(a, d, key, v);
        if (!made && strcmp(key, "clip_grad") == 0) {
            pk_set_str(a, d, "base_optimizer_state", make_part(k, PART_BASE));
            pk_set_str(a, d, "single_partition_of_fp32_groups", make_part(k, PART_FP32));
            made = true;
        }
    }
    if (!made) {
        pk_set_str(a, d, "base_optimizer_state", make_part(k, PART_BASE));
        pk_set_str(a, d, "single_partition_of_fp32_groups", make_part(k, PART_FP32));
    }
    if (!whole && (mappings = make_part(k, PART_MAPPINGS)))
        pk_set_str(a, d, "param_slice_mappings", mappings);
    return d;
}

void ds_tree_set_step(struct ds_tree *x, int64_t step)
{
    const struct pk *base = pk_get(pk_get(x->root, "optimizer_state_dict"), "base_optimizer_state");
    uint32_t n = 0;
    struct pk **pair = pk_pairs(pk_get(base, "state"), &n), **group;
    const float number = (float)step;
    bool in_state = false;

    for (uint32_t g = 0; pair && g < n; g++) {
        struct pk *d = pair[2 * g + 1], *v = pk_get(d, "step");

        in_state |= v != NULL;
        if (v && v->type == PK_INT)
            pk_set_int(x->arena, d, "step", step);
    }
    for (int i = 0; i < x->n; i++)
        if (x->storage[i].fill == DS_FILL_BYTES)
            memcpy(x->storage[i].bytes, &number, sizeof number);
    /*
     * apex keeps the step counter in the groups. DeepSpeed's own optimizer has a constant 0 there, in addition to the
     * real counter.
     */
    group = pk_items(pk_get(base, "param_groups"), &n);
    for (uint32_t g = 0; !in_state && step >= 0 && g < n; g++)
        ds_tree_renew_int(x->arena, group[g], "step", step);
}

/* Return a copy of v, the value of `key`, which is stored next to optimizer_state_dict. */
static struct pk *around_state(const struct shard *k, const char *key, const struct pk *v)
{
    return strcmp(key, "ds_config") == 0 ? ds_info_config(k->x->arena, v, k->t->src->run.args)
                                         : pk_copy(k->x->arena, v);
}

static void make_shard(const struct ds_target *t, int pp, int dp, struct ds_tree *x)
{
    struct shard k = { .t = t, .group = t->stage[pp].group, .n_groups = t->stage[pp].n_groups, .dp = dp, .x = x };
    const struct pk *was = t->src->run.optimizer_pt ? pt_root(t->src->run.optimizer_pt) : NULL;
    const struct pk *mp = t->mp_root;
    struct pk **pair;
    uint32_t n = 0;

    x->root = pk_dict(x->arena);
    if (!pk_get(was, "optimizer_state_dict")) {
        /* A universal source has no shards. The values next to optimizer_state_dict are also in its mp_rank files. */
        pk_set_str(x->arena, x->root, "optimizer_state_dict", optimizer_state_dict(&k));
        for (int i = 0; mp && i < 2; i++) {
            const char *key = i ? "ds_version" : "ds_config";

            if (pk_get(mp, key))
                pk_set_str(x->arena, x->root, key, around_state(&k, key, pk_get(mp, key)));
        }
        return;
    }
    pair = pk_pairs(was, &n);
    for (uint32_t i = 0; i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);
        bool state = strcmp(key, "optimizer_state_dict") == 0;

        pk_set_str(x->arena, x->root, key, state ? optimizer_state_dict(&k) : around_state(&k, key, pair[2 * i + 1]));
    }
}

/* The trees are the same for all tensor ranks of a stage; only the values of the tensors differ. */
void ds_tree_zero(const struct ds_target *t, int pp, int dp, struct ds_tree *x)
{
    tree_begin(x);
    make_shard(t, pp, dp, x);
    ds_tree_set_step(x, t->opt_step);
}
