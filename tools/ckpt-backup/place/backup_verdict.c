/*
 * backup_verdict.c - check a backup with verify, and use the CRCs that verify computes to compare the bytes with the
 * receipt
 */
#include "tools/ckpt-backup/place/backup_verdict.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/check/verify.h"
#include "tools/ckpt-backup/place/packing.h"

/*
 * Minimum length in bytes of a run whose CRC is taken from verify. Shorter runs are read again, together with the bytes
 * around them.
 */
enum { KNOWN_MIN_BYTES = 64 << 10 };

/* A file on disk whose CRC is computed. It is one of the files in the receipt, or the .tar. */
struct summed_file {
    char *path;
    uint64_t size_bytes;
    struct crc_sum sum;
};

static bool is_tar(const struct receipt *rec)
{
    return rec->form == FORM_TAR;
}

static int n_parts(const struct receipt *rec)
{
    return is_tar(rec) ? 1 : rec->n_files;
}

static uint32_t part_crc(const struct receipt *rec, int i)
{
    return is_tar(rec) ? rec->tar_crc : rec->file[i].crc;
}

static struct summed_file *summed_files_new(const struct receipt *rec, const char *path)
{
    int n = n_parts(rec);
    struct summed_file *part = xcalloc((size_t)n + 1, sizeof *part);

    for (int i = 0; i < n; i++) {
        part[i].path = is_tar(rec) ? xstrdup(path) : path_join(path, rec->file[i].name);
        part[i].size_bytes = is_tar(rec) ? rec->size_bytes : rec->file[i].size_bytes;
    }
    return part;
}

static void summed_files_free(struct summed_file *part, int n)
{
    for (int i = 0; i < n; i++)
        free(part[i].path);
    free(part);
}

/* ---- verify ---- */

/*
 * Return the text of the finding. If the text begins with `path`, `path` is replaced by `shown`. The caller frees it.
 */
static char *text_of(const struct finding *f, const char *path, const char *shown)
{
    char *text = finding_text(f), *renamed;
    size_t n = strlen(path);

    if (strncmp(text, path, n) != 0 || !strchr("/:", text[n]))
        return text;
    renamed = str_fmt("%s%s", shown, text + n);
    free(text);
    return renamed;
}

static void record_verify_verdict(struct receipt *rec, const struct report *r, const char *path, const char *shown)
{
    rec->checked = true;
    free(rec->unsound);
    rec->unsound = NULL;
    for (int i = 0; i < report_n(r) && !rec->unsound; i++)
        if (report_get(r, i)->severity == SEV_ERROR)
            rec->unsound = text_of(report_get(r, i), path, shown);
}

static int run_verify(const struct place_opts *o, struct receipt *rec, const char *path, const char *shown,
                      struct verify_runs *runs, struct err *e)
{
    const struct verify_opts vo = { .weights_only = rec->form == FORM_WEIGHTS, .threads = o->threads,
                                    .mem_bytes = o->mem_bytes, .progress = o->progress, .stopped = o->stopped,
                                    .runs = runs };
    struct report *r = report_new();
    int rc = verify_run(path, &vo, r, e);

    if (rc == 0)
        record_verify_verdict(rec, r, path, shown);
    report_free(r);
    return rc;
}

/* ---- bytes that verify did not read ---- */

