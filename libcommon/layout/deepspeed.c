/*
 * deepspeed.c - open a Megatron-DeepSpeed tag: the phases, and files opened in parallel
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed.h"

enum { THREADS_DEFAULT = 16 };      /* opening waits for the disk, not for the processor */

/* ---- many files at once ---- */

static void open_one(struct ds *d, int file, bool keep, struct report *r, void (*fn)(const struct ds_job *j))
{
    struct source_file *f = &d->s->file[file];
    const char *path = files_name(d->s->files, f->file);
    struct ds_job j = { .d = d, .file = file, .path = path, .r = r };
    struct err e = {0};

    j.pt = f->pt ? f->pt : pt_open(d->s->files, f->file, &e);
    if (!j.pt) {
        report_add_err(r, "unreadable", &e);
        return;
    }
    pt_check_classes(j.pt, path, r);
    fn(&j);
    f->pt = j.pt;
    if (!keep) {
        pt_close(j.pt);
        f->pt = NULL;
    }
}

/* Append a worker's findings to the caller's. */
static void merge_report(struct report *into, const struct report *from)
{
    for (int i = 0; i < report_n(from); i++) {
        const struct finding *f = report_get(from, i);

        report_add(into, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
}

void ds_each_file(struct ds *d, const int *file, int n, int n_keep, void (*fn)(const struct ds_job *j))
{
    struct report **r = xcalloc((size_t)n, sizeof *r);
    int threads = d->o->threads > 0 ? d->o->threads : THREADS_DEFAULT;

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++)
        if (file[i] >= 0) {
            r[i] = report_new();
            open_one(d, file[i], i < n_keep, r[i], fn);
        }
    for (int i = 0; i < n; i++)
        if (r[i]) {
            merge_report(d->r, r[i]);
            report_free(r[i]);
        }
    free(r);
}

/* ---- phases ---- */

const struct source_file *ds_first_mp(const struct ds *d)
{
    for (int i = 0; i < d->n_files; i++)
        if (d->name[i].kind == DS_MP && d->s->file[i].pt)
            return &d->s->file[i];
    return NULL;
}

/* Degrees stand in any mp_rank file; the first that opens will do. What is wrong with the others is said later. */
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
        err_data(e, d->s->path, ERR_NO_BYTE, "no mp_rank_*_model_states.pt file: not a checkpoint of the pipeline engine");
    return NULL;
}

/* The summary needs one rank of each stage; everything else needs all. */
static void read_stages(struct ds *d)
{
    int n = d->topo.tp * d->topo.pp, *file = xmalloc((size_t)n * sizeof *file);

    for (int i = 0, seen = 0; i < n; i++) {
        if (i % d->topo.tp == 0)
            seen = 0;
        file[i] = d->o->no_tensors && seen ? -1 : d->mp_file[i];
        seen |= file[i] >= 0;
    }
    ds_each_file(d, file, n, n, ds_read_stage);
    free(file);
    ds_check_stages(d);
    ds_check_layers(d);
}

static void read_shards(struct ds *d)
{
    int n = d->topo.tp * d->topo.pp * d->topo.dp;

    if (d->o->no_optimizer)
        return;
    ds_each_file(d, d->zero_file, d->o->no_tensors ? 1 : n, 1, ds_read_shard);
}

static void find_tied(struct ds *d)
{
    for (int i = 1; i < d->n_entries; i++)
        d->s->tied_embedding |= strcmp(d->entry[i].name, d->entry[i - 1].name) == 0 && param_is_tied(d->entry[i].name);
}

static void allocate(struct ds *d)
{
    size_t n_mp = (size_t)(d->topo.tp * d->topo.pp);

    d->stage = xcalloc(n_mp, sizeof *d->stage);
    d->ref = xcalloc((size_t)d->topo.pp, sizeof *d->ref);
    d->shard = xcalloc(n_mp * (size_t)d->topo.dp, sizeof *d->shard);
    d->layer = xcalloc((size_t)(d->n_layers * d->topo.tp), sizeof *d->layer);
}

static int open_tag(struct ds *d, const struct source_listing *l, struct err *e)
{
    const struct source_file *first;

    if (ds_files_read(d, l, e) < 0)
        return -1;
    first = open_first(d, e);
    if (!first || ds_degrees(d, first, e) < 0)
        return -1;
    d->s->topo = d->topo;
    ds_grid(d);
    allocate(d);
    read_stages(d);
    ds_missing_rest(d);
    find_tied(d);
    if (d->o->no_tensors)
        ds_check_sizes(d);
    else
        ds_each_file(d, d->layer_file, d->n_layers * d->topo.tp, 0, ds_read_layer);
    read_shards(d);
    ds_check_marks(d);
    ds_run_state(d);
    if (!d->o->no_tensors)
        ds_make_params(d);
    return 0;
}

int deepspeed_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e)
{
    struct ds d = { .s = s, .o = o, .r = r };
    int rc;

    s->kind = LAYOUT_DEEPSPEED;
    rc = open_tag(&d, l, e);
    ds_tables_free(&d);
    return rc;
}
