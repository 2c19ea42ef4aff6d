/* verify_scan.c - read all records once: directly for a small checkpoint, otherwise with the executor */
#include "libcommon/check/verify_scan.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/format/archive.h"
#include "libcommon/plan/executor.h"

/*
 * A checkpoint of at most this many bytes is read into memory as a whole. Starting threads, rings and a pool of huge
 * pages would take longer than the work itself.
 */
#define DIRECT_MAX_BYTES (8u << 20)
#define DEFAULT_MEM_BYTES (96u << 20)

/* ---- records: every zip entry becomes a record, even if no tensor uses it ---- */

struct scan_place {
    int file, record;
    uint64_t at, len;
};

static int place_cmp(const void *a, const void *b)
{
    const struct scan_place *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->len < y->len ? -1 : x->len > y->len;
}

static struct scan_place *sorted_records(struct files *f, int *n)
{
    struct scan_place *p;

    *n = files_n_records(f);
    p = xcalloc((size_t)*n + 1, sizeof *p);
    for (int i = 0; i < *n; i++) {
        const struct record *rec = files_record(f, i);

        p[i] = (struct scan_place){ .file = rec->file, .record = i, .at = rec->at, .len = rec->len };
    }
    qsort(p, (size_t)*n, sizeof *p, place_cmp);
    return p;
}

static void report_crc_mismatch(struct files *f, const struct record *rec, uint32_t crc, struct report *r)
{
    if (report_has(r, "crc", files_name(f, rec->file), rec->at))
        /* the code that opened the checkpoint uses this record, and has reported the damage */
        return;
    report_add(r, SEV_ERROR, "crc", files_name(f, rec->file), rec->at, NULL,
               "record %s is corrupt (crc %08x, expected %08x)", rec->name, crc, rec->crc);
}

/* Check a compressed entry by unpacking it. */
static void check_compressed_entry(struct source *s, int file, const struct zip_entry *z, struct report *r)
{
    struct archive_want want = { .name = z->name, .size = z->size, .crc = z->crc };
    struct err e = {0};

    if (archive_unpack(s->files, file, &want, 1, &e) < 0)
        report_add_err(r, "crc", &e);
}

/*
 * Add a record for every stored (not compressed) zip entry that is not yet a record, such as the pickle, the version
 * and the byte order. Compressed entries are checked at once.
 */
static void add_zip_entry_records(struct source *s, const struct scan_list *scan, struct report *r)
{
    int n;
    struct scan_place *known = sorted_records(s->files, &n);

    for (int i = 0; i < scan->n_zips; i++) {
        const struct zip *z = scan->zip[i].zip;
        const int file = scan->zip[i].file;

        for (int k = 0; z && k < zip_n(z); k++) {
            const struct zip_entry *ze = zip_entry(z, k);
            struct scan_place want = { .at = ze->at, .len = ze->size };

            want.file = files_home(s->files, file, &want.at);
            if (ze->size == 0)
                continue;
            if (ze->method != 0)
                check_compressed_entry(s, file, ze, r);
            else if (!bsearch(&want, known, (size_t)n, sizeof *known, place_cmp))
                files_add_record(s->files, &(struct record){ .file = want.file, .at = want.at, .len = ze->size,
                                                             .has_crc = ze->crc != 0, .crc = ze->crc,
                                                             .name = ze->name });
        }
        if (z)
            zip_check_crcs(z, s->files, file, r);
    }
    free(known);
}

/* ---- zips inside files ---- */

bool scan_has_error(const struct report *r, const char *name)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        if (f->severity == SEV_ERROR && (f->file ? strcmp(f->file, name) == 0 : str_starts(f->text, name)))
            return true;
    }
    return false;
}

/*
 * Returns true if the report has a finding with exactly this text, for example about a file that could not be opened.
 */
static bool has_text(const struct report *r, const char *text)
{
    for (int i = 0; i < report_n(r); i++)
        if (strcmp(report_get(r, i)->text, text) == 0)
            return true;
    return false;
}

static void check_entry(struct source *s, int file, const struct zip_entry *z, struct report *r)
{
    enum { PART = 1 << 16 };
    uint64_t at = z->at, home_at = z->at;
    const int home = files_home(s->files, file, &home_at);
    uint8_t *buf = xmalloc(PART);
    struct err e = {0};
    uint32_t crc = 0;

    for (uint64_t left = z->size; left;) {
        const uint64_t n = min_u64(left, PART);

        if (files_read(s->files, file, at, buf, n, &e) < 0) {
            report_add_err(r, "read", &e);
            free(buf);
            return;
        }
        crc = crc_bytes(crc, buf, n);
        at += n;
        left -= n;
    }
    if (crc != z->crc)
        report_crc_mismatch(s->files, &(struct record){ .file = home, .at = home_at, .crc = z->crc, .name = z->name },
                            crc, r);
    free(buf);
}

