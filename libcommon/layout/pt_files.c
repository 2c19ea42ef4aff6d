/*
 * pt_files.c - many files at once
 */
#include "libcommon/layout/pt_files.h"

#include <stdlib.h>

enum { THREADS_DEFAULT = 16 };          /* more than cores: they wait for the disk */

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

/* A file that cannot be opened; clears the err. */
static void add_unreadable(const struct pt_files *o, struct report *r, struct err *e)
{
    if (o->holes)
        report_add(r, SEV_WARNING, "unreadable", NULL, ERR_NO_BYTE, NULL, "%s", e->msg);
    else
        report_add_err(r, "unreadable", e);
    err_clear(e);
}

/* One file by a worker; not now: only to have its tables read from the disk. */
static void open_apart(const struct pt_files *o, int file, bool now, struct brought *b)
{
    const struct source_file *sf = &o->s->file[file];
    struct files *f = files_apart(o->s->files, sf->file);
    struct pt_files_job j = { .ctx = o->ctx, .file = file, .files = f, .path = files_name(o->s->files, sf->file),
                              .r = b->r };
    struct err e = {0};

    b->in_order = !f || !now;
    if (!f)
        return;
    j.pt = pt_open(f, 0, &e);
    /* Compressed records were unpacked into a spool that would go with this table. */
    b->in_order |= files_count(f) > 1;
    if (!b->in_order && !j.pt)
        add_unreadable(o, b->r, &e);
    if (!b->in_order && j.pt) {
        pt_check_classes(j.pt, j.path, b->r);
        pt_check_unread(j.pt, j.path, b->r);
        o->read(&j);
        take_records(b, f);
    }
    pt_close(j.pt);
    files_free(f);
}

static void open_in_order(const struct pt_files *o, int file, bool keep)
{
    struct source_file *sf = &o->s->file[file];
    struct pt_files_job j = { .ctx = o->ctx, .file = file, .files = o->s->files,
                              .path = files_name(o->s->files, sf->file), .r = o->r };
    struct err e = {0};

    j.pt = sf->pt ? sf->pt : pt_open(o->s->files, sf->file, &e);
    if (!j.pt) {
        add_unreadable(o, o->r, &e);
        return;
    }
    pt_check_classes(j.pt, j.path, o->r);
    pt_check_unread(j.pt, j.path, o->r);
    o->read(&j);
    sf->pt = keep ? j.pt : NULL;
    if (!keep)
        pt_close(j.pt);
}

/* A worker's findings and records, after those of the files before it. */
static void join(struct pt_files *o, int file, struct brought *b)
{
    for (int i = 0; i < report_n(b->r); i++) {
        const struct finding *f = report_get(b->r, i);

        report_add(o->r, f->severity, f->code, f->file, f->at, f->param, "%s", f->text);
    }
    o->too_many |= files_n_records(o->s->files) > PT_FILES_RECORDS_MAX - b->n_records;
    if (b->n_records && !o->too_many)
        o->renumber(o->ctx, file, files_n_records(o->s->files));
    for (int i = 0; i < b->n_records; i++) {
        const struct record *x = &b->record[i];

        if (!o->too_many)
            files_add_record(o->s->files, &(struct record){ .file = o->s->file[file].file, .at = x->at, .len = x->len,
                                                            .has_crc = x->has_crc, .crc = x->crc, .name = x->name });
        free((char *)x->name);
    }
    free(b->record);
}

static struct brought *open_all(const struct pt_files *o, const int *file, int n, bool now)
{
    struct brought *b = xcalloc((size_t)n, sizeof *b);
    int threads = o->threads > 0 ? o->threads : THREADS_DEFAULT;

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++) {
        b[i].r = report_new();
        if (file[i] >= 0)
            open_apart(o, file[i], now, &b[i]);
    }
    return b;
}

void pt_files_each(struct pt_files *o, const int *file, int n)
{
    struct brought *b = open_all(o, file, n, true);

    for (int i = 0; i < n; i++) {
        if (file[i] >= 0)
            join(o, file[i], &b[i]);
        if (b[i].in_order)
            open_in_order(o, file[i], false);
        report_free(b[i].r);
    }
    free(b);
}

void pt_files_keep(struct pt_files *o, const int *file, int n)
{
    struct brought *b = open_all(o, file, n, false);

    for (int i = 0; i < n; i++) {
        if (file[i] >= 0)
            open_in_order(o, file[i], true);
        report_free(b[i].r);
    }
    free(b);
}
