/*
 * deepspeed_tree.c - make the tree of each file of a target from the source's own trees
 */
#include "libcommon/layout/deepspeed/deepspeed_tree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/adam_state.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/deepspeed/deepspeed_edit.h"
#include "libcommon/layout/deepspeed/deepspeed_info.h"
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "libcommon/model/schedule_lr.h"
#include "libcommon/model/zero_partition.h"

/* Set an integer only if the key exists, for keys that not every version writes. */
static void renew_int(struct arena *a, struct pk *dict, const char *key, int64_t v)
{
    if (dict && pk_get(dict, key))
        pk_set_int(a, dict, key, v);
}

static void tree_begin(struct ds_tree *x)
{
    *x = (struct ds_tree){ .arena = arena_new(0) };
}

void ds_tree_free(struct ds_tree *x)
{
    arena_free(x->arena);
    free(x->storage);
    memset(x, 0, sizeof *x);
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

/* Return the padding F - S, which is recorded on the last data-parallel rank only. */
static int64_t padding(const struct shard *k, int g)
{
    int64_t sum = k->group[g].sum;

    return k->dp == k->t->topo.dp - 1 ? zero_flat_elems(sum, k->t->topo.dp) - sum : 0;
}

/* Make a flat tensor. Masters of ZeRO-1 are saved without their padding. */
static struct pk *flat_tensor(struct shard *k, int g, enum state st)
{
    int64_t n = k->group[g].partition;
    struct ds_storage storage = { .fill = DS_FILL_FLAT, .group = g, .state = st };

    if (k->t->src->zero_stage_1 && st == STATE_FP32)
        n = n > padding(k, g) ? n - padding(k, g) : 0;
    storage.len = (uint64_t)n * sizeof(float);
    return add_tree_tensor(k->x, storage, DTYPE_F32, 1, &n, st == STATE_FP32);
}

/* Return the source's group whose settings group g of the target uses. All decaying groups share their settings. */
static int group_like(const struct ds_target *t, int g)
{
    uint32_t n = 0;
    int from;

    pk_items(t->param_groups, &n);
    from = (int)n;
    return from == t->n_groups ? g : g == t->n_groups - 1 ? from - 1 : 0;
}

/* Return a counter in the source's form: a torch tensor, or an int. ds_tree_set_step() sets the value. */
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

/* Make state[g] with the source's order of keys. A universal source stores step and moments elsewhere. */
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

/* Make one param_groups entry: the source's settings, and the number of its only parameter, the flat buffer. */
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
    /* State first, as in torch's state_dict(): its tensors have the lowest numbers. */
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
 * Find the class of the slice mappings' entries: as in the source, or by its DeepSpeed version. Returns false if none
 * are written.
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

/* Returns true for keys of the elastic form, which mark that state and counter are stored differently. */
static bool is_elastic(const char *key)
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
 * ZeRO-1 since DeepSpeed 0.19 lists the padding between parameters. Here it is always 0; otherwise the slice mappings
 * would not follow the rule.
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

/* The universal form drops three keys. They are put back: two after clip_grad, and one at the end. */
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

        if (!whole && (strcmp(key, "param_groups") == 0 || is_elastic(key)))
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
     * apex counts in the groups; DeepSpeed's own optimizer keeps a constant 0 there in addition to the real counter.
     */
    group = pk_items(pk_get(base, "param_groups"), &n);
    for (uint32_t g = 0; !in_state && step >= 0 && g < n; g++)
        renew_int(x->arena, group[g], "step", step);
}

/* Copy a value that is stored next to optimizer_state_dict. */
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
        /* For a universal source, the values around the state are in the mp_rank files as well. */
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

/* The trees of tensor ranks are the same; only the values differ. */
void ds_tree_zero(const struct ds_target *t, int pp, int dp, struct ds_tree *x)
{
    tree_begin(x);
    make_shard(t, pp, dp, x);
    ds_tree_set_step(x, t->opt_step);
}

/* ---- check that the optimizer can be written ---- */

/* Called for each node of a copy. */
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

/* Returns true if a value that is copied unchanged holds no tensor, whose storage would be lost. */
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
            rebuilt |= strcmp(key, ours[k]) == 0 || is_elastic(key);
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
        err_data(e, path, ERR_NO_BYTE, "has no optimizer shards; --weights-only does without");
        return -1;
    }
    if (base && !pk_get(base, "state")) {
        err_data(e, path, ERR_NO_BYTE, "elastic ZeRO shards (elastic_checkpoint) cannot be written again; ds2universal "
                 "reads them, and what it makes can be reshaped");
        return -1;
    }
    /* A universal form may lack them; they are made up in that case. */
    if (!(universal && !item) && (universal ? n != 2 && n != 3 : (int)n != r->n_groups)) {
        err_data(e, path, ERR_NO_BYTE, "%u param_groups for %d optimizer groups", n, r->n_groups);
        return -1;
    }
    if (r->step_in_state && r->opt_step < 0) {
        err_data(e, path, ERR_NO_BYTE, "the optimizer's step cannot be read");
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
        err_data(e, path, ERR_NO_BYTE, "'%.60s' holds a tensor that cannot be resharded", key);
        return -1;
    }
    return 0;
}

/* ---- made-up optimizer settings ---- */

