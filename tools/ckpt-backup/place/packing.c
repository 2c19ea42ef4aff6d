/* packing.c - write, check and restore a packed file that a receipt describes */
#include "tools/ckpt-backup/place/packing.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pack/pack.h"
#include "tools/ckpt-backup/delta/file_delta.h"
#include "tools/ckpt-backup/place/pack_runs.h"

static struct pack_opts pack_opts(const struct place_opts *o, const struct receipt *rec, const char *what)
{
    return (struct pack_opts){ .threads = o->threads, .stopped = o->stopped,
                               .progress = progress_new(what, receipt_raw_bytes(rec), o->progress) };
}

/* Compare the CRCs of the bytes that were packed with the CRCs that the .pt files store for their records. */
static int check_pack_record_crcs(const struct pack_index *x, const struct pack_records *l, const char *folder,
                                  struct err *e)
{
    for (int i = 0; i < l->n; i++) {
        const struct pack_record *r = &l->record[i];
        uint32_t crc = pack_range_crc(x, r->file, r->at, r->len);
        char *path;

        if (crc == r->crc)
            continue;
        path = path_join(folder, x->file[r->file].name);
        err_data(e, path, r->at,
                 "record %s of %" PRIu64 " bytes has CRC-32 %08x, but the directory of its file lists %08x; the "
                 "checkpoint is damaged", r->name, r->len, crc, r->crc);
        free(path);
        return -1;
    }
    return 0;
}

int packing_put(const struct place_opts *o, const struct content *c, struct receipt *rec, const char *part,
                struct err *e)
{
    struct pack_opts po = pack_opts(o, rec, "pack");
    struct pack_records records = {0};
    struct pack_index x = {0};
    struct pack *p = NULL;
    int rc = -1;

    pack_runs_make(&x, &records, c, o->threads);
    if (pack_write(part, c->path, &x, &po, e) < 0 || check_pack_record_crcs(&x, &records, c->path, e) < 0)
        goto out;
    for (int i = 0; i < rec->n_files; i++)
        rec->file[i].crc = x.file[i].crc;
    p = pack_open(part, e);
    if (!p)
        goto out;
    rec->size_bytes = pack_size(p);
    rec->tar_crc = pack_crc(p);
    rc = 0;
out:
    pack_close(p);
    progress_end(po.progress);
    pack_index_free(&x);
    pack_records_free(&records);
    return rc;
}

/*
 * Check that the packed file is the one that the receipt describes. Otherwise returns -1 with ERR_DATA, even if the
 * file is sound.
 */
static int check_same(const struct pack *p, const struct receipt *rec, const char *path, struct err *e)
{
    const struct pack_index *x = pack_index(p);
    bool same = pack_crc(p) == rec->tar_crc && pack_size(p) == rec->size_bytes && x->n_files == rec->n_files;

    for (int i = 0; i < rec->n_files && same; i++)
        same = strcmp(x->file[i].name, rec->file[i].name) == 0 && x->file[i].size_bytes == rec->file[i].size_bytes &&
               x->file[i].crc == rec->file[i].crc;
    if (same)
        return 0;
    err_data(e, path, ERR_NO_BYTE, "has CRC-32 %08x, but its receipt lists %08x; the packed file is damaged",
             pack_crc(p), rec->tar_crc);
    return -1;
}

/*
 * Open a packed file after removing it from the page cache, so that it is read from the disk. Bytes that were just
 * written would otherwise come from memory, and reading them would prove nothing.
 */
static struct pack *open_cold(const char *path, const struct receipt *rec, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct pack *p;

    if (fd >= 0) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    p = pack_open(path, e);
    if (p && check_same(p, rec, path, e) < 0) {
        pack_close(p);
        p = NULL;
    }
    return p;
}

int packing_check(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                  struct err *e)
{
    struct pack *p = open_cold(path, rec, e);
    struct pack_opts po;
    int rc;

    if (!p && r && e->kind == ERR_DATA) {
        report_add_err(r, "crc", e);
        return 0;
    }
    if (!p)
        return -1;
    po = pack_opts(o, rec, "verify");
    rc = pack_unpack(p, NULL, &po, r, e);
    progress_end(po.progress);
    pack_close(p);
    return rc;
}

