/*
 * local_put.c - copy a checkpoint into a folder of backups, and restore a backup from there
 *
 * Both have these phases: open or resume a stage (backup_staging.h); create its files with their lengths; copy the
 * bytes with the executor, while the journal records what is on disk; read everything back from the disk, and compare
 * it with what was read from the source; write the receipt, rename the stage to its final name, and update `latest`.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/file_ids.h"
#include "tools/ckpt-backup/place/local.h"
#include "tools/ckpt-backup/place/packing.h"
#include "tools/ckpt-backup/place/backup_staging.h"
#include "tools/ckpt-backup/place/tar.h"
#include "tools/ckpt-backup/place/backup_verdict.h"

/*
 * Check that the file system of `folder` has `bytes` free bytes. If not, returns -1 with ERR_SYS, which reports the
 * free space.
 */
static int local_room(const char *folder, uint64_t bytes, struct err *e)
{
    struct statvfs v;
    uint64_t room;

    if (statvfs(folder, &v) < 0) {
        err_sys(e, folder, "cannot determine the free space");
        return -1;
    }
    room = (uint64_t)v.f_bavail * v.f_frsize;
    if (room >= bytes)
        return 0;
    errno = ENOSPC;
    err_sys(e, folder, "%" PRIu64 " bytes are needed, %" PRIu64 " are free", bytes, room);
    return -1;
}

static uint64_t bytes_on_disk(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

/* ---- a folder ---- */

/* Create the folders that contain the file. */
static int make_parents(const char *path, struct err *e)
{
    char *parent = path_parent(path);
    int rc = dir_make(parent, e);

    free(parent);
    return rc;
}

/* Create every file with its final length. If the disk has too little space, this fails before any byte is copied. */
static int reserve_files(const struct receipt *rec, const char *part, bool resumed, struct err *e)
{
    uint64_t needed = 0, there = 0;
    int rc = dir_make(part, e);

    for (int i = 0; i < rec->n_files; i++) {
        char *path = path_join(part, rec->file[i].name);

        needed += align_up(rec->file[i].size_bytes, 4096);
        there += resumed ? bytes_on_disk(path) : 0;
        free(path);
    }
    if (rc == 0)
        rc = local_room(part, needed > there ? needed - there : 0, e);
    for (int i = 0; i < rec->n_files && rc == 0; i++) {
        char *path = path_join(part, rec->file[i].name);

        rc = make_parents(path, e) < 0 ? -1 : file_reserve(path, rec->file[i].size_bytes, resumed, e);
        free(path);
    }
    return rc;
}

int local_finish_folder(const struct receipt *rec, const char *path, struct err *e)
{
    for (int i = 0; i < rec->n_files; i++) {
        const struct receipt_file *f = &rec->file[i];
        struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT },
                                  { f->mtime_ns / 1000000000, (long)(f->mtime_ns % 1000000000) } };
        char *name = path_join(path, f->name);
        int rc = chmod(name, f->mode | S_IRUSR | S_IWUSR) < 0 || utimensat(AT_FDCWD, name, ts, 0) < 0 ? -1 : 0;

        if (rc < 0)
            err_sys(e, name, "cannot set the permissions and the time");
        if (rc == 0 && (strchr(f->name, '/') || i == 0))
            rc = dir_sync(name, e);
        free(name);
        if (rc < 0)
            return -1;
    }
    return 0;
}

/* ---- a tar ---- */