static void check_item(struct source *s, int file, const struct scan_place *known, int n_known, bool lenient,
                       struct report *r)
{
    struct err e = {0};
    struct zip *z = zip_open(s->files, file, &e);

    if (!z && !scan_has_error(r, files_name(s->files, file)))
        report_add_err(r, "unreadable", &e);
    if (z && !lenient && zip_check_container(z, s->files, file, r, &e) < 0)
        report_add_err(r, "read", &e);
    for (int k = 0; z && k < zip_n(z); k++) {
        const struct zip_entry *ze = zip_entry(z, k);
        struct scan_place want = { .at = ze->at, .len = ze->size };

        want.file = files_home(s->files, file, &want.at);
        if (ze->size == 0)
            continue;
        if (ze->method != 0)
            check_compressed_entry(s, file, ze, r);
        else if (ze->crc != 0 && !bsearch(&want, known, (size_t)n_known, sizeof *known, place_cmp))
            check_entry(s, file, ze, r);
    }
    if (z)
        zip_check_crcs(z, s->files, file, r);
    zip_close(z);
}

void scan_items(struct source *s, const struct verify_opts *o, struct report *r)
{
    enum { BATCH = 512 };
    struct scan_place *known = NULL;
    int file[BATCH], n_known = 0;

    if (s->n_items == 0)
        return;
    known = sorted_records(s->files, &n_known);
    memset(file, -1, sizeof file);
    for (int first = 0; first < s->n_items && !(o->stopped && o->stopped()); first += BATCH) {
        const int n = s->n_items - first < BATCH ? s->n_items - first : BATCH;

        for (int i = 0; i < n; i++) {
            const struct source_item *it = &s->item[first + i];
            char *name = str_fmt("%s+%llu", files_name(s->files, it->file), (unsigned long long)it->at);

            if (file[i] < 0)
                file[i] = files_add_item(s->files, it->file, it->at, it->len, name);
            else
                files_point_item(s->files, file[i], it->file, it->at, it->len, name);
            free(name);
        }
        #pragma omp parallel for num_threads(o->threads < n ? o->threads : n) schedule(dynamic, 8) if (n > 64)
        for (int i = 0; i < n; i++)
            check_item(s, file[i], known, n_known, o->lenient, r);
    }
    free(known);
}

/* ---- small checkpoints: whole files in memory ---- */

struct images {
    struct files *files;
    int n;
    uint8_t **bytes;            /* [n]: the bytes of each file; NULL if the file could not be read, or is an item
                                 * inside another file */
};

static bool is_item(const struct files *f, int file)
{
    return files_home(f, file, &(uint64_t){0}) != file;
}

static uint64_t total_bytes(struct files *f)
{
    uint64_t sum = 0;

    for (int i = 0; i < files_count(f); i++)
        if (!is_item(f, i) && !add_u64(sum, files_size(f, i), &sum))
            return UINT64_MAX;
    return sum;
}

static void images_read(struct images *im, struct files *f, struct report *r)
{
    im->files = f;
    im->n = files_count(f);
    im->bytes = xcalloc((size_t)im->n + 1, sizeof *im->bytes);
    for (int i = 0; i < im->n; i++) {
        uint64_t size = files_size(f, i);
        struct err e = {0};

        if (is_item(f, i))
            continue;
        im->bytes[i] = xmalloc(size + 1);
        if (files_read(f, i, 0, im->bytes[i], size, &e) < 0) {
            report_add_err(r, "read", &e);
            free(im->bytes[i]);
            im->bytes[i] = NULL;
        }
    }
}

static void images_free(struct images *im)
{
    for (int i = 0; i < im->n; i++)
        free(im->bytes[i]);
    free(im->bytes);
}

struct scan_gather {
    const struct images *im;
    uint8_t *out;
};

static int copy_piece(void *ctx, const struct tmap_piece *p)
{
    struct scan_gather *g = ctx;
    const struct record *rec = files_record(g->im->files, p->src.record);
    const uint8_t *src = g->im->bytes[rec->file];

    if (!src)
        return -1;
    src += rec->at + p->src.at;
    for (uint64_t i = 0; i < p->n; i++)
        memcpy(g->out + p->dst + i * p->stride, src + i * p->run, p->run);
    return 0;
}

static bool direct_gather(const struct images *im, const struct tmap *m, int slice, uint8_t *out)
{
    struct scan_gather g = { .im = im, .out = out };

    return tmap_gather(m, 0, m->len, slice, copy_piece, &g) == 0;
}

