/*
 * edit_pipeline.c - change a copy of the source, and let the engine's target lay out the result
 */
#include "libcommon/layout/edit/edit_pipeline.h"

#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/layout.h"
#include "libcommon/layout/edit/edit_cast.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/layout/edit/edit_source.h"
#include "libcommon/layout/edit/edit_universal.h"
#include "libcommon/layout/tree_edit.h"
#include "libcommon/layout/universal/universal_hdf5.h"

bool edit_is_pipeline(const struct source *s)
{
    return s->layout->pipeline_files || (s->layout->state_files && !s->zero_stage && !universal_hdf5_has_model(s));
}

int edit_pipeline_layers(struct edit *x, struct err *e)
{
    struct ds_shape shape = {0};
    int n = ds_shape_read(&shape, x->s, e) < 0 || ds_shape_find_layers(&shape, x->s, e) < 0 ? -1 : shape.n_layers;

    ds_shape_free(&shape);
    return n;
}

/* ---- rows ---- */

int64_t edit_pipeline_rows(struct edit *x, struct edit_rows *q, struct err *e)
{
    const struct source *s = x->s;
    uint64_t bytes = 0;
    bool pads = true;
    int n = 0;

    q->tokens_was = s->config.vocab_tokens > 0 ? s->config.vocab_tokens : s->config.vocab;
    q->rows = edit_rows_padded(s->run.args, s->topo.tp, q->tokens);
    for (int i = 0; i < s->n_params; i++) {
        const struct edit_new t = edit_new_of(s, i);

        if (s->param[i].merge != MERGE_VOCAB)
            continue;
        n++;
        /*
         * A universal form may have been made without padding rows, because its readers add these rows. The vocabulary
         * then gets no padding rows here either.
         */
        if (!s->layout->datasets && s->layout->state_files && edit_universal_padded(x, &s->param[i], &pads, e) < 0)
            return -1;
        if (s->layout->datasets)
            pads = t.shape[0] > q->tokens_was || t.shape[0] == edit_rows_padded(s->run.args, s->topo.tp, q->tokens_was);
        if (!pads)
            q->rows = q->tokens;
        bytes += edit_rows_bytes(&t, q);
        if (q->tokens_was < 1 || q->tokens_was > t.shape[0])
            err_data(e, s->path, ERR_NO_BYTE, "parameter %s: has %lld rows, fewer than the %lld tokens", t.name,
                     (long long)t.shape[0], (long long)q->tokens_was);
    }
    if (n == 0 && e->kind == ERR_NONE)
        err_usage(e, "vocab: %s has no embedding that could be changed; 'ckpt-inspect ls' lists its parameters",
                  s->path);
    return e->kind == ERR_NONE ? (int64_t)bytes : -1;
}

static int set_vocab_rows(struct edit *x, struct source *to, struct edit_rows *q, struct err *e)
{
    for (int i = 0; i < to->n_params; i++) {
        struct edit_new t = edit_new_of(to, i);

        if (to->param[i].merge != MERGE_VOCAB)
            continue;
        if (edit_rows_set(x, &t, q, e) < 0)
            return -1;
        edit_source_set(to, i, &t);
    }
    to->config.vocab = q->rows;
    to->config.vocab_tokens = q->tokens;
    return 0;
}

/* ---- trees ---- */

struct model_change {
    const struct edit_model *m;
    int n_layers;                       /* number of transformer layers in the source */
    int64_t padded;                     /* number of rows of the vocabulary, with padding */
};

/* Replace the integer at `path` if there is one. Not every version writes all of these keys. */
static void put_existing_int(struct arena *a, struct pk *root, const char *path, int64_t v)
{
    int64_t was;

    if (pk_as_int(tree_find(root, path, NULL), &was))
        tree_put(a, root, path, pk_int(a, v));
}

/*
 * Update the training arguments in a model_states tree. Arguments that depend on stages and slices are set by the
 * target.
 */
static void edit_model_args(void *ctx, struct arena *a, struct pk *root)
{
    static const char *const layers[] = { "args.num_layers", "args.encoder_num_layers" };
    const struct model_change *r = ctx;
    const struct edit_rows *q = r->m->rows;
    int64_t n;

    for (int i = 0; r->m->picked && i < 2; i++)
        if (pk_as_int(tree_find(root, layers[i], NULL), &n) && n == r->n_layers)
            put_existing_int(a, root, layers[i], r->m->n_picked);
    if (q) {
        put_existing_int(a, root, "args.vocab_size", q->tokens);
        if (pk_as_int(tree_find(root, "args.pad_vocab_size_to", NULL), &n) && n < q->tokens)
            put_existing_int(a, root, "args.pad_vocab_size_to", r->padded);
        put_existing_int(a, root, "checkpoint_info.original_vocab_size", q->tokens);
        put_existing_int(a, root, "universal_checkpoint_info.original_vocab_size", q->tokens);
    }
    if (r->m->cast)
        edit_cast_model(a, root, r->m->weights);
}

