/*
 * layout_write.c - describe a source as another layout, in steps
 */
#include "libcommon/layout/layout_write.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/ckpt/optim_groups.h"
#include "libcommon/layout/ds_request.h"
#include "libcommon/layout/hf/check/hf_claims.h"
#include "libcommon/layout/hf/check/hf_settings.h"
#include "libcommon/layout/hf/hf_layers.h"
#include "libcommon/layout/hf/hf_names.h"
#include "libcommon/layout/hf/hf_saved.h"
#include "libcommon/layout/hf/hf_shards.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/staging.h"

/* ---- groups of the optimizer under other names ---- */

/*
 * Read the optimizer's groups, and store the number of its group in each parameter. Pieces that are made from a
 * parameter inherit the number.
 */
static int mark_groups(struct source *s, struct optim_groups *g, struct err *e)
{
    if (optim_groups_adam_alone(s, e) < 0 || optim_groups_read(s, s->arena, g, e) < 0)
        return -1;
    for (int i = 0; i < s->n_params; i++)
        s->param[i].group = -1;
    for (int k = 0; k < g->n; k++)
        for (int i = 0; i < g->group[k].n; i++)
            source_param(s, g->group[k].param[i])->group = k;
    return 0;
}

/*
 * Returns the settings of a group for programs that do not know Megatron's factor wd_mult. If the factor is 0, the
 * weight decay in the result is 0, whatever the group's own setting is.
 */
static const struct pk *apply_decay_factor(struct arena *a, const struct pk *settings)
{
    struct pk *applied;
    double factor = 1;

    if (!pk_as_double(pk_get(settings, "wd_mult"), &factor) || factor != 0)
        return settings;
    applied = pk_copy(a, settings);
    pk_set_str(a, applied, "weight_decay", pk_float(a, 0));
    return applied;
}

/* Make the lists of the groups' parameters from the numbers stored in the parameters. These numbers are removed. */
static void list_marked_groups(struct source *s, const struct optim_groups *g)
{
    struct optim_groups *to = arena_alloc(s->arena, sizeof *to);

    *to = *g;
    to->group = arena_alloc(s->arena, ((size_t)g->n + 1) * sizeof *to->group);
    for (int k = 0; k < g->n; k++)
        to->group[k] = (struct optim_group){ apply_decay_factor(s->arena, g->group[k].settings), 0,
                                             arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof(char *)) };
    for (int i = 0; i < s->n_params; i++) {
        struct param *p = &s->param[i];

        if (p->group >= 0)
            to->group[p->group].param[to->group[p->group].n++] = p->name;
        p->group = -1;
    }
    s->groups = to;
    s->read_groups = NULL;
}

/* ---- names of Megatron-core for names of Transformers ---- */

/*
 * Returns true if the parameters have the names of a model family in Transformers, but the layout `to` requires the
 * names of Megatron-core. The names are known to be those of Transformers if the source is a model folder, if its
 * settings became a config.json, or if --config or --rules is given.
 */
static bool needs_core_names(const struct layout *to, const struct source *s, const struct write_request *q)
{
    const bool is_named = s->layout->model_folder || s->config_json || q->rules || q->config;

    if (!to->core_names || s->layout->core_names || !is_named)
        return false;
    /* a folder that was exported with the names of Megatron-core keeps its names */
    for (int i = 0; i < s->n_params; i++)
        if (str_starts(s->param[i].name, "decoder.layers."))
            return false;
    return true;
}

static json_t *read_requested_config(const struct source *s, const struct write_request *q, struct err *e)
{
    json_error_t why;
    char *file = q->config ? hf_config_file(q->config) : NULL;
    json_t *o = file ? json_load_file(file, 0, &why) : hf_config_json(s, e);

    free(file);
    if (e->kind != ERR_NONE || json_is_object(o))
        return o;
    if (q->config)
        err_usage(e, "--config: the file must hold a JSON object: %s: %s", q->config, o ? "another value" : why.text);
    else
        err_usage(e, "%s: has no config.json; give one with --config FILE", s->path);
    json_decref(o);
    return NULL;
}