static bool direct_sum(const struct images *im, const struct tmap *m, uint8_t *out)
{
    uint8_t *all = xmalloc((size_t)m->n_slices * m->len + 1);
    const void **part = xcalloc((size_t)m->n_slices, sizeof *part);
    bool seen = true;

    for (int k = 0; k < m->n_slices && seen; k++) {
        part[k] = all + (uint64_t)k * m->len;
        seen = direct_gather(im, m, k, all + (uint64_t)k * m->len);
    }
    if (seen)
        tmap_add(part, m->n_slices, m->len, m->dtype, out);
    free(part);
    free(all);
    return seen;
}

static uint64_t count_different(const uint8_t *a, const uint8_t *b, uint64_t len, uint64_t size)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < len; i += size)
        n += memcmp(a + i, b + i, size) != 0;
    return n;
}

static void direct_item(const struct images *im, struct scan_item *it, int number, scan_look *look, void *ctx)
{
    const struct tmap *m = it->map;
    bool replicas = m->op == TMAP_REPLICAS;
    uint8_t *buf = xmalloc(2 * m->len + 1);

    if (m->op == TMAP_SUM && m->n_slices > 1 ? direct_sum(im, m, buf) : direct_gather(im, m, replicas ? 0 : -1, buf)) {
        it->seen = true;
        it->crc = crc_bytes(0, buf, m->len);
        look(ctx, number, 0, buf, m->len);
    }
    for (int k = 1; it->seen && replicas && k < m->n_slices; k++) {
        if (!direct_gather(im, m, k, buf + m->len))
            it->seen = false;
        else if (memcmp(buf, buf + m->len, m->len) != 0)
            it->n_differ += count_different(buf, buf + m->len, m->len, (uint64_t)dtype_size(m->dtype));
    }
    free(buf);
}

static void scan_direct(struct source *s, const struct scan_list *scan, struct report *r)
{
    struct images im;

    images_read(&im, s->files, r);
    for (int i = 0; i < files_n_records(s->files); i++) {
        const struct record *rec = files_record(s->files, i);
        uint32_t crc;

        if (!rec->has_crc || !im.bytes[rec->file])
            continue;
        crc = crc_bytes(0, im.bytes[rec->file] + rec->at, rec->len);
        if (crc != rec->crc)
            report_crc_mismatch(s->files, rec, crc, r);
    }
    for (int i = 0; i < scan->n; i++)
        direct_item(&im, &scan->item[i], i, scan->look, scan->ctx);
    images_free(&im);
}

/* ---- large checkpoints: the executor ---- */

static int pass_on(void *ctx, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len,
                   struct err *e)
{
    const struct scan_list *scan = ctx;
    const struct scan_item *item = it->user;

    (void)e;
    if (item)
        scan->look(scan->ctx, (int)(item - scan->item), from, bytes, len);
    return 0;
}

/*
 * List the records that no item uses, each as a map of one extent. Returns the number of these records. The caller
 * frees *maps with maps_free().
 */
static int untouched_maps(struct source *s, const struct scan_item *item, int n, struct tmap **maps)
{
    struct files *f = s->files;
    int n_rec = files_n_records(f), n_maps = 0;
    bool *touched = xcalloc((size_t)n_rec + 1, sizeof *touched);
    struct tmap *m;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < item[i].map->n_slices; k++)
            for (int x = 0; x < item[i].map->slice[k].n_extents; x++)
                touched[item[i].map->slice[k].extent[x].record] = true;

    m = *maps = xcalloc((size_t)n_rec + 1, sizeof *m);
    for (int i = 0; i < n_rec; i++) {
        const struct record *rec = files_record(f, i);

        if (touched[i] || !rec->has_crc || rec->len == 0)
            continue;
        m[n_maps] = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = rec->len, .n_slices = 1 };
        m[n_maps].slice = xcalloc(1, sizeof *m->slice);
        m[n_maps].slice->len = rec->len;
        m[n_maps].slice->n_extents = 1;
        m[n_maps].slice->extent = xcalloc(1, sizeof *m->slice->extent);
        *m[n_maps++].slice->extent = (struct extent){ .record = i, .len = rec->len };
    }
    free(touched);
    return n_maps;
}

static void maps_free(struct tmap *m, int n)
{
    for (int i = 0; i < n; i++) {
        free(m[i].slice->extent);
        free(m[i].slice);
    }
    free(m);
}

static int scan_exec(struct source *s, const struct scan_list *scan, const struct verify_opts *o, struct report *r,
                     struct err *e)
{
    struct plan *p = plan_new(s->files);
    struct scan_item *item = scan->item;
    struct exec_opts x = { .threads = o->threads, .mem_bytes = o->mem_bytes ? o->mem_bytes : DEFAULT_MEM_BYTES,
                           .stopped = o->stopped, .look = pass_on, .ctx = (void *)scan, .report = r };
    struct tmap *maps;
    int n = scan->n, n_maps = untouched_maps(s, item, n, &maps), rc;

