/*
 * deepspeed.c - open a Megatron-DeepSpeed tag: the phases, and files opened in parallel
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/layout/deepspeed/deepspeed.h"
#include "libcommon/layout/manifest.h"

enum {
    THREADS_DEFAULT = 16,               /* opening waits for the disk, not for the processor */
    RECORDS_MAX = 4 << 20,              /* of a whole tag; the largest known has some ten thousand */
};

/* ---- many files at once ---- */

/* What a worker brings back of one file. */
struct brought {
    struct report *r;
    struct record *record;              /* names are ours */
    int n_records;
    bool in_order;                      /* it must be opened among s->files, by one thread */
};

/* The source's file number `file` as the first of a table of its own; NULL for a spool, or when it is gone. */
static struct files *files_apart(struct files *from, int file)
{
    struct files *f;
    struct err ignored = {0};
    uint64_t base;
    const char *path = files_path(from, file, &base);

    if (!path)
        return NULL;
    f = files_new();
    if (files_add_window(f, path, base, files_size(from, file), files_name(from, file), &ignored) == 0)
        return f;
    files_free(f);
    return NULL;
}

static void take_records(struct brought *b, const struct files *f)
{
    b->n_records = files_n_records(f);
    b->record = xcalloc((size_t)b->n_records, sizeof *b->record);
    for (int i = 0; i < b->n_records; i++) {
        b->record[i] = *files_record(f, i);
        b->record[i].name = xstrdup(b->record[i].name);
    }
}

/* One file by a worker; fn NULL: only to have its tables read from the disk. */
static void open_apart(struct ds *d, int file, ds_read_fn *fn, struct brought *b)
{
    const struct source_file *sf = &d->s->file[file];
    struct files *f = files_apart(d->s->files, sf->file);
    struct ds_job j = { .d = d, .file = file, .files = f, .path = files_name(d->s->files, sf->file), .r = b->r };
    struct err e = {0};

    b->in_order = !f || !fn;
    if (!f)
        return;
    j.pt = pt_open(f, 0, &e);
    /* Compressed records were unpacked into a spool that would go with this table. */
    b->in_order |= files_count(f) > 1;
    if (!b->in_order && !j.pt)
        report_add_err(b->r, "unreadable", &e);
    if (!b->in_order && j.pt) {
        pt_check_classes(j.pt, j.path, b->r);
        ds_name_check(&d->name[file], j.pt, j.path, ds_mismatch(d), j.r);
        fn(&j);
        take_records(b, f);
    }
    pt_close(j.pt);
    files_free(f);
}

static void open_in_order(struct ds *d, int file, ds_read_fn *fn, bool keep)
{
    struct source_file *sf = &d->s->file[file];
    struct ds_job j = { .d = d, .file = file, .files = d->s->files, .path = files_name(d->s->files, sf->file),
                        .r = d->r };
    struct err e = {0};

    j.pt = sf->pt ? sf->pt : pt_open(d->s->files, sf->file, &e);
    if (!j.pt) {
        report_add_err(d->r, "unreadable", &e);
        return;
    }
    pt_check_classes(j.pt, j.path, d->r);
    ds_name_check(&d->name[file], j.pt, j.path, ds_mismatch(d), j.r);
    fn(&j);
    sf->pt = keep ? j.pt : NULL;
    if (!keep)
        pt_close(j.pt);
}

