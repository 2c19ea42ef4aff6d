/*
 * deepspeed.c - open a Megatron-DeepSpeed tag: run the phases, and open files in parallel
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/pt_files.h"

/* ---- many files at once ---- */

/* The functions that read one kind of file (mp_rank, layer or zero files), passed through pt_files.ctx. */
struct ds_reading {
    struct ds *d;
    ds_read_fn *read;
    ds_renumber_fn *renumber;
};

static void ds_read_opened_file(const struct pt_files_job *f)
{
    const struct ds_reading *x = f->ctx;
    const struct ds_job j = { .d = x->d, .file = f->file, .files = f->files, .pt = f->pt, .path = f->path, .r = f->r };

    ds_name_check(&x->d->name[f->file], f->pt, f->path, ds_mismatch(x->d), f->r);
    x->read(&j);
}

static void renumber_file(void *ctx, int file, int base)
{
    const struct ds_reading *x = ctx;

    x->renumber(x->d, file, base);
}

/* Read n files with many threads, calling fn for each. If renumber is NULL, the handles stay open in s->file[].pt. */
static void each_file(struct ds *d, const int *file, int n, ds_read_fn *fn, ds_renumber_fn *renumber)
{
    struct ds_reading x = { d, fn, renumber };
    struct pt_files o = { .s = d->s, .r = d->r, .threads = d->o->threads, .ctx = &x, .read = ds_read_opened_file,
                          .renumber = renumber_file,
                          .holes = d->o->holes || (fn == ds_read_stage && ds_stands_in(d)) };

    if (renumber)
        pt_files_each(&o, file, n);
    else
        pt_files_keep(&o, file, n);
    d->too_many |= o.too_many;
}

static void keep_files(struct ds *d, const int *file, int n, ds_read_fn *fn)
{
    each_file(d, file, n, fn, NULL);
}

/* ---- phases ---- */

/*
 * Open the first readable mp_rank file. Every mp_rank file contains the degrees. Errors in the other files are
 * reported later.
 */
static const struct source_file *open_first(struct ds *d, struct err *e)
{
    for (int i = 0; i < d->n_files; i++) {
        struct source_file *f = &d->s->file[i];
        struct err ignored = {0};

        if (d->name[i].kind != DS_MP)
            continue;
        f->pt = pt_open(d->s->files, f->file, e->kind ? &ignored : e);
        if (f->pt) {
            err_clear(e);
            return f;
        }
    }
    if (!e->kind)
        err_data(e, d->s->path, ERR_NO_BYTE,
                 "has no mp_rank_*_model_states.pt file, so it is not a checkpoint of the pipeline engine");
    return NULL;
}

/*
 * Return the mp_rank file of another tag of the run that has the same degrees. If there is none, return an mp_rank file
 * that is made from a config.json, or NULL. Called if no mp_rank file of this tag can be opened.
 */
static const struct source_file *lost_first(struct ds *d, struct err *e)
{
    struct source_file *f = arena_alloc(d->s->arena, sizeof *f);

    *f = (struct source_file){ .pt = ds_lost_first(d, e) };
    if (!f->pt)
        f->pt = ds_lost_config(d, e);
    if (!f->pt)
        return NULL;
    err_clear(e);
    return f;
}

/* Read the mp_rank files. A summary needs only one rank of each stage. Everything else needs all ranks. */
static int ds_read_stage_files(struct ds *d, struct err *e)
{
    int n = d->topo.tp * d->topo.pp, *file = xmalloc((size_t)n * sizeof *file);

    for (int i = 0, seen = 0; i < n; i++) {
        if (i % d->topo.tp == 0)
            seen = 0;
        file[i] = d->o->no_tensors && seen ? -1 : d->mp_file[i];
        seen |= file[i] >= 0;
    }
    keep_files(d, file, n, ds_read_stage);
    free(file);
    ds_check_ranks(d);
    if (ds_stands_in(d))
        ds_find_stages(d);
    ds_check_stages(d);
    ds_check_layers(d);
    return ds_stands_in(d) ? ds_stand_in(d, e) : 0;
}

