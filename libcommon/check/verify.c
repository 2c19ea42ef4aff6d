/*
 * verify.c - the sequence of verify's phases; verify_values.c and verify_scan.c read the bytes
 */
#include "libcommon/check/verify.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/mem.h"
#include "libcommon/check/certificate.h"
#include "libcommon/check/known_writers.h"
#include "libcommon/check/single_copy.h"
#include "libcommon/check/verify_values.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/run_state.h"
#include "libcommon/ckpt/source_facts.h"
#include "libcommon/format/archive.h"
#include "libcommon/format/pt.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/layout/other_kinds.h"

/* Returns true if the report has a finding about this file with this code. */
static bool has_finding_code(const struct report *r, const char *name, const char *code)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        if (f->file && strcmp(f->file, name) == 0 && strcmp(f->code, code) == 0)
            return true;
    }
    return false;
}

static int compare_stray_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/*
 * Report files in the folder that do not belong to the layout. If a virtual index refers to shards outside of the
 * folder, these shards are not reported.
 */
static void check_strays(const struct source *s, struct report *r)
{
    int n = files_count(s->files), n_strays = 0;
    bool *known = xcalloc((size_t)n + 1, sizeof *known);
    const char **stray = xcalloc((size_t)n + 1, sizeof *stray);
    char *inside = str_fmt("%s/", s->path);

    for (int i = 0; i < s->n_files; i++)
        known[s->file[i].file] = true;
    for (int i = 0; i < n; i++) {
        const char *name = files_name(s->files, i);
        bool item = files_home(s->files, i, &(uint64_t){0}) != i;

        /* the spooled copy of a compressed file has the same name */
        if (!known[i] && !item && str_starts(name, inside) && !str_starts(name + strlen(inside), "../") &&
            !source_file(s, name + strlen(inside)) && !has_finding_code(r, name, "extra_file"))
            stray[n_strays++] = name;
    }
    qsort(stray, (size_t)n_strays, sizeof *stray, compare_stray_names);    /* readdir() has no fixed order */
    for (int i = 0; i < n_strays; i++)
        report_add(r, SEV_WARNING, "stray_file", stray[i], ERR_NO_BYTE, NULL,
                   "does not belong to a %s checkpoint", source_layout_name(s));
    free(inside);
    free(stray);
    free(known);
}

/*
 * Report a checkpoint of an HDF5 layout without a manifest. HDF5 files store no checksums, so damage could not be
 * detected.
 */
static void check_sums_there(const struct source *s, struct report *r)
{
    if (!source_has_checksums(s) && !source_file(s, MANIFEST_NAME))
        report_add(r, SEV_WARNING, "no_crc", s->path, ERR_NO_BYTE, NULL,
                   "HDF5 files have no checksums and there is no manifest.json, so damaged tensor data cannot be "
                   "detected");
}

/*
 * Open the directories of all .pt files again, because the openers of the layouts have closed them. If a directory is
 * damaged, the entry of this file stays NULL; usually the opener has reported this damage. *n is set to the number of
 * files.
 */
static struct scan_zip *open_zips(struct source *s, bool weights_only, int *n, struct report *r)
{
    struct scan_zip *zip = xcalloc((size_t)s->n_files + 1, sizeof *zip);

    *n = 0;
    for (int i = 0; i < s->n_files; i++)
        if (source_file_is_zip(s, i) && !(weights_only && s->file[i].cls == FILE_OPTIMIZER))
            zip[(*n)++].file = s->file[i].file;
    for (int i = 0; i < *n; i++) {
        struct err e = {0};

        zip[i].zip = zip_open(s->files, zip[i].file, &e);
        if (!zip[i].zip && !scan_has_error(r, files_name(s->files, zip[i].file)))
            report_add_err(r, "unreadable", &e);
    }
    return zip;
}

static void close_zips(struct scan_zip *zip, int n)
{
    for (int i = 0; i < n; i++)
        zip_close(zip[i].zip);
    free(zip);
}

static void check_zip_containers(struct source *s, const struct scan_zip *zip, int n, struct report *r)
{
    for (int i = 0; i < n; i++) {
        struct err e = {0};

        if (zip[i].zip && zip_check_container(zip[i].zip, s->files, zip[i].file, r, &e) < 0)
            report_add_err(r, "read", &e);
    }
}

static void count_files(const struct source *s, struct verify_stats *st)
{
    if (!st)
        return;
    st->layout = source_layout_name(s);
    st->opens_with_holes = source_opens_with_holes(s);
    st->n_files = s->n_files;
    st->size_bytes = 0;
    for (int i = 0; i < s->n_files; i++)
        st->size_bytes += files_size(s->files, s->file[i].file);
}

