/*
 * deepspeed_synthesize.c - make the trees of a checkpoint that no trainer has saved
 */
#include "libcommon/layout/deepspeed/deepspeed_synthesize.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/ds_names.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/model/loss_scale.h"

enum { GROUPS = 3 };

static struct pk *make_pk_tuple(struct arena *a, struct pk *x, struct pk *y)
{
    struct pk *t = pk_tuple(a);

    pk_add(a, t, x);
    if (y)
        pk_add(a, t, y);
    return t;
}

/* ---- the mp_rank file ---- */

/*
 * List the parameters in groups: the decaying ones, in two halves by count if there are three groups, then the
 * others.
 */
static struct pk *synthesize_param_shapes(const struct source *s, struct arena *a, int n_groups)
{
    struct ds_group group[GROUPS] = {{0}};
    const struct ds_stage st = { .n_groups = n_groups, .group = group };
    int n_decay = 0, place = 0;

    for (int g = 0; g < n_groups; g++)
        group[g].slice = arena_alloc(a, (size_t)s->n_params * sizeof *group[g].slice + 1);
    for (int i = 0; i < s->n_params; i++)
        n_decay += s->param[i].ndim == 2;
    for (int i = 0; i < s->n_params; i++) {
        const struct param *p = &s->param[i];
        /* Parameters that do not decay (LayerNorms and biases) are vectors. */
        struct ds_group *g = &group[p->ndim != 2 ? n_groups - 1 : n_groups == GROUPS && place >= n_decay / 2];

        g->slice[g->n] = (struct ds_slice){ .name = p->name, .ndim = p->ndim };
        memcpy(g->slice[g->n++].shape, p->shape, sizeof p->shape);
        place += p->ndim == 2;
    }
    return ds_stage_tree(a, &st);
}

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

/* Make the root with the keys in the original order: DeepSpeed's keys, then the trainer's. */
struct pk *ds_synthesize_root(struct arena *a, const struct ds_synthesis *f, struct pk *param_shapes)
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

/* Add mp_rank_00_model_states.pt with this tree, in memory, to the source's files. Returns -1 with ERR_DATA. */
static int ds_synthesize_file(struct source *s, const struct pk *root, struct err *e)
{
    static const char name[] = "mp_rank_00_model_states.pt";
    uint8_t *bytes = NULL, *kept;
    struct source_file *grown;
    uint64_t size;

    if (pt_build("mp_rank_00_model_states", root, NULL, s->files, &bytes, &size, e) < 0)
        return -1;
    kept = arena_alloc(s->arena, size);
    memcpy(kept, bytes, size);
    free(bytes);
    grown = arena_alloc(s->arena, ((size_t)s->n_files + 1) * sizeof *grown);
    if (s->n_files)
        memcpy(grown, s->file, (size_t)s->n_files * sizeof *grown);
    grown[s->n_files] = (struct source_file){ .name = arena_fmt(s->arena, "%s", name), .cls = FILE_OTHER,
                                              .pp = 0, .tp = 0, .dp = -1, .layer = -1 };
    grown[s->n_files].file = files_add_mem(s->files, kept, size, name);
    grown[s->n_files].pt = pt_open(s->files, grown[s->n_files].file, e);
    s->file = grown;
    return s->file[s->n_files++].pt ? 0 : -1;
}

int ds_synthesize_mp(struct source *s, struct arena *a, const struct ds_synthesis *f, struct err *e)
{
    if (ds_synthesize_file(s, ds_synthesize_root(a, f, synthesize_param_shapes(s, a, f->n_groups)), e) < 0)
        return -1;
    s->run.iteration = s->run.consumed_samples = s->run.consumed_tokens = s->run.opt_step = -1;
    s->run.n_groups = f->n_groups;
    run_state_read(s, s->file[s->n_files - 1].pt);
    return 0;
}

/* ---- the optimizer ---- */

/* Make a group of torch's AdamW, which an original run without apex uses. Each save sets the actual settings. */
static struct pk *make_adamw_group(struct arena *a, int g)
{
    struct pk *d = pk_dict(a), *ids = pk_list(a);

    pk_add(a, ids, pk_int(a, g));
    pk_set_str(a, d, "lr", pk_float(a, 0));
    pk_set_str(a, d, "betas", make_pk_tuple(a, pk_float(a, 0.9), pk_float(a, 0.999)));
    pk_set_str(a, d, "eps", pk_float(a, 1e-8));
    pk_set_str(a, d, "weight_decay", pk_float(a, 0));
    pk_set_str(a, d, "amsgrad", pk_bool(a, false));
    pk_set_str(a, d, "foreach", pk_none(a));
    pk_set_str(a, d, "maximize", pk_bool(a, false));
    pk_set_str(a, d, "capturable", pk_bool(a, false));
    pk_set_str(a, d, "params", ids);
    return d;
}

struct pk *ds_synthesize_zero_stage_1(struct arena *a)
{
    return pk_call(a, pk_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
                   make_pk_tuple(a, pk_int(a, 1), NULL));
}

/*
 * Make the optimizer's tree. The parts that every tree needs are made with each shard: states, masters, paddings,
 * counts, mappings.
 */
static struct pk *optimizer(struct arena *a, bool zero_stage_1)
{
    static const char *const lists[] = { "single_partition_of_fp32_groups", "group_paddings", "partition_count" };
    struct pk *d = pk_dict(a), *base = pk_dict(a), *groups = pk_list(a);

    if (zero_stage_1) {
        pk_set_str(a, d, "loss_scaler", loss_scale_write(a, &(struct loss_scale){ .scale = 1 }));
        pk_set_str(a, d, "dynamic_loss_scale", pk_bool(a, false));
        pk_set_str(a, d, "overflow", pk_bool(a, false));
    }
    pk_set_str(a, d, "clip_grad", pk_float(a, 0));
    pk_set_str(a, d, "base_optimizer_state", base);
    for (int i = 0; i < 3; i++) {
        pk_set_str(a, d, lists[i], pk_list(a));
        if (i == 0 && zero_stage_1)
            pk_set_str(a, d, "zero_stage", ds_synthesize_zero_stage_1(a));
    }
    pk_set_str(a, d, "ds_version", pk_str(a, DS_WRITTEN_VERSION));
    pk_set_str(a, d, "param_slice_mappings", pk_list(a));
    for (int g = 0; g < GROUPS; g++)
        pk_add(a, groups, make_adamw_group(a, g));
    pk_set_str(a, base, "state", pk_dict(a));
    pk_set_str(a, base, "param_groups", groups);
    return d;
}

static void synthesize_run_optimizer(struct source *s, bool zero_stage_1)
{
    struct run_state *r = &s->run;

    r->optimizer = optimizer(s->arena, zero_stage_1);
    r->param_groups = pk_get(pk_get(r->optimizer, "base_optimizer_state"), "param_groups");
    r->n_groups = GROUPS;
    r->opt_step = 0;
    r->step_in_state = r->step_is_tensor = true;
    s->zero_stage_1 = zero_stage_1;
}

/* ---- the whole source ---- */

struct source *ds_synthesize_source(const struct param *param, int n_params, const struct ds_synthesis *f,
                                    struct arena *a, bool zero_stage_1, struct err *e)
{
    struct source *s = xcalloc(1, sizeof *s);

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
    if (ds_synthesize_mp(s, a, f, e) < 0) {
        source_close(s);
        return NULL;
    }
    s->config.vocab = f->vocab;
    synthesize_run_optimizer(s, zero_stage_1);
    return s;
}