/* Return the index of the first run of the file `path`, or the index at which it would be inserted. */
static int find_first_verify_run(const struct verify_runs *l, const char *path)
{
    int from = 0, to = l->n;

    while (from < to) {
        int mid = from + (to - from) / 2;

        if (strcmp(l->run[mid].path, path) < 0)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

static void add_gap_run(struct transfer *t, const struct summed_file *part, uint64_t at, uint64_t end)
{
    if (end > at)
        transfer_add(t, xstrdup(part->path), NULL, end - at)->from_at = at;
}

/*
 * Add the runs whose CRCs verify has computed to the CRC of the file. The bytes between these runs become runs of t,
 * which must be read.
 */
static void cut_part(struct transfer *t, struct summed_file *part, const struct verify_runs *known)
{
    uint64_t at = 0;

    for (int i = find_first_verify_run(known, part->path); i < known->n && strcmp(known->run[i].path, part->path) == 0;
         i++) {
        const struct verify_run *k = &known->run[i];

        if (k->len < KNOWN_MIN_BYTES || k->at < at || k->at > part->size_bytes || k->len > part->size_bytes - k->at)
            continue;
        add_gap_run(t, part, at, k->at);
        crc_sum_add(&part->sum, part->size_bytes, k->at, k->len, k->crc);
        at = k->at + k->len;
    }
    add_gap_run(t, part, at, part->size_bytes);
}

/*
 * Compute the CRCs of the files. If `known` is not NULL, only bytes that are not in its runs are read. If it is NULL,
 * all bytes are read, and the CRCs that .pt files store for their records are compared.
 */
static int sum_parts(const struct place_opts *o, struct summed_file *part, int n, const struct verify_runs *known,
                     struct err *e)
{
    struct transfer_opts to = place_transfer(o, "read", NULL);
    struct transfer t = {0};
    int *end = xcalloc((size_t)n + 1, sizeof *end), rc;

    if (known)
        to.progress = PROGRESS_NEVER;   /* only a few bytes are read */
    for (int i = 0; i < n; i++) {
        if (known)
            cut_part(&t, &part[i], known);
        else
            transfer_add(&t, xstrdup(part[i].path), NULL, part[i].size_bytes)->records = str_ends(part[i].path, ".pt");
        end[i] = t.n;
    }
    rc = transfer_do(&t, &to, NULL, e);
    for (int i = 0, k = 0; i < n && rc == 0; i++)
        for (; k < end[i]; k++)
            crc_sum_add(&part[i].sum, part[i].size_bytes, t.run[k].from_at, t.run[k].size_bytes, t.run[k].crc);
    transfer_free(&t);
    free(end);
    return rc;
}

/* ---- comparing only the bytes ---- */

static void add_crc_run(struct transfer *t, char *path, uint64_t size_bytes, uint32_t crc)
{
    struct transfer_run *r = transfer_add(t, path, NULL, size_bytes);

    r->has_crc = true;
    r->crc = crc;
}

int verdict_bytes(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                  struct err *e)
{
    struct transfer_opts to = place_transfer(o, "verify", r);
    struct transfer t = {0};
    int rc;

    if (rec->form == FORM_PACK)
        return packing_check(o, rec, path, r, e);
    if (rec->form == FORM_DELTA)
        return differing_read(o, rec, path, NULL, r, e);
    if (rec->form == FORM_TAR)
        add_crc_run(&t, xstrdup(path), rec->size_bytes, rec->tar_crc);
    for (int i = 0; i < rec->n_files && rec->form != FORM_TAR; i++)
        add_crc_run(&t, path_join(path, rec->file[i].name), rec->file[i].size_bytes, rec->file[i].crc);
    rc = transfer_do(&t, &to, NULL, e);
    transfer_free(&t);
    return rc;
}

/* ---- comparing and verifying ---- */

static bool same_sums(const struct receipt *rec, const struct summed_file *part)
{
    bool same = true;

    for (int i = 0; i < n_parts(rec); i++)
        same = same && part[i].sum.acc == part_crc(rec, i);
    return same;
}

/* Returns 1 if all bytes match the receipt and verify has found no error, 0 if not, -1 on error. */
static int compare_sound(const struct place_opts *o, struct receipt *rec, const char *path, const char *shown,
                         struct err *e)
{
    struct summed_file *part = summed_files_new(rec, path);
    struct verify_runs known = {0};
    int rc;

    for (int i = 0; i < n_parts(rec); i++)
        transfer_drop_cached(part[i].path);
    rc = run_verify(o, rec, path, shown, &known, e);
    if (rc == 0 && rec->unsound)
        rc = 1;
    if (rc == 0)
        rc = sum_parts(o, part, n_parts(rec), &known, e);
    if (rc == 0)
        rc = same_sums(rec, part) ? 2 : 1;
    verify_runs_free(&known);
    summed_files_free(part, n_parts(rec));
    return rc - (rc > 0);
}

int verdict_compare(const struct place_opts *o, struct receipt *rec, const char *path, const char *shown,
                    struct report *r, struct err *e)
{
    int before = r ? report_count(r, SEV_ERROR) : 0, rc = compare_sound(o, rec, path, shown, e);

    if (rc == 1)
        return 0;
    if (rc < 0 && e->kind != ERR_DATA)
        return -1;
    /*
     * A file has become shorter. This error is ignored here, because verdict_bytes() reads the file again and reports
     * it by name.
     */
    err_clear(e);
    rc = verdict_bytes(o, rec, path, r, e);
    if (rc < 0 || (r && report_count(r, SEV_ERROR) > before))
        return rc;
    if (rec->unsound)
        return 0;
    err_data(e, path, ERR_NO_BYTE, "two readings of the file gave different bytes; check the disk and its cables");
    if (!r)
        return -1;
    report_add_err(r, "read", e);
    return 0;
}

int verdict_sum(const struct place_opts *o, struct receipt *rec, const char *folder, struct err *e)
{
    struct summed_file *part = summed_files_new(rec, folder);
    struct verify_runs known = {0};
    const bool any = rec->form == FORM_ANY;
    int rc = any ? 0 : run_verify(o, rec, folder, folder, &known, e);

    /*
     * All bytes are read again in two cases: nothing was verified, or a stored CRC is wrong. In the second case the
     * CRCs from verify cannot be used, because they are the stored CRCs.
     */
    if (rc == 0)
        rc = sum_parts(o, part, rec->n_files, any || rec->unsound ? NULL : &known, e);
    for (int i = 0; i < rec->n_files && rc == 0; i++)
        rec->file[i].crc = part[i].sum.acc;
    verify_runs_free(&known);
    summed_files_free(part, rec->n_files);
    return rc;
}
