/*
 * checkpoint_scratch.c - a checkpoint of one rank, made up in memory
 */
#include <stdlib.h>

#include "libcommon/format/pt.h"
#include "tools/train/checkpoint/checkpoint_impl.h"

/* The version whose files these are, key for key. */
static const char default_version[] = "0.12.6";

static struct pk *tuple2(struct arena *a, struct pk *x, struct pk *y)
{
    struct pk *t = pk_tuple(a);

    pk_add(a, t, x);
    pk_add(a, t, y);
    return t;
}

static int by_id(const void *a, const void *b)
{
    const struct stage_param *x = a, *y = b;

    return x->id - y->id;
}

static struct pk *shape_of(struct arena *a, const struct stage_param *p)
{
    struct pk *dims = pk_tuple(a), *args = pk_tuple(a);

    for (int i = 0; i < p->ndim; i++)
        pk_add(a, dims, pk_int(a, p->shape[i]));
    pk_add(a, args, dims);
    return pk_call(a, pk_global(a, "torch", "Size"), args);
}

/* Three groups: the decaying parameters in two halves by number, then the others (docs/training.md 3.2). */
static struct pk *scratch_shapes(struct arena *a, const struct model_config *m)
{
    int blocks = (int)m->n_layers, n_decay = 0, k = 0;
    struct stage *s = stage_new(m, (struct topology){ 1, 1, 1 }, 0, 0, 0, &blocks);
    struct pk *group[3] = { pk_ordered_dict(a), pk_ordered_dict(a), pk_ordered_dict(a) }, *list = pk_list(a);

    qsort(s->param, (size_t)s->n_params, sizeof *s->param, by_id);
    for (int i = 0; i < s->n_params; i++)
        n_decay += s->param[i].decays;
    for (int i = 0; i < s->n_params; i++) {
        const struct stage_param *p = &s->param[i];

        pk_set_str(a, group[!p->decays ? 2 : k++ >= n_decay / 2], p->name, shape_of(a, p));
    }
    for (int i = 0; i < 3; i++)
        pk_add(a, list, group[i]);
    stage_free(s);
    return list;
}

static struct pk *empty_set(struct arena *a)
{
    struct pk *args = pk_tuple(a);

    pk_add(a, args, pk_list(a));
    return pk_call(a, pk_global(a, "__builtin__", "set"), args);
}

static struct pk *scratch_schedule(struct arena *a)
{
    static const char *const keys[] = { "max_lr", "warmup_steps", "num_steps", "warmup_tokens", "num_tokens",
                                        "decay_style", "decay_steps", "min_lr" };
    struct pk *d = pk_dict(a);

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        pk_set_str(a, d, keys[i], pk_int(a, 0));        /* each save fills them in */
    return d;
}

/* In the genuine order: DeepSpeed's keys, then the trainer's. */
static struct pk *scratch_mp(struct arena *a, const struct model_config *m, const struct pk *args)
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
    pk_set_str(a, d, "param_shapes", scratch_shapes(a, m));
    pk_set_str(a, d, "shared_params", pk_dict(a));
    pk_set_str(a, d, "lr_scheduler", scratch_schedule(a));
    pk_set_str(a, d, "sparse_tensor_module_names", empty_set(a));
    for (size_t i = 0; i < sizeof ints / sizeof *ints; i++)
        pk_set_int(a, d, ints[i], i >= 3);
    pk_set_str(a, d, "ds_config", pk_dict(a));
    pk_set_str(a, d, "ds_version", pk_str(a, default_version));
    pk_set_str(a, d, "args", args ? pk_copy(a, args) : pk_object(a, "argparse", "Namespace", pk_dict(a)));
    pk_set_str(a, d, "checkpoint_version", pk_float(a, 3.0));
    pk_set_int(a, d, "iteration", 0);
    pk_set_int(a, d, "tokens", 0);
    pk_set_int(a, info, "padded_vocab_size", m->vocab);
    pk_set_int(a, info, "original_vocab_size", m->vocab_tokens ? m->vocab_tokens : m->vocab);
    pk_set_str(a, d, "checkpoint_info", info);
    checkpoint_args_of_model(a, pk_get(d, "args"), m);
    return d;
}

/* torch's AdamW, which is what a genuine run without apex has. */
static struct pk *scratch_group(struct arena *a, int g)
{
    struct pk *d = pk_dict(a), *ids = pk_list(a);

    pk_add(a, ids, pk_int(a, g));
    pk_set_str(a, d, "lr", pk_float(a, 0));
    pk_set_str(a, d, "betas", tuple2(a, pk_float(a, 0.9), pk_float(a, 0.999)));
    pk_set_str(a, d, "eps", pk_float(a, 1e-8));
    pk_set_str(a, d, "weight_decay", pk_float(a, 0));
    pk_set_str(a, d, "amsgrad", pk_bool(a, false));
    pk_set_str(a, d, "foreach", pk_none(a));
    pk_set_str(a, d, "maximize", pk_bool(a, false));
    pk_set_str(a, d, "capturable", pk_bool(a, false));
    pk_set_str(a, d, "params", ids);
    return d;
}

