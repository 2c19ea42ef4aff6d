/*
 * checkpoint_template.c - what saves carry over from the loaded checkpoint, or create without one
 *
 * The files of a save are those of the loaded checkpoint, adapted to this topology and to this run's arguments, so
 * unknown keys are preserved. A run from scratch has no loaded checkpoint. For such a run, the trees of a checkpoint of
 * a single rank are created first, and then adapted in the same way. The result is sent to the writer process at setup:
 * this rank's share of the files (deepspeed_share.h) and its mp_rank file.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/param.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/deepspeed/deepspeed_pickles.h"
#include "tools/train/checkpoint/checkpoint_engine.h"
#include "tools/train/options/deepspeed_json.h"

/* ---- the source ---- */

static struct ds_target *target_of(const struct source *src, const struct checkpoint_saver_opts *o,
                                   struct report *findings, struct err *e)
{
    const struct stage *s = o->stage;
    struct ds_request q = { .topo = s->topo, .stages = o->blocks, .n_stages = s->topo.pp, .vocab = s->model.vocab,
                            .step = -1, .no_tensors = true, .weights = o->weights };

    return ds_target_new(src, &q, findings, e);
}

/*
 * Returns true if the saver can carry over the files of the loaded checkpoint. Returns false if that checkpoint has no
 * optimizer state, or has another kind of optimizer.
 */
static bool usable(const struct checkpoint_saver_opts *o)
{
    const struct checkpoint *c = o->from;

    return c && !c->names.names && c->info.has_optimizer &&
           source_has_zero1_optimizer(c->src) == (o->weights == DTYPE_F16);
}

static int by_stage_param_id(const void *a, const void *b)
{
    const struct stage_param *x = a, *y = b;

    return x->id - y->id;
}

/* Create a source that describes the model on a single rank. `args` is its initial Namespace, or NULL. */
static struct source *new_run_source(const struct checkpoint_saver_opts *o, const struct pk *args)
{
    const struct model_config *m = &o->stage->model;
    const int blocks = (int)m->n_layers;
    struct stage *s = stage_new(m, (struct topology){ 1, 1, 1 }, 0, 0, 0, &blocks);
    struct param *param = xcalloc((size_t)s->n_params, sizeof *param);
    struct arena *a = arena_new(0);
    struct ds_new_run f = { .vocab = m->vocab,
                              .tokens = m->vocab_tokens ? m->vocab_tokens : m->vocab };
    struct source *src;

    qsort(s->param, (size_t)s->n_params, sizeof *s->param, by_stage_param_id);
    for (int i = 0; i < s->n_params; i++) {
        const struct stage_param *p = &s->param[i];

        param[i] = (struct param){ .name = p->name, .ndim = p->ndim, .merge = p->merge };
        memcpy(param[i].shape, p->shape, sizeof p->shape);
    }
    f.args = args ? pk_copy(a, args) : pk_object(a, "argparse", "Namespace", pk_dict(a));
    checkpoint_args_of_model(a, f.args, m);
    src = ds_new_run_source(param, s->n_params, &f, o->weights == DTYPE_F16);
    arena_free(a);
    free(param);
    stage_free(s);
    return src;
}

static void pass_notes(const struct report *findings, struct report *notes)
{
    for (int i = 0; i < report_n(findings); i++) {
        const struct finding *f = report_get(findings, i);

        if (!strcmp(f->code, "rng"))
            report_add(notes, SEV_NOTE, f->code, f->file, f->at, f->param, "%s", f->text);
    }
}

/*
 * Returns the target of the saver. The target is based on the loaded checkpoint or, if that cannot be used, on a new
 * source. *made receives the new source, which the caller must free.
 */
static struct ds_target *find_target(const struct checkpoint_saver_opts *o, struct source **made, struct report *notes,
                                     struct err *e)
{
    struct report *findings = report_new();
    struct err why = {0};
    struct ds_target *t = usable(o) ? target_of(o->from->src, o, findings, &why) : NULL;

    if (!t && o->from)
        report_add(notes, SEV_NOTE, "anew", o->from->info.path, ERR_NO_BYTE, NULL,
                   "new checkpoints keep its training arguments, but no other values of its files%s%s",
                   why.kind == ERR_NONE ? "" : ": ", why.msg);
    else
        pass_notes(findings, notes);
    if (!t) {
        *made = new_run_source(o, o->from ? source_run(o->from->src)->args : NULL);
        t = target_of(*made, o, findings, e);
    }
    report_free(findings);
    return t;
}

