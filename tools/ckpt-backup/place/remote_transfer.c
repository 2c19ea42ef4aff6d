/* remote_transfer.c - send files, a .tar or a .pack by rclone, and restore backups of these forms */
#include "tools/ckpt-backup/place/remote_transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/hash.h"
#include "tools/ckpt-backup/place/local.h"
#include "tools/ckpt-backup/place/rclone.h"
#include "tools/ckpt-backup/place/backup_staging.h"
#include "tools/ckpt-backup/place/backup_verdict.h"

/* ---- making ---- */

static int sum_source(struct far_cargo *g, uint64_t *moved, struct err *e)
{
    /* this copy shares the array of files with *g->rec, so the sums are stored in both */
    struct receipt folder = *g->rec;
    int rc;

    if (folder.form == FORM_TAR)
        folder.form = FORM_WHOLE;
    rc = verdict_sum(&g->p->o, &folder, g->c->path, e);
    g->rec->checked = folder.checked;
    g->rec->unsound = folder.unsound;
    *moved = g->c->size_bytes;
    return rc;
}

static char *staging_path(const struct place *p)
{
    const char *tmp = getenv("TMPDIR");

    return str_fmt("%s/ckpt-backup-%ld-%016llx", tmp && *tmp ? tmp : "/tmp", (long)getuid(),
                   (unsigned long long)hash_bytes(HASH_START, p->path, strlen(p->path)));
}

/*
 * Open and lock the staging folder. It must belong to this user, because in $TMPDIR other users may be able to create a
 * folder of this name.
 */
static int open_staging(struct far_cargo *g, struct err *e)
{
    char *path = staging_path(g->p);
    struct stat st;

    g->staged = (struct place){ .ops = &place_local_ops, .path = path, .o = g->p->o, .lock_fd = -1 };
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        err_sys(e, path, "cannot create the temporary folder for the .pack; set TMPDIR to another folder");
    else if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != getuid())
        err_data(e, path, ERR_NO_BYTE, "belongs to another user or is not a folder, so no .pack is made in it; set "
                                       "TMPDIR to another folder");
    else
        return g->staged.ops->lock(&g->staged, e);
    return -1;
}

/*
 * Remove a .pack of this name that an interrupted process has left in the staging folder, unless it was made from the
 * same files.
 */
static int drop_other(struct far_cargo *g, struct err *e)
{
    struct place_receipts l = {0};
    struct report *ignored = report_new();
    struct receipt *old;
    int rc = g->staged.ops->receipts(&g->staged, &l, ignored, e);

    if (rc == 0 && (old = far_find_receipt(&l, g->rec->name)) && !place_same_files(old, g->c))
        rc = g->staged.ops->remove(&g->staged, old, e);
    place_receipts_free(&l);
    report_free(ignored);
    return rc;
}

static int make_pack(struct far_cargo *g, uint64_t *moved, struct err *e)
{
    struct place_put put = {0};
    int rc = -1;

    if (open_staging(g, e) == 0 && drop_other(g, e) == 0)
        rc = g->staged.ops->put(&g->staged, g->c, FORM_PACK, &put, e);
    if (rc == 0) {
        *moved = put.moved_bytes;
        g->rec->size_bytes = put.receipt->size_bytes;
        g->rec->tar_crc = put.receipt->tar_crc;
        g->rec->checked = put.receipt->checked;
        g->rec->unsound = put.receipt->unsound ? xstrdup(put.receipt->unsound) : NULL;
        for (int i = 0; i < g->rec->n_files; i++)
            g->rec->file[i].crc = put.receipt->file[i].crc;
    }
    receipt_free(put.receipt);
    return rc;
}

int far_cargo_make(struct far_cargo *g, const struct place *p, const struct content *c, struct receipt *rec,
                   uint64_t *moved, struct err *e)
{
    *g = (struct far_cargo){ .p = p, .c = c, .rec = rec };
    if (rec->form == FORM_PACK)
        return make_pack(g, moved, e);
    if (sum_source(g, moved, e) < 0)
        return -1;
    if (rec->form != FORM_TAR)
        return 0;
    if (tar_place(&g->tar, rec, e) < 0)
        return -1;
    rec->size_bytes = g->tar.size_bytes;
    rec->tar_crc = tar_crc(&g->tar, rec);
    return 0;
}