/* A worker's findings and records, after those of the files before it. */
static void join(struct ds *d, int file, struct brought *b, ds_renumber_fn *renumber)
{
    for (int i = 0; i < report_n(b->r); i++) {
        const struct finding *f = report_get(b->r, i);

        report_add(d->r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    d->too_many |= files_n_records(d->s->files) > RECORDS_MAX - b->n_records;
    if (b->n_records && !d->too_many)
        renumber(d, file, files_n_records(d->s->files));
    for (int i = 0; i < b->n_records; i++) {
        const struct record *x = &b->record[i];

        if (!d->too_many)
            files_add_record(d->s->files, &(struct record){ .file = d->s->file[file].file, .at = x->at, .len = x->len,
                                                            .has_crc = x->has_crc, .crc = x->crc, .name = x->name });
        free((char *)x->name);
    }
    free(b->record);
}

static struct brought *open_all(struct ds *d, const int *file, int n, ds_read_fn *fn)
{
    struct brought *b = xcalloc((size_t)n, sizeof *b);
    int threads = d->o->threads > 0 ? d->o->threads : THREADS_DEFAULT;

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++) {
        b[i].r = report_new();
        if (file[i] >= 0)
            open_apart(d, file[i], fn, &b[i]);
    }
    return b;
}

/*
 * Open the listed files (negative numbers are passed over) by o->threads threads, call fn
 * on each, close them. Each is opened among `files` of its own; afterwards its records
 * join s->files in the order of the list, and `renumber` adds `base` to what fn kept.
 * So a record has the same number in every run: a plan that is resumed, or shared out
 * among processes, depends on that.
 */
static void each_file(struct ds *d, const int *file, int n, ds_read_fn *fn, ds_renumber_fn *renumber)
{
    struct brought *b = open_all(d, file, n, fn);

    for (int i = 0; i < n; i++) {
        if (file[i] >= 0)
            join(d, file[i], &b[i], renumber);
        if (b[i].in_order)
            open_in_order(d, file[i], fn, false);
        report_free(b[i].r);
    }
    free(b);
}

/* The same for files whose handles stay in s->file[].pt: read ahead by many threads, opened by one. */
static void keep_files(struct ds *d, const int *file, int n, ds_read_fn *fn)
{
    struct brought *b = open_all(d, file, n, NULL);

    for (int i = 0; i < n; i++) {
        if (file[i] >= 0)
            open_in_order(d, file[i], fn, true);
        report_free(b[i].r);
    }
    free(b);
}

/* ---- phases ---- */

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
        err_data(e, d->s->path, ERR_NO_BYTE,
                 "no mp_rank_*_model_states.pt file: not a checkpoint of the pipeline engine");
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
    keep_files(d, file, n, ds_read_stage);
    free(file);
    ds_check_ranks(d);
    ds_check_stages(d);
    ds_check_layers(d);
}

static void read_shards(struct ds *d)
{
    int n = d->topo.tp * d->topo.pp * d->topo.dp, lead = ds_lead_shard(d);

    if (d->o->no_optimizer)
        return;
    /* What all share: run state keeps its handle. */
    keep_files(d, d->zero_file + lead, 1, ds_read_shard);
    if (!d->o->no_tensors) {
        each_file(d, d->zero_file, lead, ds_read_shard, ds_renumber_shard);
        each_file(d, d->zero_file + lead + 1, n - lead - 1, ds_read_shard, ds_renumber_shard);
    }
}

static void find_tied(struct ds *d)
{
    const struct ds_entry *en = d->index.entry;

    for (int i = 1; i < d->index.n; i++)
        d->s->tied_embedding |= strcmp(en[i].name, en[i - 1].name) == 0 && param_is_tied(en[i].name);
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
        each_file(d, d->layer_file, d->n_layers * d->topo.tp, ds_read_layer, ds_renumber_layer);
    read_shards(d);
    if (d->too_many) {
        err_data(e, d->s->path, ERR_NO_BYTE, "more than %d records in its files: this is no checkpoint", RECORDS_MAX);
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
        for (int m = 0; m < DS_MARKS; m++)
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
}

int deepspeed_source_open(struct source *s, const struct source_listing *l, const struct source_opts *o,
                          struct report *r, struct err *e)
{
    struct ds d = { .s = s, .o = o, .r = r };
    int rc;

    s->kind = LAYOUT_DEEPSPEED;
    rc = open_tag(&d, l, e);
    tables_free(&d);
    return rc;
}