static void ds_read_shards(struct ds *d)
{
    int n = d->topo.tp * d->topo.pp * d->topo.dp, *rest;

    if (d->o->no_optimizer)
        return;
    rest = xmalloc((size_t)n * sizeof *rest);
    memcpy(rest, d->zero_file, (size_t)n * sizeof *rest);
    /*
     * The handle of the lead shard stays open, because the run state is read from it. If the lead shard cannot be
     * read, the next shard becomes the lead.
     */
    for (d->lead = ds_lead_shard(d, -1); d->lead >= 0; d->lead = ds_lead_shard(d, d->lead)) {
        keep_files(d, d->zero_file + d->lead, 1, ds_read_shard);
        rest[d->lead] = -1;
        if (d->s->file[d->zero_file[d->lead]].pt)
            break;
    }
    if (!d->o->no_tensors)
        each_file(d, rest, n, ds_read_shard, ds_renumber_shard);
    free(rest);
}

static void find_tied(struct ds *d)
{
    const struct ds_entry *en = d->index.entry;

    for (int i = 1; i < d->index.n; i++)
        d->s->tied_embedding |= strcmp(en[i].name, en[i - 1].name) == 0 && param_is_tied(en[i].name);
}

static void ds_allocate_tables(struct ds *d)
{
    size_t n_mp = (size_t)(d->topo.tp * d->topo.pp);

    d->stage = xcalloc(n_mp, sizeof *d->stage);
    d->ref = xcalloc((size_t)d->topo.pp, sizeof *d->ref);
    d->shard = xcalloc(n_mp * (size_t)d->topo.dp, sizeof *d->shard);
    d->layer = xcalloc((size_t)(d->n_layers * d->topo.tp), sizeof *d->layer);
}

static int ds_open_tag(struct ds *d, const struct source_listing *l, struct err *e)
{
    const struct source_file *first;

    if (ds_files_read(d, l, e) < 0)
        return -1;
    first = open_first(d, e);
    if (!first && ds_stands_in(d))
        first = lost_first(d, e);
    if (!first || ds_degrees(d, first, e) < 0)
        return -1;
    d->s->topo = d->topo;
    ds_grid(d);
    ds_allocate_tables(d);
    if (ds_read_stage_files(d, e) < 0)
        return -1;
    ds_missing_rest(d);
    find_tied(d);
    if (d->o->no_tensors)
        ds_check_sizes(d);
    else
        each_file(d, d->layer_file, d->n_layers * d->topo.tp, ds_read_layer, ds_renumber_layer);
    ds_read_shards(d);
    if (d->o->holes)
        ds_recover(d);
    if (d->too_many) {
        err_data(e, d->s->path, ERR_NO_BYTE, "more than %d records in its files: this is not a checkpoint",
                 PT_FILES_RECORDS_MAX);
        return -1;
    }
    ds_check_marks(d);
    ds_run_state(d);
    if (d->o->no_tensors)
        return 0;
    ds_make_params(d);
    return manifest_load(d->s, d->o->no_optimizer, d->r, e);
}

static void tables_free(struct ds *d)
{
    int n_mp = d->topo.tp * d->topo.pp;

    for (int i = 0; d->stage && i < n_mp; i++)
        ds_stage_free(&d->stage[i].st);
    for (int i = 0; d->shard && i < n_mp * d->topo.dp; i++)
        free(d->shard[i].run);
    for (int i = 0; d->layer && i < d->n_layers * d->topo.tp; i++)
        free(d->layer[i].tensor);
    for (int i = 0; d->mark && i < d->n_files; i++)
        for (int m = 0; m < DS_TEXTS; m++)
            free(d->mark[i][m]);
    free(d->stage);
    free(d->ref);
    ds_index_free(&d->index);
    free(d->shard);
    free(d->layer);
    free(d->mark);
    free(d->name);
    free(d->layer_no);
    free(d->mp_file);
    free(d->zero_file);
    free(d->layer_file);
    pt_holes_free(&d->holes);
}

int deepspeed_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e)
{
    struct ds d = { .s = s, .o = o, .r = r, .lead = -1 };
    int rc;

    s->layout = &deepspeed_layout;
    s->read_groups = ds_groups_read;
    rc = ds_open_tag(&d, l, e);
    tables_free(&d);
    return rc;
}
