/*
 * edit_cast.c - change the type flags in trees, and convert the optimizer's dict to another type
 */
#include "libcommon/layout/edit/edit_cast.h"

#include <math.h>
#include <string.h>

#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "libcommon/layout/tree_edit.h"
#include "libcommon/model/loss_scale.h"

/* ---- flags ---- */

void edit_cast_config(struct arena *a, struct pk *config, enum dtype to)
{
    static const struct { const char *key; enum dtype dtype; } blocks[] = {
        { "fp16", DTYPE_F16 }, { "bf16", DTYPE_BF16 }, { "bfloat16", DTYPE_BF16 },
    };
    bool there = false;
    struct pk *made;

    if (!config || config->type != PK_DICT)
        return;
    for (int i = 0; i < 3; i++) {
        struct pk *block = pk_get(config, blocks[i].key);

        if (block && block->type == PK_DICT)
            pk_set_str(a, block, "enabled", pk_bool(a, blocks[i].dtype == to));
        there = there || (block && blocks[i].dtype == to);
    }
    if (there || to == DTYPE_F32)
        return;
    made = pk_dict(a);
    pk_set_str(a, made, "enabled", pk_bool(a, true));
    pk_set_str(a, config, to == DTYPE_F16 ? "fp16" : "bf16", made);
}

void edit_cast_model(struct arena *a, struct pk *root, enum dtype to)
{
    static const char *const configs[] = { "args.deepspeed_configuration", "ds_config" };
    const bool half = to == DTYPE_F16;

    tree_put(a, root, "args.bf16", pk_bool(a, !half));
    tree_put(a, root, "args.fp16", pk_bool(a, half));
    tree_put(a, root, "args.params_dtype", pk_global(a, "torch", half ? "float16" : "bfloat16"));
    tree_put(a, root, "args.zero_stage", pk_int(a, half));
    for (int i = 0; i < 2; i++) {
        struct pk *config = tree_find(root, configs[i], NULL);

        edit_cast_config(a, config, to);
        if (config && config->type == PK_DICT)
            tree_put(a, config, "zero_optimization.stage", pk_int(a, half));
    }
}

/* ---- the optimizer ---- */

static double pk_double_or_default(const struct pk *block, const char *key, double otherwise)
{
    double v;

    return pk_as_double(pk_get(block, key), &v) ? v : otherwise;
}

/* Returns the loss scaler that DeepSpeed creates for a new run with this configuration. */
static struct loss_scale make_new_loss_scale(const struct pk *config)
{
    const struct pk *block = pk_get(config, "fp16");
    const double fixed = pk_double_or_default(block, "loss_scale", 0);
    struct loss_scale s = loss_scale_dynamic(ldexp(1, (int)pk_double_or_default(block, "initial_scale_power", 16)));

    if (fixed > 0)
        return loss_scale_static(fixed);
    s.window = (int64_t)pk_double_or_default(block, "loss_scale_window", 1000);
    s.hysteresis = s.left = (int64_t)pk_double_or_default(block, "hysteresis", 2);
    s.min = pk_double_or_default(block, "min_loss_scale", 1);
    s.consecutive = pk_double_or_default(block, "consecutive_hysteresis", 0) != 0;
    return s;
}

/* Returns true if `key` exists only in the dict of the fp16 optimizer. */
static bool is_of_fp16(const char *key)
{
    return strcmp(key, "loss_scaler") == 0 || strcmp(key, "dynamic_loss_scale") == 0 || strcmp(key, "overflow") == 0 ||
           strcmp(key, "zero_stage") == 0;
}

/*
 * Make the dict of the result, with its keys in DeepSpeed's order: the loss scaler first, and zero_stage after the fp32
 * master weights. A universal form has no master weights in this dict; there, zero_stage follows clip_grad.
 */
struct pk *edit_cast_optimizer(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to)
{
    const char *before = pk_get(opt, "single_partition_of_fp32_groups") ? "single_partition_of_fp32_groups"
                                                                        : "clip_grad";
    const struct loss_scale scale = make_new_loss_scale(config);
    struct pk *d = pk_dict(a), **pair;
    uint32_t n = 0;

    if (to == DTYPE_F16) {
        pk_set_str(a, d, "loss_scaler", loss_scale_write(a, &scale));
        pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, scale.dynamic));
        pk_set_str(a, d, "overflow", pk_bool(a, false));
    }
    pair = pk_pairs(opt, &n);
    for (uint32_t i = 0; pair && i < n; i++) {
        const char *key = pk_as_str(pair[2 * i]);

        if (!key || is_of_fp16(key))
            continue;
        pk_set_str(a, d, key, pair[2 * i + 1]);
        if (to == DTYPE_F16 && strcmp(key, before) == 0)
            pk_set_str(a, d, "zero_stage", ds_pickles_zero_stage_1(a));
    }
    if (to == DTYPE_F16 && !pk_get(d, "zero_stage"))
        pk_set_str(a, d, "zero_stage", ds_pickles_zero_stage_1(a));
    return d;
}

struct pk *edit_cast_zero(struct arena *a, const struct pk *opt, const struct pk *config, enum dtype to)
{
    const struct loss_scale scale = to == DTYPE_F16 ? make_new_loss_scale(config) : loss_scale_static(1);
    struct pk *d = pk_dict(a), *stage = pk_get(opt, "zero_stage"), **pair;
    uint32_t n = 0;

    pk_set_str(a, d, "loss_scaler", loss_scale_write(a, &scale));
    pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, scale.dynamic));
    pk_set_str(a, d, "overflow", pk_bool(a, false));
    pk_set_str(a, d, "zero_stage", stage ? stage : ds_pickles_zero_stage_1(a));
    pair = pk_pairs(opt, &n);
    for (uint32_t i = 0; pair && i < n; i++)
        if (!pk_as_str(pair[2 * i]) || !is_of_fp16(pk_as_str(pair[2 * i])))
            pk_set(a, d, pair[2 * i], pair[2 * i + 1]);
    return d;
}