static struct family *find_requested_family(const struct source *s, const struct write_request *q, const json_t *config,
                                            struct err *e)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    struct family *f = hf_find_family(q->rules, config, e);

    if (!f && e->kind == ERR_NONE)
        err_usage(e, "%s: there are no rules for models of the type '%.60s' (model_type in config.json); --rules "
                     "selects a family or a file of rules", s->path, type ? type : "");
    return f;
}

/* Check that q->topo.tp divides the number of rows of the vocabulary. Add a note if Megatron would add padding rows. */
static int check_vocab_rows(const struct source *s, const struct ds_request *q, const struct hf_sizes *z,
                            struct report *notes, struct err *e)
{
    enum { DIVISIBLE_BY = 128 };
    const int64_t rows = q->vocab ? q->vocab : z->vocab;

    if (q->topo.tp && rows % q->topo.tp != 0) {
        err_usage(e, "%s: --target-tp: %d tensor-parallel ranks do not divide the %lld rows of the vocabulary; "
                     "--pad-vocab-size-to adds rows", s->path, q->topo.tp, (long long)rows);
        return -1;
    }
    if (rows % DIVISIBLE_BY != 0)
        report_add(notes, SEV_NOTE, "vocabulary", NULL, ERR_NO_BYTE, NULL,
                   "the vocabulary has %lld rows, not a multiple of %d as Megatron expects by default; "
                   "--pad-vocab-size-to adds rows, or start Megatron with another --make-vocab-size-divisible-by",
                   (long long)rows,
                   DIVISIBLE_BY);
    return 0;
}

/*
 * Check that config.json describes the parameters, which must have the names of Transformers. `transposed` is the same
 * as in hf_check_layers(). Returns -1 with ERR_DATA if the two contradict each other; the error is the first
 * contradiction.
 */
static int compare_with_config(const struct source *s, const json_t *config, const bool *transposed, struct err *e)
{
    struct report *r = report_new();
    int rc = 0;

    hf_check_claims(s, config, true, SEV_ERROR, r);
    hf_check_layers(s, config, transposed, SEV_ERROR, r);
    hf_check_settings(s, config, transposed, SEV_ERROR, r);
    for (int i = 0; i < report_n(r) && rc == 0; i++)
        if (report_get(r, i)->severity == SEV_ERROR) {
            const struct finding *f = report_get(r, i);

            err_data(e, s->path, ERR_NO_BYTE, "%s%s%s%s", f->param ? "parameter " : "", f->param ? f->param : "",
                     f->param ? ": " : "", f->text);
            rc = -1;
        }
    report_free(r);
    return rc;
}

/*
 * Compare the groups with those that Megatron makes: one for parameters with weight decay, and one for biases and
 * vectors. Loaders of Megatron-core identify a group by its factor of weight decay. Other groups are therefore refused,
 * and a single group is a warning. Groups that have Megatron's own marks are always accepted.
 */
static int check_groups_by_rule(const struct source *s, struct report *notes, struct err *e)
{
    const struct optim_groups *g = s->groups;
    int vectors = -1;
    bool marked = true;

    for (int k = 0; g && k < g->n; k++)
        marked = marked && pk_get(g->group[k].settings, "wd_mult");
    if (!g || marked)
        return 0;
    if (g->n == 1) {
        report_add(notes, SEV_WARNING, "groups", s->path, ERR_NO_BYTE, NULL, "the optimizer has one group; Megatron "
                   "makes a second one, without weight decay, of biases and vectors");
        return 0;
    }
    for (int k = 0; k < g->n && g->n <= 2; k++)
        for (int i = 0; i < g->group[k].n; i++) {
            const struct param *p = source_param(s, g->group[k].param[i]);
            const int of_vectors = p->ndim == 1 || str_ends(p->name, ".bias") ? k : !k;

            if (vectors >= 0 && vectors != of_vectors) {
                err_data(e, s->path, ERR_NO_BYTE, "parameter %s: is in another group of the optimizer than Megatron "
                         "puts it in (biases and vectors have no weight decay); --weights-only converts the weights",
                         p->name);
                return -1;
            }
            vectors = of_vectors;
        }
    if (g->n <= 2)
        return 0;
    err_data(e, s->path, ERR_NO_BYTE, "the optimizer has %d groups, but Megatron makes two, with and without weight "
             "decay; --weights-only converts the weights", g->n);
    return -1;
}

