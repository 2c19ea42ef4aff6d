/*
 * pt_files.c - open many files in parallel
 */
#include "libcommon/layout/pt_files.h"
#include "libcommon/ckpt/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { THREADS_DEFAULT = 16 };          /* more threads than cores, because they wait for the disk */

/* What a worker thread has read from one file. */
struct brought {
    struct report *r;
    struct record *record;              /* the records' names belong to this struct */
    int n_records;
    /* the worker could not read the file; one thread opens it later, in s->files */
    bool in_order;
};

/*
 * Returns a new table whose only file is file number `file` of `from`. Returns NULL if the file is a spool file, or no
 * longer exists.
 */
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

static void copy_pt_records(struct brought *b, const struct files *f)
{
    b->n_records = files_n_records(f);
    b->record = xcalloc((size_t)b->n_records, sizeof *b->record);
    for (int i = 0; i < b->n_records; i++) {
        b->record[i] = *files_record(f, i);
        b->record[i].name = xstrdup(b->record[i].name);
    }
}

/* Add a finding for a file that cannot be opened, and clear *e. */
static void add_unreadable(const struct pt_files *o, struct report *r, struct err *e)
{
    if (o->holes)
        report_add_lost(r, NULL, e);
    else
        report_add_err(r, "unreadable", e);
}

/*
 * Open one file in a worker thread. If `now` is false, the file is opened only to bring its tables into the page cache,
 * and its contents are not read.
 */
static void open_pt_file_apart(const struct pt_files *o, int file, bool now, struct brought *b)
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
    /*
     * A second file is a spool file with unpacked records, which is lost with this table. The first file is therefore
     * opened again later, in s->files.
     */
    b->in_order |= files_count(f) > 1;
    if (!b->in_order && !j.pt)
        add_unreadable(o, b->r, &e);
    if (!b->in_order && j.pt) {
        pt_check(j.pt, f, 0, b->r);
        o->read(&j);
        copy_pt_records(b, f);
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
    (o->rank_files ? pt_check_rank_file : pt_check)(j.pt, j.files, sf->file, o->r);
    o->read(&j);
    sf->pt = keep ? j.pt : NULL;
    if (!keep)
        pt_close(j.pt);
}

/* Append a worker's findings and records to those of the source. Files must be merged in their order. */
static void merge_pt_file_results(struct pt_files *o, int file, struct brought *b)
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

static struct brought *open_pt_file_batch(const struct pt_files *o, const int *file, int n, bool now)
{
    struct brought *b = xcalloc((size_t)n, sizeof *b);
    int threads = o->threads > 0 ? o->threads : THREADS_DEFAULT;

#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int i = 0; i < n; i++) {
        b[i].r = report_new();
        if (file[i] >= 0)
            open_pt_file_apart(o, file[i], now, &b[i]);
    }
    return b;
}

void pt_files_each(struct pt_files *o, const int *file, int n)
{
    struct brought *b = open_pt_file_batch(o, file, n, true);

    for (int i = 0; i < n; i++) {
        if (file[i] >= 0)
            merge_pt_file_results(o, file[i], &b[i]);
        if (b[i].in_order)
            open_in_order(o, file[i], false);
        report_free(b[i].r);
    }
    free(b);
}

void pt_files_keep(struct pt_files *o, const int *file, int n)
{
    struct brought *b = open_pt_file_batch(o, file, n, false);

    for (int i = 0; i < n; i++) {
        if (file[i] >= 0)
            open_in_order(o, file[i], true);
        report_free(b[i].r);
    }
    free(b);
}

/* ---- holes ---- */

/* The lost bytes of one file, as a record. */
struct pt_hole {
    const char *name;
    int record;
    uint64_t end;               /* number of bytes for which extents were returned so far */
};

/* Length of the record. No file is as long. */
static const uint64_t hole_len = (uint64_t)1 << 56;

struct extent pt_hole(struct pt_holes *h, struct source *s, const char *name, uint64_t len)
{
    struct pt_hole *to = NULL;
    struct extent x;

    for (int i = h->n - 1; i >= 0 && !to; i--)
        to = strcmp(h->hole[i].name, name) == 0 ? &h->hole[i] : NULL;
    if (!to) {
        char *path = path_join(s->path, name);

        ARRAY_ROOM(h->hole, h->cap, h->n + 1);
        to = &h->hole[h->n++];
        *to = (struct pt_hole){ .name = arena_fmt(s->arena, "%s", name) };
        to->record = files_add_record(s->files, &(struct record){
            .file = files_add_mem(s->files, "", 0, path), .len = hole_len, .name = "(lost)" });
        free(path);
    }
    x = (struct extent){ to->record, to->end, len };
    to->end += len;
    return x;
}

void pt_holes_free(struct pt_holes *h)
{
    free(h->hole);
    *h = (struct pt_holes){0};
}

void pt_hold(struct source *s, struct pt *pt)
{
    struct pt **held = arena_alloc(s->arena, ((size_t)s->n_held + 1) * sizeof *held);

    if (s->n_held)
        memcpy(held, s->held, (size_t)s->n_held * sizeof *held);
    held[s->n_held++] = pt;
    s->held = held;
}

/* ---- other tags of the run ---- */

static int by_natural_path(const void *a, const void *b)
{
    return str_natural_cmp(*(char *const *)a, *(char *const *)b);
}

/*
 * Returns the paths of the other folders next to the tag, sorted by the numbers in their names. The caller frees each
 * path and the array.
 */
static char **siblings(const struct source *s, int *n)
{
    char *parent = path_parent(s->path), **list = NULL;
    DIR *dir = opendir(parent);
    struct dirent *ent;
    struct stat st;
    int cap = 0;

    *n = 0;
    while (dir && (ent = readdir(dir))) {
        char *path = path_join(parent, ent->d_name);

        if (ent->d_name[0] == '.' || strcmp(ent->d_name, s->tag) == 0 || stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) {
            free(path);
            continue;
        }
        ARRAY_ROOM(list, cap, *n + 1);
        list[(*n)++] = path;
    }
    if (dir)
        closedir(dir);
    free(parent);
    if (*n)
        qsort(list, (size_t)*n, sizeof *list, by_natural_path);
    return list;
}

struct pt *pt_sibling(struct source *s, const char *name, int *file, pt_fits_fn *fits, void *ctx)
{
    struct stat st;
    struct pt *found = NULL;
    char **dir;
    int n;

    if (stat(s->path, &st) < 0 || !S_ISDIR(st.st_mode))
        return NULL;
    dir = siblings(s, &n);
    for (int i = n - 1; i >= 0; i--) {
        char *path = found ? NULL : path_join(dir[i], name);
        struct err ignored = {0};
        int at = path && stat(path, &st) == 0 ? files_add_path(s->files, path, &ignored) : -1;

        found = at >= 0 ? pt_open(s->files, at, &ignored) : found;
        if (found && at >= 0 && fits && !fits(ctx, found)) {
            pt_close(found);
            found = NULL;
        }
        if (found && at >= 0 && file)
            *file = at;
        free(path);
        free(dir[i]);
    }
    free(dir);
    return found;
}