/* ---- this rank's share ---- */

/*
 * Returns the index of the target's parameter that corresponds to the stage's parameter *p. Returns -1 with *e set if
 * there is none.
 */
static int find_target_param(const struct ds_target *t, const struct stage_param *p, struct err *e)
{
    for (int i = 0; i < t->n_params; i++) {
        const struct ds_tparam *q = &t->param[i];

        if (!checkpoint_same(q->name, t->first_layer, p))
            continue;
        if (q->slice_elems == p->n)
            return i;
        err_data(e, source_path(t->src), ERR_NO_BYTE, "parameter %s: %lld elements a rank in the files, %lld in memory",
                 p->name, (long long)q->slice_elems, (long long)p->n);
        return -1;
    }
    err_data(e, source_path(t->src), ERR_NO_BYTE, "parameter %s has no place in the files", p->name);
    return -1;
}

static int find_held(const struct ds_target *t, const struct checkpoint_saver_opts *o, struct ds_held *held,
                     struct err *e)
{
    const struct stage *s = o->stage;
    int *param = xmalloc((size_t)s->n_params * sizeof *param + 1), rc = 0;

    for (int i = 0; i < s->n_params && rc == 0; i++) {
        param[i] = find_target_param(t, &s->param[i], e);
        rc = param[i] < 0 ? -1 : 0;
    }
    for (int i = 0; i < s->n_runs && rc == 0; i++) {
        const struct stage_run *r = &s->run[i];

        held[i] = (struct ds_held){ .param = param[r->param], .from = r->from, .n = r->n };
        for (int st = 0; st < STATE_N; st++)
            held[i].at[st] = checkpoint_area_at(s, o->weights, (enum state)st, r->shard_at);
    }
    free(param);
    return rc;
}

static struct ds_share *share_of(const struct ds_target *t, const struct checkpoint_saver_opts *o, struct err *e)
{
    const struct stage *s = o->stage;
    struct ds_held *held = xcalloc((size_t)s->n_runs + 1, sizeof *held);
    struct arena *a = arena_new(0);
    const struct ds_share_of of = { .pp = s->pp, .dp = s->dp, .tp = s->tp, .n_held = s->n_runs, .held = held,
                                    .ds_config = o->ds_config ? deepspeed_json_tree(a, o->ds_config) : NULL,
                                    .ds_version = o->ds_version };
    struct ds_share *share = find_held(t, o, held, e) == 0 ? ds_share_new(t, &of, e) : NULL;

    arena_free(a);
    free(held);
    return share;
}

/* ---- the message ---- */

/*
 * Returns the gigaflos of the first stage in the source. Every rank reads this value from the source, because the ranks
 * of other stages need it to preserve the ratio of the counts.
 */
static double first_gigaflos(const struct source *s)
{
    double v;

    return pk_as_double(pk_get(source_run(s)->args, "gigaflos_no_embeds"), &v) ? v : 0;
}

int checkpoint_template_make(const struct checkpoint_saver_opts *o, struct strbuf *out, struct report *notes,
                             struct err *e)
{
    const struct stage *s = o->stage;
    struct save_setup head = { .topo = s->topo, .pp = s->pp, .dp = s->dp, .tp = s->tp, .model = s->model,
                               .weights = o->weights, .threads = o->threads > 0 ? o->threads : 1,
                               .memory_bytes = o->memory_bytes };
    struct source *made = NULL;
    struct ds_target *t = find_target(o, &made, notes, e);
    struct ds_share *share = t ? share_of(t, o, e) : NULL;
    uint8_t *mp = NULL;
    int rc = -1;

    if (share && checkpoint_mp_make(t, o, &mp, &head.mp_bytes, e) == 0) {
        head.first_gigaflos = first_gigaflos(t->src);
        strbuf_add(out, &head, sizeof head);
        strbuf_add(out, o->blocks, (size_t)s->topo.pp * sizeof *o->blocks);
        strbuf_add(out, mp, head.mp_bytes);
        ds_share_pack(share, out);
        rc = 0;
    }
    free(mp);
    ds_share_free(share);
    ds_target_free(t);
    source_close(made);
    return rc;
}