/* Unlock the staging folder. If the backup has arrived, remove its .pack, and then the folder if it is empty. */
static void leave_staging(struct far_cargo *g, bool arrived)
{
    struct place *staged = &g->staged;
    struct report *ignored = report_new();
    struct place_receipts l = {0};
    struct err e = {0};

    if (arrived && staged->ops->receipts(staged, &l, ignored, &e) == 0) {
        struct receipt *rec = far_find_receipt(&l, g->rec->name);
        bool removed = rec && staged->ops->remove(staged, rec, &e) == 0;

        if (l.n == removed)
            (void)!dir_remove(staged->path, &e);
    }
    if (staged->lock_fd >= 0)
        close(staged->lock_fd);
    place_receipts_free(&l);
    report_free(ignored);
    free(staged->path);
}

void far_cargo_free(struct far_cargo *g, bool arrived)
{
    if (g->staged.path)
        leave_staging(g, arrived);
    tar_free(&g->tar);
    *g = (struct far_cargo){0};
}

void far_cargo_sweep(const struct place *p, struct receipt *rec)
{
    struct far_cargo g = { .p = p, .rec = rec };
    char *path = staging_path(p);
    struct err ignored = {0};

    if (rec->form == FORM_PACK && access(path, F_OK) == 0)
        far_cargo_free(&g, open_staging(&g, &ignored) == 0);
    free(path);
}

/* ---- sending ---- */

static int send_files(const struct far_cargo *g, const bool *bad, struct err *e)
{
    char *folder = far_path(g->p, g->rec->name), *files = far_list_text(g->rec, bad);
    struct rclone_call call = { { "copy", "--copy-links", "--no-traverse", "--files-from-raw", "-", g->c->path, folder,
                                  bad ? "--ignore-times" : NULL }, .input = files, .stopped = g->p->o.stopped };
    int rc = rclone_run(&call, g->p->path, e);

    free(folder);
    free(files);
    return rc;
}

static int feed_tar(void *feed_arg, int to, struct err *e)
{
    const struct far_cargo *g = feed_arg;

    return tar_write(&g->tar, g->rec, g->c->path, to, e);
}

/*
 * Pipe the .tar to rclone. Its size is passed as well, because stores that receive a file in parts derive the size of a
 * part from it.
 */
static int send_tar(const struct far_cargo *g, struct err *e)
{
    char *path = far_path(g->p, g->rec->name), *size = str_fmt("%llu", (unsigned long long)g->tar.size_bytes);
    struct far_cargo fed = *g;
    struct rclone_call call = { { "rcat", "--size", size, path }, .feed = feed_tar, .feed_arg = &fed,
                                .stopped = g->p->o.stopped };
    int rc = rclone_run(&call, g->p->path, e);

    free(size);
    free(path);
    return rc;
}

static int send_pack(const struct far_cargo *g, bool again, struct err *e)
{
    char *from = path_join(g->staged.path, g->rec->name), *to = far_path(g->p, g->rec->name);
    struct rclone_call call = { { "copyto", from, to, again ? "--ignore-times" : NULL }, .stopped = g->p->o.stopped };
    int rc = rclone_run(&call, g->p->path, e);

    if (rc < 0 && e->kind == ERR_DATA)
        err_add(e, "%s stays for the next run", from);
    free(from);
    free(to);
    return rc;
}

/* Returns 1 if the remote has a file of the right size, 0 if not, -1 if this cannot be determined. */
static int has_remote_file(const struct far_cargo *g, struct err *e)
{
    struct far_list l;
    int i, there;

    if (far_list(g->p, &l, e) < 0)
        return -1;
    i = names_find(l.names, g->rec->name);
    there = i >= 0 && (uint64_t)l.size[i] == g->rec->size_bytes;
    far_list_free(&l);
    return there;
}

int far_cargo_send(const struct far_cargo *g, const bool *bad, struct err *e)
{
    int there;

    if (!receipt_is_file(g->rec->form))
        return send_files(g, bad, e);
    if (g->rec->form == FORM_PACK)
        return send_pack(g, bad != NULL, e);
    there = bad ? 0 : has_remote_file(g, e);
    return there == 0 ? send_tar(g, e) : there < 0 ? -1 : 0;
}