/* ---- the type ---- */

/*
 * Change the type of the weights. A parameter with fp32 master weights loses its 16-bit weights, so that the target
 * rounds the master weights. Otherwise it would round weights that had already been rounded.
 */
static void cast_pipeline_source(struct edit *x, struct source *to, const struct edit_model *m, struct report *notes)
{
    const struct pk *args = to->run.args, *config = pk_get(args, "deepspeed_configuration");

    for (int i = 0; i < to->n_params; i++)
        if (to->param[i].state[STATE_FP32])
            to->param[i].state[STATE_BF16] = NULL;
    to->zero_stage_1 = m->weights == DTYPE_F16;
    if (!to->run.optimizer)
        return;
    to->run.optimizer = edit_cast_optimizer(x->arena, to->run.optimizer, config, m->weights);
    report_add(notes, SEV_NOTE, "scaler", NULL, ERR_NO_BYTE, NULL, m->weights == DTYPE_F16
               ? "fp16: the optimizer files are those of ZeRO stage 1, with a new loss scaler from the saved "
                 "configuration or DeepSpeed's defaults"
               : "bf16: the loss scaler is removed");
}

/* ---- public functions ---- */

static struct sink *open_shards(const struct sink_opts *o, const void *target)
{
    return deepspeed_sink(o, target);
}

static void free_shards(void *target)
{
    ds_target_free(target);
}

static int rewrite_shards(struct edit *x, struct source *to, struct ds_target *t)
{
    const char *what = arena_fmt(x->arena, "TP %d, PP %d, DP %d, %d parameters", t->topo.tp, t->topo.pp, t->topo.dp,
                                 t->n_params);

    edit_rewrite(x, &(struct edit_rewrite){ to, what, t, open_shards, free_shards });
    return 0;
}

/* Returns -1 with ERR_USAGE for edits that can be known to be impossible before any work is done. */
static int check_pipeline_edit(const struct source *s, const struct edit_model *m, struct err *e)
{
    if (m->picked && m->n_picked < s->topo.pp)
        err_usage(e, "layers: %d layers cannot be divided over %d pipeline stages; reshape %s--target-pp to fewer "
                     "stages first",
                  m->n_picked, s->topo.pp, s->run.optimizer ? "" : "--weights-only ");
    else if (m->cast && s->layout->state_files && !s->run.optimizer)
        err_usage(e, "cast: %s has no zero/optimizer_state.pt, which distinguishes bf16 from fp16: reshape it to 3D "
                     "shards first", s->path);
    return e->kind == ERR_NONE ? 0 : -1;
}

int edit_pipeline(struct edit *x, const struct edit_model *m, struct report *notes, struct err *e)
{
    const bool universal = x->s->layout->state_files;
    struct source *to = edit_source_copy(x);
    struct model_change r = { .m = m, .n_layers = (int)x->s->config.n_layers,
                           .padded = m->rows ? edit_rows_padded(x->s->run.args, x->s->topo.tp, m->rows->tokens) : 0 };
    struct ds_request q = { .step = -1, .picked = m->picked, .n_picked = m->n_picked, .cast = m->cast,
                            .weights = m->weights, .no_optimizer = !universal && !x->s->run.optimizer };
    /*
     * receives notes about the optimizer's state; these are dropped, because a universal form stores the state
     * differently
     */
    struct report *unwritten = report_new();
    struct ds_target *t;
    int rc = -1;

    if (check_pipeline_edit(x->s, m, e) < 0 || (m->rows && set_vocab_rows(x, to, m->rows, e) < 0))
        goto out;
    edit_source_change_trees(x, to, edit_model_args, &r);
    if (m->cast)
        cast_pipeline_source(x, to, m, notes);
    if (m->picked)
        to->config.n_layers = m->n_picked;
    q.vocab = r.padded;
    t = ds_target_new(to, &q, universal ? unwritten : notes, e);
    rc = !t ? -1 : universal ? edit_universal(x, to, t, e) : rewrite_shards(x, to, t);
    if (universal)
        ds_target_free(t);
out:
    report_free(unwritten);
    return rc;
}
