/*
 * source_facts.c - answer questions about an opened checkpoint
 */
#include "libcommon/ckpt/source_facts.h"

#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"

/* ---- names ---- */

const char *source_layout_name(const struct source *s)
{
    return s->layout->name;
}

char *source_tag_name(const struct source *s, int64_t step)
{
    const struct layout *l = s->layout;

    return l->tag_prefix ? str_fmt("%s%0*lld", l->tag_prefix, l->tag_digits, (long long)step) : NULL;
}

const char *source_manifest_command(const struct source *s)
{
    return s->layout->manifest_writer;
}

char *source_topology_text(const struct source *s)
{
    const struct topology *t = &s->topo;

    if (s->zero_stage && t->tp > 1)
        return str_fmt("ZeRO-%d, %d tensor ranks (AutoTP) of %d ranks each", s->zero_stage, t->tp, t->dp);
    if (s->zero_stage)
        return str_fmt("ZeRO-%d, %d ranks", s->zero_stage, t->dp);
    if (t->tp > 0)
        return str_fmt("TP %d, PP %d, DP %d (%d ranks)", t->tp, t->pp, t->dp, topo_world(*t));
    return NULL;
}

/* ---- two checkpoints ---- */

bool source_same_layout(const struct source *a, const struct source *b)
{
    return a->layout == b->layout;
}

bool source_same_stage(const struct source *a, const struct source *b)
{
    return a->zero_stage == b->zero_stage;
}

bool source_same_form(const struct source *a, const struct source *b)
{
    return a->layout == b->layout && a->zero_stage == b->zero_stage;
}

/* ---- the model ---- */

bool source_has_unknown_family(const struct source *s)
{
    return s->config.n_layers == 0 && (s->layout->any_model || s->zero_stage);
}

bool source_has_own_names(const struct source *s)
{
    return source_has_unknown_family(s) || s->layout->model_folder;
}

bool source_stores_any_model(const struct source *s)
{
    return s->layout->any_model;
}

bool source_is_model_alone(const struct source *s)
{
    return s->layout->model_folder;
}

bool source_stores_weights_alone(const struct source *s)
{
    return s->layout->model_folder || s->layout->weights_alone;
}

bool source_has_cut_tensors(const struct source *s)
{
    return s->layout->cut_files;
}

int source_one_model(const struct source *s, struct err *e)
{
    struct strbuf list = {0};

    if (s->n_models == 0)
        return 0;
    for (int i = 0; i < s->n_models; i++)
        strbuf_addf(&list, "%s%s", i ? ", " : "", *s->model[i] ? s->model[i] : "'' (names without a prefix)");
    err_usage(e, "%s: holds several models; select one with --model PREFIX: %s",
              s->path, list.buf);
    strbuf_free(&list);
    return -1;
}

bool source_lists_shapes(const struct source *s)
{
    return !s->layout->shapes_in_files;
}

/* ---- weights and optimizer ---- */

bool source_is_from_zero(const struct source *s)
{
    return s->zero_stage != 0;
}

int source_zero_stage(const struct source *s)
{
    return s->zero_stage;
}

bool source_masters_alone(const struct source *s)
{
    return s->zero_stage == 3;
}

bool source_has_layer_files(const struct source *s)
{
    return s->layout->pipeline_files;
}

bool source_left_out_masters(const struct source *s)
{
    return s->layout->masters_left_out && s->weights_only;
}

bool source_lost_optimizer(const struct source *s)
{
    return s->layout->zero_files && !s->run.optimizer;
}

bool source_has_zero1_optimizer(const struct source *s)
{
    return s->zero_stage_1;
}

bool source_has_moments(const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].state[STATE_EXP_AVG])
            return true;
    return false;
}

bool source_cuts_weights_by_data_ranks(const struct source *s)
{
    return s->zero_stage == 3 && s->topo.tp <= 1;
}

bool source_has_all_weights(const struct source *s)
{
    for (int i = 0; source_masters_alone(s) && i < s->n_params; i++)
        if (!s->param[i].state[STATE_BF16] && !s->param[i].state[STATE_FP32])
            return false;
    return true;
}

enum dtype source_weights_dtype(const struct source *s)
{
    const struct pk *v = pk_get(s->run.args, "params_dtype");

    if (s->zero_stage)
        return s->weights;
    if (s->n_params && s->param[0].state[STATE_BF16])
        return s->param[0].state[STATE_BF16]->dtype;
    if (source_has_own_names(s) && s->n_params && s->param[0].state[STATE_FP32])
        return DTYPE_F32;
    return pk_is_class(v, "torch", "float16") ? DTYPE_F16 : pk_is_class(v, "torch", "float32") ? DTYPE_F32 : DTYPE_BF16;
}

bool source_states_dtype(const struct source *s, enum dtype *out)
{
    if (s->zero_stage)
        *out = s->weights;
    return s->zero_stage != 0;
}

int source_in_torch(const struct source *s, struct err *e)
{
    for (int i = 0; i < s->n_params * STATE_N; i++) {
        const struct param *p = &s->param[i / STATE_N];
        const struct tmap *m = p->state[i % STATE_N];

        if (!m || dtype_is_in_torch(m->dtype))
            continue;
        err_data(e, s->path, ERR_NO_BYTE, "parameter %s: has type %s, which torch does not have; export-hf writes it "
                                          "to safetensors", p->name, dtype_name(m->dtype));
        return -1;
    }
    return 0;
}

/* ---- how tensors are stored ---- */

bool source_has_entries(const struct source *s)
{
    return s->layout->entries;
}

bool source_stores_pieces_once(const struct source *s)
{
    return s->layout->entries || s->layout->parts_once || (s->layout->zero_files && s->topo.tp <= 1);
}

bool source_has_flat_partitions(const struct source *s)
{
    return s->layout->zero_files || s->layout->pipeline_files;
}

uint64_t source_padding_limit(const struct source *s)
{
    return s->layout->pipeline_files && s->topo.dp > 0 ? 2 * (uint64_t)s->topo.dp : 0;
}

bool source_joins_tensor_ranks(const struct source *s)
{
    return s->layout->zero_files && s->topo.tp > 1;
}

bool source_points_elsewhere(const struct source *s)
{
    return s->layout->points_only;
}

/* ---- the files ---- */

const struct source_file *source_file_at(const struct source *s, int i)
{
    return &s->file[i];
}

bool source_file_is_zip(const struct source *s, int i)
{
    const char *name = s->file[i].name;

    return str_ends(name, ".pt") || (s->layout->bin_is_torch && str_ends(name, ".bin"));
}

bool source_has_checksums(const struct source *s)
{
    return !s->layout->datasets;
}

bool source_opens_with_holes(const struct source *s)
{
    return s->layout->opens_with_holes;
}

bool source_accepts_mismatch(const struct source *s)
{
    return s->accept_mismatch;
}