/* Return an argument of the run, or a default. */
static struct pk *from_args(const struct ds_target *t, const char *key, double otherwise)
{
    const struct pk *v = pk_get(t->src->run.args, key);

    return v && !pk_is_none(v) && is_tensor_free(v) ? pk_copy(t->arena, v) : pk_float(t->arena, otherwise);
}

/*
 * Return the learning rate that the schedule has reached, which the next step uses. Without a schedule, returns the
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

/* DeepSpeed before 0.13.2 began with an empty step, so its counter is one ahead of the iteration. */
static int64_t likely_step(const struct ds_target *t)
{
    const struct run_state *r = &t->src->run;
    int major, minor, patch;
    bool new = sscanf(r->ds_version, "%4d.%4d.%4d", &major, &minor, &patch) == 3 &&
               major * 10000 + minor * 100 + patch >= 1302;

    return r->iteration < 0 ? 0 : (t->iteration >= 0 ? t->iteration : r->iteration) + !new;
}

/*
 * Make up the optimizer's tree. For ZeRO stage 1 it has no loss scaler: DeepSpeed and `train` then continue with a
 * new one.
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
               "the source keeps no optimizer settings: they are made from its arguments and schedule, with step %lld",
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

/* ---- mp_rank files ---- */

/* Sequence-parallel ranks of Microsoft's fork hold shards like data-parallel ranks, so DP counts both. */
static void renew_data_degree(const struct ds_target *t, struct arena *a, struct pk *args)
{
    int64_t sp = 1;

    if (pk_as_int(pk_get(args, "ds_sequence_parallel_size"), &sp) && (sp < 1 || t->topo.dp % sp)) {
        sp = 1;
        pk_set_int(a, args, "ds_sequence_parallel_size", sp);
    }
    renew_int(a, args, "data_parallel_size", t->topo.dp / sp);
}

static void renew_args(const struct ds_target *t, struct arena *a, struct pk *args, int pp, int tp)
{
    int rank = topo_rank(t->topo, pp, 0, tp);
    int64_t other;

    renew_int(a, args, "rank", rank);
    renew_int(a, args, "local_rank", t->local_ranks ? rank % t->local_ranks : rank);
    renew_int(a, args, "world_size", topo_world(t->topo));
    renew_data_degree(t, a, args);
    renew_int(a, args, "tensor_model_parallel_size", t->topo.tp);
    renew_int(a, args, "pipeline_model_parallel_size", t->topo.pp);
    /* Names that other forks use for the same values. */
    if (pk_as_int(pk_get(args, "model_parallel_size"), &other))
        pk_set_int(a, args, "model_parallel_size", t->topo.tp);
    if (pk_as_int(pk_get(args, "transformer_pipeline_model_parallel_size"), &other))
        pk_set_int(a, args, "transformer_pipeline_model_parallel_size", t->topo.pp);
    renew_int(a, args, "padded_vocab_size", t->vocab);
    if (t->method && pk_get(args, "pp_partition_method"))
        pk_set_str(a, args, "pp_partition_method", pk_str(a, t->method));
    if (t->iteration >= 0)
        renew_int(a, args, "iteration", t->iteration);
    if (!t->optimizer && args)
        pk_set_str(a, args, "no_save_optim", pk_bool(a, true));
}

/* Only global rank 0 lists tied aliases. Files of other ranks that are made from its image must not. */
static struct pk *shared_params(const struct ds_target *t, struct arena *a, int pp, int tp)
{
    const struct pk *v = pk_get(t->mp_root, "shared_params");

    return !v ? NULL : pp == 0 && tp == 0 ? pk_copy(a, v) : pk_dict(a);
}

static struct pk *make_mp_rank_root(const struct ds_target *t, struct arena *a, const struct pk *from, int pp, int tp)
{
    struct pk *root = pk_copy(a, from), *shared = shared_params(t, a, pp, tp);

    pk_set_str(a, root, "param_shapes", ds_stage_tree(a, &t->stage[pp]));
    if (shared)
        pk_set_str(a, root, "shared_params", shared);
    renew_int(a, root, "dp_world_size", t->topo.dp);
    renew_int(a, root, "mp_world_size", t->topo.pp * t->topo.tp);
    renew_int(a, pk_get(root, "checkpoint_info"), "padded_vocab_size", t->vocab);
    ds_info_renew(t, a, root);
    if (t->iteration >= 0) {
        renew_int(a, root, "iteration", t->iteration);
        renew_int(a, root, "global_steps", t->iteration);
    }
    renew_args(t, a, pk_get(root, "args"), pp, tp);
    ds_edits_apply(t, a, root);
    return root;
}

struct pk *ds_tree_mp(const struct ds_target *t, struct arena *a, int pp, int tp, const struct pt **tensors,
                      struct err *e)
{
    const struct source *s = t->src;
    const struct source_file *from = ds_mp_file(s, pp % s->topo.pp, tp % s->topo.tp);

    *tensors = from ? from->pt : NULL;
    if (from || t->made)
        return make_mp_rank_root(t, a, from ? pt_root(from->pt) : t->mp_root, pp, tp);
    err_data(e, s->path, ERR_NO_BYTE, "the mp_rank file of stage %d, tensor rank %d is missing", pp % s->topo.pp,
             tp % s->topo.tp);
    return NULL;
}