/* Returns the options for transposed matrices, whose spool file is in `parent`, the parent folder of q->out. */
static struct hf_source_opts spool_opts(const struct write_request *q, const char *parent)
{
    return (struct hf_source_opts){ .repeat_to = q->shards ? q->shards->vocab : 0,
                                    .spool_dir = q->dry_run ? NULL : parent,
                                    .threads = q->threads, .mem_bytes = q->mem_bytes, .progress = q->progress,
                                    .stopped = q->stopped };
}

/* Give the source's parameters the names and shapes of Megatron-core, by the rules of their model family. */
static int give_core_names(struct source *s, const struct write_request *q, struct report *notes, struct err *e)
{
    char *parent = path_parent(q->out);
    const struct hf_source_opts o = spool_opts(q, parent);
    json_t *config = read_requested_config(s, q, e);
    struct family *f = config ? find_requested_family(s, q, config, e) : NULL;
    struct optim_groups g = {0};
    struct hf_sizes z;
    int rc = -1;

    /* Check that OUT may be written, before hf_to_shards() fills a spool file. */
    if (f && hf_sizes_read(config, q->config ? q->config : s->path, &z, e) == 0 &&
        check_vocab_rows(s, q->shards, &z, notes, e) == 0 &&
        (q->dry_run || q->resume || staging_check_out(q->out, q->force, e) == 0) &&
        mark_groups(s, &g, e) == 0 && (s->layout->model_folder || hf_know_names(s, f, notes, e) == 0) &&
        hf_saved_names(s, config, false, notes, e) == 0 &&
        (s->layout->model_folder || compare_with_config(s, config, NULL, e) == 0) &&
        hf_to_shards(s, f, &z, &o, notes, e) == 0) {
        if (g.n)
            list_marked_groups(s, &g);
        report_add(notes, SEV_NOTE, "family", NULL, ERR_NO_BYTE, NULL,
                   "the tensors get the names of Megatron-core for the family %s", family_name(f));
        rc = g.n ? check_groups_by_rule(s, notes, e) : 0;
    }
    family_free(f);
    json_decref(config);
    free(parent);
    return rc;
}

/* ---- names of Transformers for shards with an optimizer ---- */

/*
 * Returns true if parameters that have the names of Megatron's shards must get the names of Transformers, with all
 * states. This is the case for layouts that keep any names. Model folders change the names themselves.
 */
static bool needs_hf_names(const struct layout *to, const struct source *s, const struct write_request *q)
{
    return to->any_model && !to->core_names && !to->model_folder && !s->layout->model_folder &&
           (q->rules || q->config) && !q->weights_only;
}

/*
 * Translate names and tensors by the rules of the family. Returns an array with true for each parameter that is still
 * to be transposed, see hf_translate(), or NULL with an error.
 */
static const bool *translate_all_states(struct source *s, const struct family *f, const struct hf_sizes *z,
                                        struct report *notes, struct err *e)
{
    const int in_shards = hf_is_in_shards(s, f, e);

    if (in_shards < 0)
        return NULL;
    if (!in_shards) {
        err_data(e, s->path, ERR_NO_BYTE, "--config and --rules translate the names of Megatron's shards, but no "
                 "parameter has such a name; without these options the names stay as they are");
        return NULL;
    }
    return hf_translate(s, f, z, notes, e);
}

/* Transpose the parameters i with transposed[i], which Transformers stores as [in, out], in all of their states. */
static int transpose_all_states(struct source *s, const bool *transposed, const struct hf_source_opts *o,
                                struct err *e)
{
    struct param **p = xmalloc(((size_t)s->n_params + 1) * sizeof *p);
    int n = 0, rc;

    for (int i = 0; i < s->n_params; i++)
        if (transposed[i])
            p[n++] = &s->param[i];
    rc = hf_transpose_params(s, p, n, o, e);
    free(p);
    return rc;
}

