/*
 * deepspeed_pickles.c - make the trees of the files of a new run
 */
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/engine/deepspeed_shape.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/model/loss_scale.h"

static struct pk *make_pk_tuple(struct arena *a, struct pk *x, struct pk *y)
{
    struct pk *t = pk_tuple(a);

    pk_add(a, t, x);
    if (y)
        pk_add(a, t, y);
    return t;
}

/* ---- the mp_rank file ---- */

static struct pk *schedule(struct arena *a)
{
    static const char *const zeros[] = { "warmup_steps", "num_steps", "warmup_tokens", "num_tokens" };
    struct pk *d = pk_dict(a);

    pk_set_str(a, d, "max_lr", pk_float(a, 0));
    for (int i = 0; i < 4; i++)
        pk_set_int(a, d, zeros[i], 0);
    pk_set_str(a, d, "decay_style", pk_str(a, "cosine"));
    pk_set_int(a, d, "decay_steps", 0);
    pk_set_str(a, d, "min_lr", pk_float(a, 0));
    return d;
}

/*
 * Make the root of an mp_rank file. Its keys are in DeepSpeed's order: DeepSpeed's own keys first, then the trainer's.
 */
struct pk *ds_pickles_mp_root(struct arena *a, const struct ds_new_run *f, struct pk *param_shapes)
{
    static const char *const head[] = { "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes",
                                        "shared_params", "frozen_param_fragments", "lr_scheduler", "data_sampler",
                                        "random_ltd", "sparse_tensor_module_names" };
    static const char *const ints[] = { "skipped_steps", "global_steps", "global_samples", "dp_world_size",
                                        "mp_world_size" };
    struct pk *d = pk_dict(a), *info = pk_dict(a);

    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        pk_set_str(a, d, head[i], pk_none(a));
    pk_set_str(a, d, "buffer_names", pk_list(a));
    pk_set_str(a, d, "param_shapes", param_shapes);
    pk_set_str(a, d, "shared_params", pk_dict(a));
    pk_set_str(a, d, "lr_scheduler", schedule(a));
    pk_set_str(a, d, "sparse_tensor_module_names",
               pk_call(a, pk_global(a, "__builtin__", "set"), make_pk_tuple(a, pk_list(a), NULL)));
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        pk_set_int(a, d, ints[i], i >= 3);
    pk_set_str(a, d, "ds_config", pk_dict(a));
    pk_set_str(a, d, "ds_version", pk_str(a, DS_WRITTEN_VERSION));
    pk_set_str(a, d, "args", f->args);
    pk_set_str(a, d, "checkpoint_version", pk_float(a, 3.0));
    pk_set_int(a, d, "iteration", 0);
    pk_set_int(a, d, "tokens", 0);
    pk_set_int(a, info, "padded_vocab_size", f->vocab);
    pk_set_int(a, info, "original_vocab_size", f->tokens);
    pk_set_str(a, d, "checkpoint_info", info);
    return d;
}

struct pk *ds_pickles_mp(const struct source *s, struct arena *a)
{
    const struct ds_new_run f = { .args = pk_copy(a, s->run.args), .vocab = s->config.vocab,
                                  .tokens = s->config.vocab_tokens };

    return ds_pickles_mp_root(a, &f, ds_shape_groups_tree(s, a));
}

/* ---- the optimizer ---- */

/*
 * Returns the settings of a group of torch's AdamW. The original trainer uses torch's AdamW if apex is missing. The
 * values are set at each save.
 */
static struct pk *make_adamw_settings(struct arena *a)
{
    struct pk *d = pk_dict(a);

    pk_set_str(a, d, "lr", pk_float(a, 0));
    pk_set_str(a, d, "betas", make_pk_tuple(a, pk_float(a, 0.9), pk_float(a, 0.999)));
    pk_set_str(a, d, "eps", pk_float(a, 1e-8));
    pk_set_str(a, d, "weight_decay", pk_float(a, 0));
    pk_set_str(a, d, "amsgrad", pk_bool(a, false));
    pk_set_str(a, d, "foreach", pk_none(a));
    pk_set_str(a, d, "maximize", pk_bool(a, false));
    pk_set_str(a, d, "capturable", pk_bool(a, false));
    return d;
}

struct pk *ds_pickles_zero_stage_1(struct arena *a)
{
    return pk_call(a, pk_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
                   make_pk_tuple(a, pk_int(a, 1), NULL));
}

/*
 * Make the optimizer's tree. The parts that every shard has are left empty here and are made with each shard: states,
 * master weights, paddings, counts, mappings.
 */
struct pk *ds_pickles_optimizer(const struct source *s, struct arena *a)
{
    static const char *const lists[] = { "single_partition_of_fp32_groups", "group_paddings", "partition_count" };
    struct pk *d = pk_dict(a), *base = pk_dict(a), *groups = pk_list(a);

    if (s->zero_stage_1) {
        pk_set_str(a, d, "loss_scaler", loss_scale_write(a, &(struct loss_scale){ .scale = 1 }));
        pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, false));
        pk_set_str(a, d, "overflow", pk_bool(a, false));
    }
    pk_set_str(a, d, "clip_grad", pk_float(a, 0));
    pk_set_str(a, d, "base_optimizer_state", base);
    for (int i = 0; i < 3; i++) {
        pk_set_str(a, d, lists[i], pk_list(a));
        if (i == 0 && s->zero_stage_1)
            pk_set_str(a, d, "zero_stage", ds_pickles_zero_stage_1(a));
    }
    pk_set_str(a, d, "ds_version", pk_str(a, DS_WRITTEN_VERSION));
    pk_set_str(a, d, "param_slice_mappings", pk_list(a));
    for (int g = 0; g < s->groups->n; g++) {
        struct pk *group = pk_copy(a, s->groups->group[g].settings), *ids = pk_list(a);

        pk_add(a, ids, pk_int(a, g));
        pk_set_str(a, group, "params", ids);
        pk_add(a, groups, group);
    }
    pk_set_str(a, base, "state", pk_dict(a));
    pk_set_str(a, base, "param_groups", groups);
    return d;
}

/* ---- the source ---- */

struct source *ds_new_run_source(const struct param *param, int n_params, const struct ds_new_run *f,
                                 bool zero_stage_1)
{
    struct source *s = xcalloc(1, sizeof *s);
    struct optim_groups *groups;

    s->layout = &deepspeed_layout;
    s->read_groups = ds_groups_read;
    s->arena = arena_new(0);
    s->names = arena_alloc(s->arena, sizeof *s->names);
    s->files = files_new();
    s->tag = s->path = arena_fmt(s->arena, "(new checkpoint)");
    s->topo = (struct topology){ .tp = 1, .pp = 1, .dp = 1 };
    s->n_params = n_params;
    s->param = arena_alloc(s->arena, (size_t)n_params * sizeof *s->param + 1);
    memcpy(s->param, param, (size_t)n_params * sizeof *param);
    for (int i = 0; i < n_params; i++)
        s->param[i].name = arena_fmt(s->arena, "%s", param[i].name);
    run_state_begin(s, pk_copy(s->arena, f->args));
    s->config.vocab = f->vocab;
    s->config.vocab_tokens = f->tokens;
    groups = optim_groups_by_decay(s, 3);
    for (int g = 0; g < groups->n; g++)
        groups->group[g].settings = make_adamw_settings(s->arena);
    s->groups = groups;
    s->run.n_groups = groups->n;
    s->run.opt_step = 0;
    s->run.step_in_state = s->run.step_is_tensor = true;
    s->zero_stage_1 = zero_stage_1;
    return s;
}