static struct pk *zero_stage_1(struct arena *a)
{
    struct pk *args = pk_tuple(a);

    pk_add(a, args, pk_int(a, 1));
    return pk_call(a, pk_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"), args);
}

static struct pk *scratch_shard(struct arena *a, struct memory_storages *st, bool fp16)
{
    struct pk *root = pk_dict(a), *opt = pk_dict(a), *base = pk_dict(a), *state = pk_dict(a), *groups = pk_list(a);
    struct pk *fp32 = pk_list(a), *mapping = pk_list(a), *fragment = pk_dict(a), *one = pk_ordered_dict(a);
    const int64_t none = 0;
    const float step = 0;

    for (int g = 0; g < CHECKPOINT_GROUPS_MAX; g++) {
        struct pk *d = pk_dict(a);

        pk_set_str(a, d, "step", memory_tensor(a, st, &(struct pt_new){ .dtype = DTYPE_F32 }, &step));
        pk_set_str(a, d, "exp_avg", memory_tensor(a, st, &(struct pt_new){ .dtype = DTYPE_F32, .ndim = 1,
                                                                           .shape = &none }, &step));
        pk_set_str(a, d, "exp_avg_sq", memory_tensor(a, st, &(struct pt_new){ .dtype = DTYPE_F32, .ndim = 1,
                                                                              .shape = &none }, &step));
        pk_set(a, state, pk_int(a, g), d);
        pk_add(a, groups, scratch_group(a, g));
        pk_add(a, fp32, memory_tensor(a, st, &(struct pt_new){ .dtype = DTYPE_F32, .ndim = 1, .shape = &none,
                                                               .requires_grad = true }, &step));
    }
    /* Only its class is looked at: the trees of a save make their own. */
    pk_set_int(a, fragment, "numel", 0);
    pk_set_int(a, fragment, "start", 0);
    pk_set_str(a, one, "", pk_object(a, "deepspeed.utils.tensor_fragment", "fragment_address", fragment));
    pk_add(a, mapping, one);
    pk_set_str(a, base, "state", state);
    pk_set_str(a, base, "param_groups", groups);
    if (fp16) {                         /* each save has the true ones */
        pk_set_str(a, opt, "loss_scaler", loss_scale_write(a, &(struct loss_scale){ .scale = 1 }));
        pk_set_str(a, opt, "dynamic_loss_scale", pk_bool(a, false));
        pk_set_str(a, opt, "overflow", pk_bool(a, false));
    }
    pk_set_str(a, opt, "clip_grad", pk_float(a, 0));
    pk_set_str(a, opt, "base_optimizer_state", base);
    pk_set_str(a, opt, "single_partition_of_fp32_groups", fp32);
    if (fp16)
        pk_set_str(a, opt, "zero_stage", zero_stage_1(a));
    pk_set_str(a, opt, "group_paddings", pk_list(a));
    pk_set_str(a, opt, "partition_count", pk_list(a));
    pk_set_str(a, opt, "ds_version", pk_str(a, default_version));
    pk_set_str(a, opt, "param_slice_mappings", mapping);
    pk_set_str(a, root, "optimizer_state_dict", opt);
    pk_set_str(a, root, "ds_config", pk_dict(a));
    pk_set_str(a, root, "ds_version", pk_str(a, default_version));
    return root;
}

void checkpoint_scratch_free(struct checkpoint_scratch *x)
{
    source_close(x->src);
    free(x->mp);
    free(x->shard);
}

int checkpoint_scratch_make(struct checkpoint_scratch *x, const struct checkpoint_saver_opts *o, const struct pk *args,
                            struct err *e)
{
    struct arena *a = arena_new(0);
    struct memory_storages st = {0}, none = {0};
    struct memory_mp mp = {0};
    struct memory_parts parts = { .topo = { 1, 1, 1 }, .weights = o->weights, .n_mp = 1, .mp = &mp,
                                  .bf16_prefix = o->weights == DTYPE_BF16 };
    struct pk *shard = scratch_shard(a, &st, o->weights == DTYPE_F16);

    mp.bytes = x->mp = memory_pt("mp_rank_00_model_states", scratch_mp(a, &o->stage->model, args), &none, &mp.size);
    parts.optimizer = x->shard = memory_pt("shard", shard, &st, &parts.optimizer_size);
    memory_storages_free(&st);
    arena_free(a);
    x->src = memory_source_new(&parts, e);
    return x->src ? 0 : -1;
}