/*
 * If config.json ties the head to the embedding, add the head as a second name of the embedding. A model's state_dict
 * has both names, and loaders fail if one is missing.
 */
static void add_tied_head(struct source *s, const struct family *f, const struct hf_sizes *z)
{
    const struct param *table = NULL;
    const char *head = NULL;
    struct param *to;

    for (int i = 0; i < family_n(f); i++)
        if (family_at(f, i)->merge == MERGE_VOCAB && hf_is_head(family_at(f, i)->part[0]))
            head = family_at(f, i)->part[0];
    for (int i = 0; i < family_n(f) && !table; i++)
        if (family_at(f, i)->merge == MERGE_VOCAB && family_at(f, i)->part[0] != head)
            table = source_param(s, family_at(f, i)->part[0]);
    if (z->tied != 1 || !head || !table || source_param(s, head))
        return;
    to = arena_alloc(s->arena, ((size_t)s->n_params + 1) * sizeof *to);
    memcpy(to, s->param, (size_t)s->n_params * sizeof *to);
    to[s->n_params] = *table;
    to[s->n_params].name = arena_fmt(s->arena, "%s", head);
    to[s->n_params].shared_with = table->name;
    to[s->n_params++].group = -1;
    s->param = to;
    *s->names = (struct source_names){0};
}

/* Give the source's parameters the names that the model has in Transformers. All of their states are kept. */
static int give_hf_names(struct source *s, const struct write_request *q, struct report *notes, struct err *e)
{
    struct optim_groups g = {0};
    json_t *config = read_requested_config(s, q, e);
    struct family *f = config ? find_requested_family(s, q, config, e) : NULL;
    char *parent = path_parent(q->out);
    const struct hf_source_opts o = spool_opts(q, parent);
    const bool *transposed;
    struct hf_sizes z;
    int rc = -1;

    if (f && hf_sizes_read(config, q->config ? q->config : s->path, &z, e) == 0 && mark_groups(s, &g, e) == 0 &&
        (transposed = translate_all_states(s, f, &z, notes, e)) != NULL &&
        compare_with_config(s, config, transposed, e) == 0 &&
        (!q->experts || hf_check_experts_form(s, config, q->experts == EXPERTS_SPLIT, e) == 0) &&
        (q->dry_run || q->resume || staging_check_out(q->out, q->force, e) == 0) &&
        transpose_all_states(s, transposed, &o, e) == 0) {
        *s->names = (struct source_names){0};
        s->n_stacks = 0;                /* they are of the names that are gone */
        add_tied_head(s, f, &z);
        rc = q->experts == EXPERTS_SPLIT ? 0 : hf_fused_names(s, config, notes, e);
    }
    if (rc == 0) {
        *s->names = (struct source_names){0};
        if (g.n)
            list_marked_groups(s, &g);
        report_add(notes, SEV_NOTE, "family", NULL, ERR_NO_BYTE, NULL,
                   "the tensors get the names of Transformers for the family %s", family_name(f));
    }
    family_free(f);
    json_decref(config);
    free(parent);
    return rc;
}

/*
 * Split or fuse the experts of a model folder as requested, for a layout that keeps the names. A result that is a model
 * folder does this itself.
 */
static int apply_folder_experts(struct source *s, const struct layout *to, const struct write_request *q,
                                struct report *notes, struct err *e)
{
    json_t *config;
    int rc = -1;

    if (!q->experts || to->model_folder || needs_hf_names(to, s, q))
        return 0;
    if (!s->layout->model_folder || q->renames) {
        err_usage(e, "%s: --experts applies only to a Transformers folder, or to --to hf and hfstorage", s->path);
        return -1;
    }
    config = read_requested_config(s, q, e);
    if (config && json_object_get(config, "quantization_config"))
        err_usage(e, "--experts: the weights are quantized; dequantize them with ckpt-edit cast first");
    else if (config && hf_check_experts_form(s, config, q->experts == EXPERTS_SPLIT, e) == 0)
        rc = q->experts == EXPERTS_SPLIT ? hf_saved_names(s, config, false, notes, e)
                                         : hf_fused_names(s, config, notes, e);
    json_decref(config);
    return rc;
}