static int reserve_tar(const struct tar *t, const char *part, bool resumed, struct err *e)
{
    uint64_t there = resumed ? bytes_on_disk(part) : 0;
    char *folder = path_parent(part);
    int rc, fd = -1;

    rc = local_room(folder, t->size_bytes > there ? t->size_bytes - there : 0, e);
    free(folder);
    if (rc < 0 || file_reserve(part, t->size_bytes, resumed, e) < 0)
        return -1;
    fd = open(part, O_WRONLY | O_CLOEXEC);
    for (int i = 0; i < t->n && rc == 0 && fd >= 0; i++)
        rc = write_all_at(fd, t->head[i].bytes.buf, t->head[i].bytes.len, t->head[i].at);
    if (fd < 0 || rc < 0 || fsync(fd) < 0) {
        err_sys(e, part, "cannot write the headers of the tar archive");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* ---- moving ---- */

/*
 * Copy all files of the receipt from the folder `from` into the stage, which is a folder or a .tar. Sets the CRCs in
 * the receipt.
 */
static int copy_files(struct place *p, struct receipt *rec, const char *from, const struct backup_stage *s,
                      uint64_t *moved, struct err *e)
{
    struct transfer_opts o = place_transfer(&p->o, "copy", NULL);
    char *folder = path_parent(s->part);
    struct transfer t = {0};
    int rc;

    o.job = s->job;
    o.folder = folder;
    for (int i = 0; i < rec->n_files; i++) {
        char *to = rec->form == FORM_TAR ? xstrdup(s->part) : path_join(s->part, rec->file[i].name);
        struct transfer_run *r = transfer_add(&t, path_join(from, rec->file[i].name), to, rec->file[i].size_bytes);

        r->to_at = rec->file[i].at;
        r->records = str_ends(rec->file[i].name, ".pt");
    }
    rc = transfer_do(&t, &o, moved, e);
    for (int i = 0; i < rec->n_files && rc == 0; i++)
        rec->file[i].crc = t.run[i].crc;
    transfer_free(&t);
    free(folder);
    return rc;
}

/* ---- put ---- */

static char *content_fingerprint(const struct content *c, enum backup_form form)
{
    struct strbuf sb = {0};

    strbuf_addf(&sb, "%s %s\n", receipt_form_name(form), c->path);
    for (int i = 0; i < c->n_files; i++)
        strbuf_addf(&sb, "%" PRIu64 " %" PRId64 " %" PRId64 " %ju %s\n", c->file[i].size_bytes, c->file[i].mtime_ns,
                    c->file[i].ctime_ns, (uintmax_t)c->file[i].inode, c->file[i].name);
    return sb.buf;
}

/*
 * If this backup is newer than the step that the file `latest` names, and is sound, make `latest` name this backup.
 * `latest` must never go back to an older step, and never name a backup that is not complete and sound.
 */
static int advance_local_latest(const struct place *p, const struct receipt *rec, struct err *e)
{
    char *path, *text;
    int rc;

    if (rec->form != FORM_WHOLE || rec->step < 0 || !receipt_is_sound(rec) ||
        content_named_latest(p->path) >= rec->step)
        return 0;
    path = path_join(p->path, "latest");
    text = str_fmt("%s\n", rec->tag);
    rc = file_replace(path, text, strlen(text), e);
    free(path);
    free(text);
    return rc;
}

/*
 * Refuse a backup folder that contains files which the backup does not list. Such a folder does not count as a backup
 * and must not be replaced.
 */
static int refuse_local_foreign(const struct receipt *rec, const char *final, struct err *e)
{
    char *foreign = local_foreign(rec, final);
    bool found = foreign != NULL;

    if (found)
        err_usage(e, "%s: nothing was copied, because the existing backup " FOREIGN_TEXT, final, foreign);
    free(foreign);
    return found ? -1 : 0;
}

/* Read the receipt of the base of a delta. Returns NULL with *e set if the base cannot serve. The caller frees it. */
static struct receipt *open_delta_base(const struct place *p, const struct content *c, struct err *e)
{
    struct receipt *base = local_read_receipt(p, p->o.base, e);
    struct report *r = report_new();
    bool well = base != NULL;

    if (base)
        local_check_files(p, base, r);
    if (!base && e->kind == ERR_NONE) {
        err_usage(e, "%s: holds no backup named '%s'; 'ckpt-backup list' prints the names", p->path, p->o.base);
    } else if (base && (base->form != FORM_WHOLE || strcmp(base->tag, c->tag) == 0)) {
        err_usage(e, "%s/%s: cannot be the base of a delta, because it is %s; give a whole copy of another step",
                  p->path, base->name, base->form != FORM_WHOLE ? "no folder with a whole copy" : "the same step");
        well = false;
    } else if (base && (!base->intact || report_count(r, SEV_ERROR))) {
        err_data(e, p->path, ERR_NO_BYTE, "the backup %s is damaged, so it cannot be the base of a delta; copy its "
                                          "step again, or give another base", base->name);
        well = false;
    }
    report_free(r);
    if (well)
        return base;
    receipt_free(base);
    return NULL;
}

/* Write the differences from the base into the stage. Fails with out->not_smaller if a whole copy is not larger. */
static int copy_differences(struct place *p, const struct content *c, struct receipt *rec, struct backup_stage *s,
                            struct place_put *out, struct err *e)
{
    struct receipt *base = open_delta_base(p, c, e);
    int rc = base ? differing_put(&p->o, c, rec, base, s->part, e) : -1;

    out->moved_bytes = c->size_bytes;
    out->not_smaller = rc == 0 && rec->size_bytes >= c->size_bytes;
    if (out->not_smaller) {
        err_data(e, s->part, ERR_NO_BYTE, "is not smaller than a whole copy");
        rc = -1;
    }
    receipt_free(base);
    return rc;
}

/* Copy the bytes of the source into the stage, and set their sums in the receipt. */
static int copy_content_to_stage(struct place *p, const struct content *c, struct receipt *rec, struct backup_stage *s,
                                 struct place_put *out, struct err *e)
{
    struct tar t = {0};
    int rc;

    if (rec->form == FORM_PACK) {
        out->moved_bytes = c->size_bytes;
        return packing_put(&p->o, c, rec, s->part, e);
    }
    if (rec->form == FORM_DELTA)
        return copy_differences(p, c, rec, s, out, e);
    if (rec->form == FORM_TAR && tar_place(&t, rec, e) < 0)
        return -1;
    rc = rec->form == FORM_TAR ? reserve_tar(&t, s->part, s->resumed, e) : reserve_files(rec, s->part, s->resumed, e);
    if (rc == 0)
        rc = copy_files(p, rec, c->path, s, &out->moved_bytes, e);
    if (rc == 0 && rec->form == FORM_TAR) {
        rec->size_bytes = t.size_bytes;
        rec->tar_crc = tar_crc(&t, rec);
    }
    tar_free(&t);
    return rc;
}

/*
 * Read the stage back, and check that its bytes are those of the source. The result of verify is stored in rec->checked
 * and rec->unsound.
 */
static int read_back_stage(struct place *p, const struct content *c, struct receipt *rec, const struct backup_stage *s,
                           struct err *e)
{
    struct receipt folder = *rec;
    int rc;

    if (receipt_reads_in_place(rec))
        return verdict_compare(&p->o, rec, s->part, c->path, NULL, e);
    folder.form = FORM_WHOLE;           /* the source, which is a folder, is verified instead */
    rc = verdict_bytes(&p->o, rec, s->part, NULL, e);
    if (rc == 0 && (rc = content_unchanged(c, e)) == 0 && rec->form != FORM_ANY)
        rc = verdict_compare(&p->o, &folder, c->path, c->path, NULL, e);
    rec->checked = folder.checked;
    rec->unsound = folder.unsound;
    return rc;
}

/*
 * Do all steps between opening the stage and publishing the backup: copy the bytes, read them back, and check that the
 * source did not change meanwhile.
 */
static int build_local_backup(struct place *p, const struct content *c, struct receipt *rec, struct backup_stage *s,
                              struct place_put *out, struct err *e)
{
    if (copy_content_to_stage(p, c, rec, s, out, e) < 0 || read_back_stage(p, c, rec, s, e) < 0 ||
        content_unchanged(c, e) < 0 || content_finished(c, rec, e) < 0 ||
        (!receipt_is_file(rec->form) && local_finish_folder(rec, s->part, e) < 0))
        return -1;
    /*
     * The receipt is marked as sound only now. A receipt with this mark thus never exists together with the older
     * backup.
     */
    rec->intact = true;
    rec->verified_s = (int64_t)clock_wall_s();
    if (refuse_local_foreign(rec, s->final, e) < 0 || stage_make_way(s, e) < 0 || local_write_receipt(p, rec, e) < 0 ||
        stage_publish(s, e) < 0)
        return -1;
    return advance_local_latest(p, rec, e);
}

/*
 * Refuse a backup that shares inodes with the source: if it consists of hard links to the source, or is a mount of it,
 * it would be lost together with the source.
 */
static int refuse_shared(const struct place *p, const struct receipt *rec, const struct content *c, struct err *e)
{
    struct file_ids ours, source;
    int shared;

    file_ids_of_backup(&ours, p, rec);
    file_ids_of_content(&source, c);
    shared = file_ids_shared(&source, &ours);
    if (shared >= 0)
        err_data(e, c->path, ERR_NO_BYTE, "%s/%s is not a copy, because its file %s has the same inode as that of the "
                                          "source; move %s/%s to another folder and copy again",
                 p->path, rec->name, c->file[shared].name, p->path, rec->name);
    file_ids_free(&ours);
    file_ids_free(&source);
    return shared >= 0 ? -1 : 0;
}

/*
 * Check that the existing backup has the same bytes as the source. If the times differ, all bytes are compared. The new
 * times are then stored in the receipt.
 */
static int holds_same(struct place *p, struct receipt *rec, const struct content *c, struct err *e)
{
    int same = refuse_shared(p, rec, c, e) < 0 ? -1 : place_same_bytes(p, rec, c, e);

    if (same == 0)
        place_refuse_other(p, rec, e);
    return same <= 0 ? -1 : place_same_files(rec, c) ? 0 : (place_copy_mtimes(rec, c), local_write_receipt(p, rec, e));
}

/*
 * Check whether a backup of this name exists. Returns 1 if the backup already exists, 0 if it must be made, -1 on
 * error. `damaged` is true if the backup has a receipt that cannot be parsed.
 */
static int inspect_existing_backup(struct place *p, const struct content *c, struct receipt *rec, bool damaged,
                                   const char *final, struct err *e)
{
    struct report *r = report_new();
    struct stat st;
    int rc = 0;

    if (lstat(final, &st) < 0) {
        ;                               /* the backup does not exist or is unfinished */
    } else if (!rec && !damaged) {
        err_usage(e, "%s: exists, but is not a backup of ckpt-backup (%s/%s has no receipt for it); move it to another "
                     "folder", final, p->path,
                  RECEIPT_FOLDER);
        rc = -1;
    } else if (rec && refuse_local_foreign(rec, final, e) < 0) {
        rc = -1;
    } else if (rec) {
        local_check_files(p, rec, r);
        if (rec->intact && report_count(r, SEV_ERROR) == 0)
            rc = holds_same(p, rec, c, e) < 0 ? -1 : 1;
    }
    report_free(r);
    return rc;
}

static int put_new_local_backup(struct place *p, const struct content *c, struct place_put *out, const char *final,
                                struct err *e)
{
    char *job = local_path(p, out->receipt->name, ".job"), *print = content_fingerprint(c, out->receipt->form);
    struct backup_stage s = {0};
    int rc = stage_open(&s, final, job, print, e);

    if (rc == 0) {
        rc = build_local_backup(p, c, out->receipt, &s, out, e);
        /*
         * Discard the stage in two cases in which it cannot be resumed: its bytes are wrong, or it is an unfinished
         * packed file or delta.
         */
        if (rc < 0 && (e->kind == ERR_DATA || out->receipt->form == FORM_PACK || out->receipt->form == FORM_DELTA))
            stage_discard(&s);
        stage_close(&s);
    }
    free(job);
    free(print);
    return rc;
}

int local_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out, struct err *e)
{
    char *name = receipt_name(c->tag, form), *final = path_join(p->path, name), *job = local_path(p, name, ".job");
    struct receipt *old = local_read_receipt(p, name, e);
    bool damaged = e->kind == ERR_DATA;
    int rc;

    if (damaged)
        err_clear(e);                   /* what a damaged receipt contains does not matter */
    rc = e->kind != ERR_NONE ? -1 : inspect_existing_backup(p, c, old, damaged, final, e);
    if (rc > 0) {
        out->there_already = true;
        out->receipt = old;
        old = NULL;
        /* The process that made the existing backup may have been killed before it updated the file `latest`. */
        rc = stage_sweep(final, job, e) < 0 ? -1 : advance_local_latest(p, out->receipt, e);
    } else if (rc == 0) {
        out->receipt = place_new_receipt(c, form);
        rc = put_new_local_backup(p, c, out, final, e);
    }
    if (rc < 0 && out->not_smaller) {
        err_clear(e);
        receipt_free(out->receipt);
        out->receipt = NULL;
        rc = local_put(p, c, FORM_WHOLE, out, e);
    }
    receipt_free(old);
    free(name);
    free(final);
    free(job);
    return rc;
}

/* ---- get ---- */

/* Restore the bytes of a backup, which may have any form, into the files of the stage. */
static int restore_backup_bytes(const struct place *p, const struct receipt *rec, const struct backup_stage *s,
                                struct err *e)
{
    struct transfer_opts o = place_transfer(&p->o, "restore", NULL);
    char *from = path_join(p->path, rec->name), *parent = path_parent(s->part);
    struct transfer t = {0};
    int rc;

    o.job = s->job;
    o.folder = parent;
    for (int i = 0; i < rec->n_files && rec->form != FORM_PACK && rec->form != FORM_DELTA; i++) {
        const struct receipt_file *f = &rec->file[i];
        struct transfer_run *r = transfer_add(&t, rec->form == FORM_TAR ? xstrdup(from) : path_join(from, f->name),
                                              path_join(s->part, f->name), f->size_bytes);

        r->from_at = f->at;
        r->has_crc = true;
        r->crc = f->crc;
    }
    rc = rec->form == FORM_PACK ? packing_get(&p->o, rec, from, s->part, e)
         : rec->form == FORM_DELTA ? differing_read(&p->o, rec, from, s->part, NULL, e) : transfer_do(&t, &o, NULL, e);
    transfer_free(&t);
    free(from);
    free(parent);
    return rc;
}

static int restore_local_backup(const struct place *p, const struct receipt *rec, struct backup_stage *s, struct err *e)
{
    struct receipt folder = *rec;
    int rc = reserve_files(rec, s->part, s->resumed, e);

    folder.form = FORM_WHOLE;           /* the result is a folder, whatever the form of the backup is */
    if (rc == 0)
        rc = restore_backup_bytes(p, rec, s, e);
    if (rc == 0)
        rc = verdict_bytes(&p->o, &folder, s->part, NULL, e);
    if (rc == 0)
        rc = local_finish_folder(rec, s->part, e) < 0 ? -1 : stage_publish(s, e);
    if (rc < 0 && e->kind == ERR_DATA)
        stage_discard(s);
    return rc;
}

int local_restore(const struct place *p, const struct receipt *rec, const char *out, local_take *take, struct err *e)
{
    char *job = str_fmt("%s.part.job", out), *parent = path_parent(out), *print = receipt_text(rec);
    struct backup_stage s = {0};
    int rc = dir_make(parent, e) < 0 ? -1 : stage_open(&s, out, job, print, e);

    if (rc == 0) {
        rc = take(p, rec, &s, e);
        stage_close(&s);
    }
    free(job);
    free(parent);
    free(print);
    return rc;
}

int local_get(struct place *p, const struct receipt *rec, const char *out, struct err *e)
{
    return local_restore(p, rec, out, restore_local_backup, e);
}