int packing_get(const struct place_opts *o, const struct receipt *rec, const char *path, const char *folder,
                struct err *e)
{
    struct pack *p = open_cold(path, rec, e);
    struct pack_opts po;
    int rc;

    if (!p)
        return -1;
    po = pack_opts(o, rec, "restore");
    rc = pack_unpack(p, folder, &po, NULL, e);
    progress_end(po.progress);
    pack_close(p);
    return rc;
}

/* ---- differences ---- */

/* Make the description of a delta from a receipt. The caller frees d.file. */
static struct file_delta delta_of_receipt(const struct place_opts *o, const struct receipt *rec, const char *what)
{
    struct file_delta d = { .n = rec->n_files, .size_bytes = rec->size_bytes, .crc = rec->tar_crc,
                            .stopped = o->stopped,
                            .progress = progress_new(what, receipt_raw_bytes(rec), o->progress) };

    d.file = xcalloc((size_t)rec->n_files + 1, sizeof *d.file);
    for (int i = 0; i < rec->n_files; i++)
        d.file[i] = (struct delta_file){ .name = rec->file[i].name, .size_bytes = rec->file[i].size_bytes,
                                         .crc = rec->file[i].crc };
    return d;
}

static void delta_of_receipt_free(struct file_delta *d)
{
    progress_end(d->progress);
    free(d->file);
}

/* Read the content, compare the CRCs that its .pt files store, and set those of the files in the receipt. */
static int sum_content(const struct place_opts *o, const struct content *c, struct receipt *rec, struct err *e)
{
    struct transfer_opts to = place_transfer(o, "read", NULL);
    struct transfer t = {0};
    int rc;

    for (int i = 0; i < rec->n_files; i++)
        transfer_add(&t, path_join(c->path, rec->file[i].name), NULL, rec->file[i].size_bytes)->records =
            str_ends(rec->file[i].name, ".pt");
    rc = transfer_do(&t, &to, NULL, e);
    for (int i = 0; i < rec->n_files && rc == 0; i++)
        rec->file[i].crc = t.run[i].crc;
    transfer_free(&t);
    return rc;
}

int differing_put(const struct place_opts *o, const struct content *c, struct receipt *rec,
                  const struct receipt *base, const char *part, struct err *e)
{
    char *place = path_parent(part), *folder = path_join(place, base->name);
    struct file_delta d;
    int rc = sum_content(o, c, rec, e);

    d = delta_of_receipt(o, rec, "copy");
    d.path = part;
    d.base = folder;
    d.folder = c->path;
    for (int i = 0; i < d.n; i++) {
        const struct receipt_file *f = receipt_find(base, d.file[i].name);

        d.file[i].has_base = f != NULL;
        d.file[i].base_bytes = f ? f->size_bytes : 0;
        d.file[i].base_crc = f ? f->crc : 0;
    }
    if (rc == 0)
        rc = delta_write(&d, e);
    rec->size_bytes = d.size_bytes;
    rec->tar_crc = d.crc;
    free(rec->base);
    rec->base = xstrdup(base->name);
    rec->base_crc = receipt_sums_crc(base);
    delta_of_receipt_free(&d);
    free(folder);
    free(place);
    return rc;
}

int differing_read(const struct place_opts *o, const struct receipt *rec, const char *path, const char *folder,
                   struct report *r, struct err *e)
{
    char *place = path_parent(path), *base = path_join(place, rec->base);
    struct file_delta d = delta_of_receipt(o, rec, folder ? "restore" : "verify");
    int rc;

    d.path = path;
    d.base = base;
    d.folder = folder;
    rc = delta_read(&d, e);
    if (rc < 0 && r && e->kind == ERR_DATA) {
        report_add_err(r, "crc", e);
        err_clear(e);
        rc = 0;
    }
    delta_of_receipt_free(&d);
    free(base);
    free(place);
    return rc;
}