    for (int i = 0; i < n; i++) {
        plan_add(p, &(struct plan_range){ .map = item[i].map, .len = item[i].map->len, .policy = REPLICAS_FIRST,
                                          .name = item[i].name, .user = &item[i] }, -1, 0);
        plan_item(p, i)->twins = item[i].twins;
    }
    for (int i = 0; i < n_maps; i++)
        plan_add(p, &(struct plan_range){ .map = &maps[i], .len = maps[i].len, .policy = REPLICAS_FIRST,
                                          .name = files_record(s->files, maps[i].slice->extent->record)->name }, -1, 0);
    plan_close(p);

    x.progress = progress_new("verify", plan_read_bytes(p), o->progress);
    rc = exec_run(p, &x, NULL, e);
    progress_end(x.progress);
    for (int i = 0; i < n; i++) {
        item[i].seen = plan_item(p, i)->left == 0;
        item[i].crc = plan_item(p, i)->crc.acc;
        item[i].n_differ = plan_item(p, i)->n_differ;
    }
    if (rc < 0 && e->kind != ERR_STOP) {
        if (has_text(r, e->msg))
            err_clear(e);
        else
            report_add_err(r, "read", e);
        rc = 0;
    }
    plan_free(p);
    maps_free(maps, n_maps);
    return rc;
}

/*
 * Returns false, with a finding, if the tensors together are larger than their files. Such tensors share bytes, and no
 * trainer writes such a file. Reading the same bytes many times would let a small file keep verify busy for days.
 */
static bool sizes_possible(struct source *s, const struct scan_item *item, int n, struct report *r)
{
    uint64_t files = total_bytes(s->files), tensors = 0;

    for (int i = 0; i < n; i++)
        if (!add_u64(tensors, item[i].map->len, &tensors))
            tensors = UINT64_MAX;
    if (tensors <= files)
        return true;
    report_add(r, SEV_ERROR, "overlap", NULL, ERR_NO_BYTE, NULL,
               "the tensors have %llu bytes, but their files only %llu, so tensors overlap",
               (unsigned long long)tensors, (unsigned long long)files);
    return false;
}

int scan_run(struct source *s, const struct scan_list *scan, const struct verify_opts *o, struct report *r,
             struct err *e)
{
    struct scan_list possible = *scan;

    add_zip_entry_records(s, scan, r);
    if (!sizes_possible(s, scan->item, scan->n, r))
        possible.n = 0;
    if (total_bytes(s->files) > DIRECT_MAX_BYTES)
        return scan_exec(s, &possible, o, r, e);
    scan_direct(s, &possible, r);
    return 0;
}

/* ---- the runs that were read ---- */

static int compare_manifest_runs(const void *a, const void *b)
{
    const struct manifest_run *x = a, *y = b;

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/*
 * Returns the extent of a tensor that consists of a single piece, as in the universal forms. The digest of such a
 * tensor is also the CRC of its extent. Returns NULL for all other tensors.
 */
static const struct extent *only_extent(const struct scan_item *it)
{
    const struct tmap *m = it->map;

    return it->seen && m->n_slices == 1 && m->slice[0].n_extents == 1 && m->len > 0 ? m->slice[0].extent : NULL;
}

int scan_runs(const struct source *s, const struct scan_item *item, int n, struct manifest_run **out)
{
    int n_rec = files_n_records(s->files), n_runs = 0, n_kept = 0;
    struct manifest_run *run = xcalloc((size_t)n_rec + (size_t)n + 1, sizeof *run);

    for (int i = 0; i < n_rec; i++) {
        const struct record *rec = files_record(s->files, i);

        if (rec->has_crc && rec->len > 0)
            run[n_runs++] = (struct manifest_run){ rec->file, rec->at, rec->len, rec->crc };
    }
    for (int i = 0; i < n; i++) {
        const struct extent *x = only_extent(&item[i]);
        const struct record *rec = x ? files_record(s->files, x->record) : NULL;

        if (rec && !rec->has_crc)
            run[n_runs++] = (struct manifest_run){ rec->file, rec->at + x->at, x->len, item[i].crc };
    }
    qsort(run, (size_t)n_runs, sizeof *run, compare_manifest_runs);
    /* Two tables may list the same bytes. In that case keep only one of the runs. */
    for (int i = 0; i < n_runs; i++)
        if (n_kept == 0 || run[n_kept - 1].file != run[i].file ||
            run[n_kept - 1].at + run[n_kept - 1].len <= run[i].at)
            run[n_kept++] = run[i];
    *out = run;
    return n_kept;
}
