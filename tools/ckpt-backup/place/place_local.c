/* place_local.c - a place that is a folder of this machine */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/local.h"
#include "tools/ckpt-backup/place/backup_verdict.h"

enum { RECEIPT_MAX = 256 << 20 };

/* ---- receipts ---- */

/* Read the receipt in the file NAME.json of the folder, and add it to `out`. */
static void add_receipt_file(struct place *p, const char *file, struct place_receipts *out, struct report *r)
{
    char *name = str_fmt("%.*s", (int)(strlen(file) - strlen(".json")), file);
    struct err e = {0};
    struct receipt *rec = local_read_receipt(p, name, &e);
    int before = report_count(r, SEV_ERROR);

    free(name);
    if (!rec) {
        if (e.kind != ERR_NONE)
            report_add_err(r, "receipt", &e);
        return;
    }
    local_check_files(p, rec, r);
    if (report_count(r, SEV_ERROR) > before)
        rec->intact = false;
    place_add_receipt(out, rec);
}

static int local_receipts(struct place *p, struct place_receipts *out, struct report *r, struct err *e)
{
    char *folder = path_join(p->path, RECEIPT_FOLDER);
    DIR *d = opendir(folder);
    struct dirent *ent;
    int rc = 0;

    if (!d && errno != ENOENT) {
        err_sys(e, folder, "cannot list the folder");
        rc = -1;
    }
    while (d && (errno = 0, ent = readdir(d)) != NULL)
        if (str_ends(ent->d_name, ".json") && ent->d_name[0] != '.')
            add_receipt_file(p, ent->d_name, out, r);
    if (d && errno) {
        err_sys(e, folder, "cannot list the folder");
        rc = -1;
    }
    if (d)
        closedir(d);
    free(folder);
    return rc;
}

/* ---- check ---- */

static int local_check(struct place *p, struct receipt *rec, struct report *r, struct err *e)
{
    char *path = path_join(p->path, rec->name);
    int before = report_count(r, SEV_ERROR), rc = 0;

    local_check_files(p, rec, r);
    /* local_check_files() has just found and reported missing files. Then the other files need not be read. */
    if (report_count(r, SEV_ERROR) == before)
        rc = receipt_reads_in_place(rec) ? verdict_compare(&p->o, rec, path, path, r, e)
                                         : verdict_bytes(&p->o, rec, path, r, e);
    free(path);
    return rc;
}

/* ---- remove ---- */

static int unlink_if_there(const char *path, struct err *e)
{
    if (unlink(path) == 0 || errno == ENOENT)
        return 0;
    err_sys(e, path, "cannot remove");
    return -1;
}

static int remove_bytes(const struct receipt *rec, const char *path, struct err *e)
{
    struct stat st;

    if (lstat(path, &st) < 0 && errno == ENOENT)
        return 0;
    return receipt_is_file(rec->form) || S_ISLNK(st.st_mode) ? unlink_if_there(path, e) : dir_remove(path, e);
}

/*
 * Finish a removal. NAME.json has been renamed to NAME.gone, so the backup no longer counts. Its folder is renamed
 * before it is removed, so that a folder that is removed only in part is never mistaken for a checkpoint.
 */
static int finish_local_removal(struct place *p, const struct receipt *rec, struct err *e)
{
    char *path = path_join(p->path, rec->name), *gone = str_fmt("%s.gone.part", path);
    char *sums = local_path(p, rec->name, ".crc32"), *note = local_path(p, rec->name, ".gone");
    int rc = -1;

    if (rename(path, gone) < 0 && errno != ENOENT) {
        err_sys(e, path, "cannot rename to %s", gone);
        goto out;
    }
    if (dir_sync(path, e) < 0 || remove_bytes(rec, gone, e) < 0 || unlink_if_there(sums, e) < 0)
        goto out;
    rc = unlink_if_there(note, e);
out:
    free(path);
    free(gone);
    free(sums);
    free(note);
    return rc;
}

static int local_remove(struct place *p, const struct receipt *rec, struct err *e)
{
    char *path = path_join(p->path, rec->name), *json = local_path(p, rec->name, ".json");
    char *note = local_path(p, rec->name, ".gone");
    char *foreign = local_foreign(rec, path);
    int rc = -1;

    if (foreign) {
        err_data(e, path, ERR_NO_BYTE, "nothing was removed, because the folder holds %s, which its receipt does not "
                                       "list; move that file to another folder",
                 foreign);
    } else if (rename(json, note) < 0) {
        err_sys(e, json, "cannot rename to %s", note);
    } else if (dir_sync(json, e) == 0) {
        rc = finish_local_removal(p, rec, e);
    }
    free(foreign);
    free(path);
    free(json);
    free(note);
    return rc;
}

/* Finish the removals and replacements that a killed process had begun. */
static int finish_killed_changes(struct place *p, struct err *e)
{
    char *folder = path_join(p->path, RECEIPT_FOLDER), *latest = path_join(p->path, "latest");
    DIR *d = opendir(folder);
    struct dirent *ent;
    int rc = file_replace_sweep(latest, e);

    while (d && rc == 0 && (ent = readdir(d)) != NULL) {
        char *path = path_join(folder, ent->d_name), *text = NULL;
        struct receipt *rec = NULL;
        struct err ignored = {0};
        uint64_t size;

        if (str_ends(ent->d_name, ".gone"))
            text = file_slurp(path, RECEIPT_MAX, &size, &ignored);
        if (text)
            rec = receipt_parse(text, size, path, &ignored);
        if (rec)
            rc = finish_local_removal(p, rec, e);
        if (str_ends(ent->d_name, ".part"))
            rc = unlink_if_there(path, e);      /* this is a temporary file for a receipt that was being replaced */
        receipt_free(rec);
        free(text);
        free(path);
    }
    if (d)
        closedir(d);
    free(folder);
    free(latest);
    return rc;
}

static int local_lock(struct place *p, struct err *e)
{
    char *folder = path_join(p->path, RECEIPT_FOLDER), *path = path_join(folder, "lock");
    int rc = mkdir(p->path, 0777) < 0 && errno != EEXIST ? -1 : 0;

    if (rc < 0)
        err_sys(e, p->path, "cannot create the folder");
    else
        rc = dir_make(folder, e) < 0 ? -1 : place_acquire_lock(p, path, e);

    free(folder);
    free(path);
    return rc < 0 ? -1 : finish_killed_changes(p, e);
}

static int local_place_write_receipt(struct place *p, const struct receipt *rec, struct err *e)
{
    return local_write_receipt(p, rec, e);
}

const struct place_ops place_local_ops = {
    .lock = local_lock,
    .receipts = local_receipts,
    .put = local_put,
    .check = local_check,
    .note = local_place_write_receipt,
    .get = local_get,
    .remove = local_remove,
};