/* ---- restoring ---- */

static int download_backup_files(const struct place *p, const struct receipt *rec, const char *part, struct err *e)
{
    char *folder = far_path(p, rec->name), *files = far_list_text(rec, NULL);
    struct rclone_call c = { { "copy", "--files-from-raw", "-", folder, part }, .input = files,
                             .stopped = p->o.stopped };
    int rc = rclone_run(&c, p->path, e);

    free(folder);
    free(files);
    return rc;
}

/*
 * Copy a member of the .tar into a file. If the file already has the right size, an earlier run has restored it, and
 * nothing is done.
 */
static int download_tar_member(const struct place *p, const struct receipt *rec, const struct receipt_file *f,
                               const char *file, struct err *e)
{
    char *tar = far_path(p, rec->name), *at = str_fmt("%llu", (unsigned long long)f->at);
    char *count = str_fmt("%llu", (unsigned long long)f->size_bytes);
    struct rclone_call c = { { "cat", "--offset", at, "--count", count, tar }, .stopped = p->o.stopped };
    struct stat st;
    int rc = -1;

    c.output_fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (c.output_fd < 0 || fstat(c.output_fd, &st) < 0)
        err_sys(e, file, "cannot create");
    else if ((uint64_t)st.st_size == f->size_bytes)
        rc = 0;
    else if (ftruncate(c.output_fd, 0) < 0)
        err_sys(e, file, "cannot empty");
    else
        rc = rclone_run(&c, p->path, e);
    if (c.output_fd >= 0)
        close(c.output_fd);
    free(tar);
    free(at);
    free(count);
    return rc;
}

static int download_tar_members(const struct place *p, const struct receipt *rec, const char *part, struct err *e)
{
    int rc = 0;

    for (int i = 0; i < rec->n_files && rc == 0; i++) {
        char *file = path_join(part, rec->file[i].name), *parent = path_parent(file);

        rc = dir_make(parent, e) < 0 ? -1 : download_tar_member(p, rec, &rec->file[i], file, e);
        free(parent);
        free(file);
    }
    return rc;
}

static int restore_remote_backup(const struct place *p, const struct receipt *rec, struct backup_stage *s,
                                 struct err *e)
{
    struct receipt whole = *rec;
    int rc = dir_make(s->part, e);

    if (rc == 0)
        rc = rec->form == FORM_TAR ? download_tar_members(p, rec, s->part, e)
                                   : download_backup_files(p, rec, s->part, e);
    whole.form = FORM_WHOLE;            /* the result is a folder, whatever the form of the backup is */
    if (rc == 0) {
        rc = verdict_bytes(&p->o, &whole, s->part, NULL, e);
        if (rc < 0 && e->kind == ERR_DATA)
            /* Discard the stage if its bytes are wrong. After any other error it is kept, so that it can be resumed. */
            stage_discard(s);
    }
    return rc < 0 || local_finish_folder(rec, s->part, e) < 0 ? -1 : stage_publish(s, e);
}

/* Download the packed file to a folder next to OUT, and restore it as from a place on this machine. */
static int get_pack(const struct place *p, const struct receipt *rec, const char *out, struct err *e)
{
    char *folder = str_fmt("%s.pack.part", out), *to = path_join(folder, rec->name), *from = far_path(p, rec->name);
    struct place here = { .path = folder, .o = p->o, .lock_fd = -1 };
    struct rclone_call c = { { "copyto", from, to }, .stopped = p->o.stopped };
    int rc = dir_make(folder, e) < 0 ? -1 : rclone_run(&c, p->path, e);
    struct err ignored = {0};

    if (rc == 0)
        rc = local_get(&here, rec, out, e);
    /*
     * Remove the downloaded file after success. Also remove it if it is damaged, so that it is downloaded again. After
     * any other error it is kept, and the next restore resumes.
     */
    if (rc == 0 || e->kind == ERR_DATA)
        (void)!dir_remove(folder, &ignored);
    free(folder);
    free(to);
    free(from);
    return rc;
}

int far_get(struct place *p, const struct receipt *rec, const char *out, struct err *e)
{
    return rec->form == FORM_PACK ? get_pack(p, rec, out, e) : local_restore(p, rec, out, restore_remote_backup, e);
}