/* ---- the steps ---- */

static const struct layout_writer {
    const struct layout *layout;
    layout_accepts *accepts;            /* NULL if the layout accepts every request */
    layout_describe *describe;
} writers[] = {
    { &universal_hdf5_layout, NULL, describe_as_universal_hdf5 },
    { &universal_virtual_layout, NULL, describe_as_universal_virtual },
    { &universal_pt_layout, NULL, describe_as_universal_pt },
    { &zero_layout, zero_accepts, describe_as_zero },
    { &deepspeed_layout, deepspeed_accepts, describe_as_deepspeed },
    { &torchdist_layout, torchdist_accepts, describe_as_torchdist },
    { &dcp_layout, dcp_accepts, describe_as_dcp },
    { &dsmoe_layout, dsmoe_accepts, describe_as_dsmoe },
    { &hf_layout, NULL, describe_as_hf },
    { &hfstorage_layout, NULL, describe_as_hfstorage },
};

bool layout_has_writer(const struct source *s)
{
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++)
        if (writers[i].layout == s->layout)
            return true;
    return false;
}

int layout_describe_as(const struct layout *to, struct source *s, const struct write_request *given,
                       struct report *notes, struct layout_target *t, struct err *e)
{
    const struct layout_writer *w = writers;
    struct write_request q = *given;

    while (w->layout != to)
        w++;
    t->src = s;
    if (q.expert_ranks && to != &dsmoe_layout) {
        err_usage(e, "%s: --target-ep applies only to a checkpoint with layers of DeepSpeed's MoE (layout dsmoe), but "
                     "its layout is %s", s->path, s->layout->name);
        return -1;
    }
    q.renames = needs_core_names(to, s, &q) || needs_hf_names(to, s, &q);
    if (w->accepts && w->accepts(s, &q, e) < 0)
        return -1;
    if (apply_folder_experts(s, to, &q, notes, e) < 0)
        return -1;
    if (q.renames && (to->core_names ? give_core_names : give_hf_names)(s, &q, notes, e) < 0)
        return -1;
    if (s->left_behind && !to->model_folder)
        report_add(notes, SEV_WARNING, "extra_file", s->path, ERR_NO_BYTE, NULL,
                   "%s are not part of the result; copy those that are true of it", s->left_behind);
    return w->describe(s, &q, notes, t, e);
}

void layout_target_free(struct layout_target *t)
{
    if (t->ops && t->of)
        t->ops->free(t->of);
    *t = (struct layout_target){0};
}

/* ---- merge-tp ---- */

int layout_check_merge(const struct source *s, const struct merge_request *q, struct err *e)
{
    if (s->layout->entries)
        err_usage(e, "%s: the tensors of a %s checkpoint are not divided by rank, so there is nothing to merge; "
                     "reshape --ranks or --mesh converts it to another number of ranks", s->path, s->layout->name);
    else if (source_is_from_zero(s) && !s->layout->zero_files)
        err_usage(e, "%s: is a universal checkpoint of ZeRO-%d, whose tensor-parallel ranks are already merged; "
                     "reshape converts it to ZeRO files", s->path, source_zero_stage(s));
    else if (s->layout->zero_files && s->topo.tp < 2)
        err_usage(e, "%s: has one tensor-parallel rank, so there is nothing to merge", s->path);
    else if (s->layout->zero_files && (q->repair || q->target_tp > 1))
        err_usage(e, "%s: ZeRO without pipeline is merged into one tensor rank; %s cannot be used",
                  s->path, q->repair ? "--repair, which keeps them," : "--target-tp");
    else if (s->layout->zero_files && q->certificate)
        err_usage(e, "%s: --certificate applies only to checkpoints of the pipeline engine", s->path);
    else if (s->topo.tp < 1)
        err_usage(e, "%s: no tensor-parallel ranks are known in this %s checkpoint, so there is nothing to merge; "
                     "reshape --to converts it", s->path, s->layout->name);
    return e->kind == ERR_NONE ? 0 : -1;
}