/* Verify an open checkpoint or a single file. */
static int verify_opened(struct source *s, const struct verify_opts *o, struct report *r, struct err *e)
{
    int n, rc;
    struct scan_zip *zip = open_zips(s, o->weights_only, &n, r);

    if (!o->lenient)
        check_zip_containers(s, zip, n, r);
    scan_items(s, o, r);
    rc = values_check(s, zip, n, o, r, e);
    close_zips(zip, n);
    return rc;
}

/*
 * Handle an error of opening a checkpoint. If the contents are damaged, adds a finding and returns 0. If the path
 * itself cannot be opened, returns -1.
 */
static int open_failed(struct report *r, struct err *e)
{
    if (e->kind != ERR_DATA)
        return -1;
    report_add_err(r, "open", e);
    return 0;
}

static int verify_source(const char *path, const struct verify_opts *o, struct report *r, struct err *e)
{
    struct source_opts so = { .threads = o->threads, .model = o->model, .hf = true, .piped = true,
                              .no_optimizer = o->weights_only };
    struct source *s = source_open(path, &so, r, e);
    int rc;

    if (!s)
        return open_failed(r, e);
    count_files(s, o->stats);
    check_strays(s, r);
    check_sums_there(s, r);
    run_state_check_claims(s, r);
    rc = o->certificate ? certificate_expect(s, o->certificate, r, e) : 0;
    if (rc == 0 && !o->tables_only)
        rc = verify_opened(s, o, r, e);
    if (rc == 0 && !o->tables_only && !o->certificate && !o->weights_only && report_count(r, SEV_ERROR) == 0)
        single_copy_report(s, r);
    if (rc == 0)
        known_writers_report(s, r);
    source_close(s);
    return rc;
}

static int verify_file(const char *path, const struct verify_opts *o, struct report *r, struct err *e)
{
    struct source_file sf = { .pp = -1, .tp = -1, .dp = -1, .layer = -1 };
    struct source s = { .layout = &single_file_layout, .files = files_new(), .n_files = 1, .file = &sf };
    int rc = -1;

    s.path = sf.name = xstrdup(path);
    sf.file = files_add_path(s.files, path, e);
    if (sf.file < 0)
        goto out;
    count_files(&s, o->stats);
    sf.pt = pt_open(s.files, sf.file, e);
    if (!sf.pt) {
        rc = open_failed(r, e);
        goto out;
    }
    pt_check(sf.pt, s.files, sf.file, r);
    rc = verify_opened(&s, o, r, e);
out:
    pt_close(sf.pt);
    files_free(s.files);
    free(s.path);
    return rc;
}

int verify_run(const char *path, const struct verify_opts *o, struct report *r, struct err *e)
{
    struct stat st;
    bool file = stat(path, &st) == 0 && S_ISREG(st.st_mode) && !archive_is_tar(path) &&
                !lightning_is_file(path) && !other_kind_of_file(path);
    char *folder = NULL;
    int rc;

    if (o->stats)
        memset(o->stats, 0, sizeof *o->stats);
    if (o->runs)
        *o->runs = (struct verify_runs){0};
    if (file && str_ends(path, ".h5") && !str_ends(path, "index.h5")) {
        err_usage(e, "%s: the .h5 file of one parameter has no checksums; verify the folder of the checkpoint", path);
        return -1;
    }
    if (file && str_ends(path, "index.h5")) {
        folder = path_parent(path);
        path = folder;
        file = false;
    }
    if (file && o->certificate) {
        err_usage(e, "%s: --certificate needs a complete checkpoint, not a single file", path);
        return -1;
    }
    rc = file ? verify_file(path, o, r, e) : verify_source(path, o, r, e);
    free(folder);
    return rc;
}

void verify_runs_free(struct verify_runs *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->run[i].path);
    free(l->run);
    *l = (struct verify_runs){0};
}

int verify_tables(const char *path, const char *model, int threads, struct report *r, struct err *e)
{
    const struct verify_opts o = { .tables_only = true, .model = model, .threads = threads };

    return verify_source(path, &o, r, e);
}

int verify_sound(const char *path, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e)
{
    struct verify_opts o = { .threads = threads, .mem_bytes = mem_bytes, .stopped = stopped };
    struct report *r = report_new();
    int rc = verify_run(path, &o, r, e);

    for (int i = 0; i < report_n(r) && rc == 0; i++)
        if (report_get(r, i)->severity == SEV_ERROR) {
            char *text = finding_text(report_get(r, i));

            err_data(e, path, ERR_NO_BYTE, "verification failed: %s", text);
            free(text);
            rc = -1;
        }
    report_free(r);
    return rc;
}
