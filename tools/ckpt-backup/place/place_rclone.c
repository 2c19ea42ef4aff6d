/*
 * place_rclone.c - a place that is a path on a remote, accessed by the rclone program
 *
 * Renaming on a remote is not reliable, so files are written under their final names. They become a backup when the
 * receipt is written, which is done last, after everything was downloaded again and compared. Until then,
 * .ckpt-backup/NAME.job records that the files in NAME are an unfinished backup of this program. The next run resumes
 * it: rclone skips files that exist with the right size, and files with wrong bytes are sent again. remote_transfer.h
 * describes how each form is transported.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/hash.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/ckpt-backup/place/remote_transfer.h"
#include "tools/ckpt-backup/place/rclone.h"

static int far_receipts(struct place *p, struct place_receipts *out, struct report *r, struct err *e)
{
    struct far_list l;
    int rc = far_list(p, &l, e);

    if (rc == 0) {
        rc = far_read_receipts(p, &l, out, r, e);
        far_list_free(&l);
    }
    return rc;
}

/* ---- check ---- */

static const char no_sum[] = "the bytes on the remote do not have the expected";

static int far_check(struct place *p, struct receipt *rec, struct report *r, struct err *e)
{
    bool *bad = xcalloc((size_t)far_parts(rec) + 1, sizeof *bad);
    int rc = far_read_back(p, rec, bad, e);

    for (int i = 0; i < far_parts(rec) && rc > 0; i++) {
        char *inside = far_part_path(rec, i), *shown = far_path(p, inside);

        if (bad[i])
            report_add(r, SEV_ERROR, "crc", shown, ERR_NO_BYTE, NULL, "%s CRC-32 %08x", no_sum, far_part_crc(rec, i));
        free(inside);
        free(shown);
    }
    free(bad);
    return rc < 0 ? -1 : 0;
}

/* ---- put ---- */

/* Send the backup and read it back. If parts of it are wrong, send them again, and read these back. */
static int send_until_right(const struct far_cargo *g, struct err *e)
{
    const struct receipt *rec = g->rec;
    bool *bad = xcalloc((size_t)far_parts(rec) + 1, sizeof *bad);
    int rc = far_cargo_send(g, NULL, e), first = 0;

    if (rc == 0)
        rc = far_read_back(g->p, rec, bad, e);
    if (rc > 0) {
        rc = far_cargo_send(g, bad, e);
        rc = rc < 0 ? -1 : far_read_back(g->p, rec, bad, e);
    }
    while (rc > 0 && !bad[first])
        first++;
    if (rc > 0) {
        char *inside = far_part_path(rec, first);

        err_data(e, g->p->path, ERR_NO_BYTE, "%s was uploaded twice, and %s CRC-32 %08x", inside, no_sum,
                 far_part_crc(rec, first));
        free(inside);
    }
    free(bad);
    return rc ? -1 : 0;
}

/*
 * Fail if there is a file at NAME, or in the folder NAME, that belongs neither to an unfinished backup of this program
 * nor to a backup with a receipt.
 */
static int refuse_remote_foreign(const struct place *p, const struct far_list *l, const struct receipt *rec, bool ours,
                                 struct err *e)
{
    char *inside = str_fmt("%s/", rec->name);
    int rc = 0;

    for (int i = 0; i < l->n && rc == 0; i++) {
        const char *name = far_name(l, i);
        bool known = false;

        if (!str_starts(name, inside) && strcmp(name, rec->name) != 0)
            continue;
        known = ours && receipt_is_file(rec->form) && strcmp(name, rec->name) == 0;
        for (int k = 0; ours && !receipt_is_file(rec->form) && k < rec->n_files && !known; k++)
            known = strcmp(rec->file[k].name, name + strlen(inside)) == 0;
        if (known)
            continue;
        err_usage(e, "%s: holds %s, which is not part of a backup of ckpt-backup; move it to another folder",
                  p->path, name);
        rc = -1;
    }
    free(inside);
    return rc;
}

/*
 * Write the file `latest`, unless the remote has complete copies of later steps: `latest` must never go back to an
 * older step.
 */
static int advance_remote_latest(const struct place *p, const struct receipt *rec, const struct place_receipts *there,
                                 struct err *e)
{
    char *text;
    int rc;

    if (rec->form != FORM_WHOLE || rec->step < 0 || !receipt_is_sound(rec))
        return 0;
    for (int i = 0; i < there->n; i++)
        if (there->receipt[i]->form == FORM_WHOLE && there->receipt[i]->step > rec->step)
            return 0;
    text = str_fmt("%s\n", rec->tag);
    rc = far_write(p, far_path(p, "latest"), text, e);
    free(text);
    return rc;
}

/* Check that the name can be passed to rclone, which takes lists of files in UTF-8, with one name per line. */
static int check_remote_name(const struct place *p, const char *name, struct err *e)
{
    if (!strpbrk(name, "\r\n") && utf8_check(name, strlen(name)) == strlen(name))
        return 0;
    err_usage(e, "%s: a remote cannot store the file name %s, because it is not UTF-8 or contains a line break; rename "
                 "the file, or give a folder as the place", p->path, name);
    return -1;
}

static int check_remote_names(const struct place *p, const struct receipt *rec, struct err *e)
{
    int rc = check_remote_name(p, rec->name, e);

    for (int i = 0; i < rec->n_files && rc == 0 && !receipt_is_file(rec->form); i++)
        rc = check_remote_name(p, rec->file[i].name, e);
    return rc;
}

static int put_new_remote_backup(struct place *p, const struct content *c, const struct far_list *l,
                                 struct place_put *out, struct err *e)
{
    struct receipt *rec = out->receipt;
    bool updated = far_has(l, rec->name, NEW_RECEIPT);
    bool ours = updated || far_has(l, rec->name, ".json") || far_has(l, rec->name, ".job");
    struct far_cargo g;
    int rc = -1;

    if (refuse_remote_foreign(p, l, rec, ours, e) < 0)
        return -1;
    if (far_cargo_make(&g, p, c, rec, &out->moved_bytes, e) == 0 && content_finished(c, rec, e) == 0 &&
        far_write(p, far_sidecar_path(p, rec->name, ".job"), "unfinished\n", e) == 0 && send_until_right(&g, e) == 0 &&
        content_unchanged(c, e) == 0) {
        rec->intact = true;
        rec->verified_s = (int64_t)clock_wall_s();
        rc = updated ? far_delete_sidecar(p, rec->name, NEW_RECEIPT, e) : 0;
        rc = rc < 0 ? -1 : far_write_receipt(p, rec, e);
    }
    far_cargo_free(&g, rc == 0);
    return rc;
}

/*
 * Do the last steps of a copy, also for a copy whose process was killed during these steps. NAME.job is deleted last.
 */
static int finish_put(const struct place *p, const struct receipt *rec, const struct place_receipts *there,
                      struct err *e)
{
    return advance_remote_latest(p, rec, there, e) < 0 ? -1 : far_delete_sidecar(p, rec->name, ".job", e);
}

/*
 * Check whether the backup already exists. If it does, returns 1, and out->receipt is replaced by the receipt of the
 * existing backup. Returns 0 if it does not exist, -1 on error.
 */
static int there_already(struct place *p, const struct content *c, struct place_receipts *there,
                         struct place_put *out, struct err *e)
{
    struct receipt *old = far_find_receipt(there, out->receipt->name);
    int same = old && old->intact ? place_same_bytes(p, old, c, e) : -2;

    if (same == -2)
        return 0;
    if (same == 0)
        place_refuse_other(p, old, e);
    if (same <= 0)
        return -1;
    for (int i = 0; i < there->n; i++)
        if (there->receipt[i] == old)
            there->receipt[i] = out->receipt;
    out->receipt = old;
    out->there_already = true;
    if (place_same_files(old, c))
        return 1;
    place_copy_mtimes(old, c);
    return far_replace_receipt(p, old, e) < 0 ? -1 : 1;
}

static int far_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                   struct err *e)
{
    struct place_receipts there = {0};
    struct report *r = report_new();
    struct far_list l = {0};
    int rc = far_list(p, &l, e);

    if (rc < 0)
        goto out;
    out->receipt = place_new_receipt(c, form);
    rc = check_remote_names(p, out->receipt, e) < 0 ? -1 : far_read_receipts(p, &l, &there, r, e);
    if (rc == 0)
        rc = there_already(p, c, &there, out, e);
    if (rc == 0) {
        rc = put_new_remote_backup(p, c, &l, out, e) < 0 ? -1 : finish_put(p, out->receipt, &there, e);
    } else if (rc == 1 && far_has(&l, out->receipt->name, ".job")) {
        far_cargo_sweep(p, out->receipt);
        rc = finish_put(p, out->receipt, &there, e);
    }
    far_list_free(&l);
out:
    place_receipts_free(&there);
    report_free(r);
    return rc < 0 ? -1 : 0;
}

/* ---- remove ---- */

/*
 * Finish a removal. NAME.gone has been written, so the removal will be completed in any case. The receipt is deleted
 * first, so that the backup no longer counts.
 */
static int finish_remote_removal(const struct place *p, const struct receipt *rec, struct err *e)
{
    char *folder = far_path(p, rec->name), *files = far_list_text(rec, NULL);
    struct rclone_call rmdirs = { { "rmdirs", folder }, .absent_is_fine = true, .stopped = p->o.stopped };
    char *receipts = str_fmt("%s.json\n%s" NEW_RECEIPT "\n", rec->name, rec->name);
    int rc = far_delete(p, RECEIPT_FOLDER, receipts, e);

    free(receipts);
    if (rc == 0)
        rc = receipt_is_file(rec->form) ? far_delete(p, "", rec->name, e) : far_delete(p, rec->name, files, e);
    if (rc == 0 && !receipt_is_file(rec->form))
        rc = rclone_run(&rmdirs, p->path, e) < 0 ? -1 : 0;
    if (rc == 0)
        rc = far_delete_sidecar(p, rec->name, ".crc32", e);
    free(folder);
    free(files);
    return rc < 0 ? -1 : far_delete_sidecar(p, rec->name, ".gone", e);
}

static int far_remove(struct place *p, const struct receipt *rec, struct err *e)
{
    char *text = receipt_text(rec);
    struct far_list l;
    int rc = far_list(p, &l, e);

    if (rc == 0) {
        rc = refuse_remote_foreign(p, &l, rec, true, e);
        far_list_free(&l);
    }
    if (rc == 0)
        rc = far_write(p, far_sidecar_path(p, rec->name, ".gone"), text, e);
    free(text);
    return rc < 0 ? -1 : finish_remote_removal(p, rec, e);
}

/* Finish a removal that a killed process had begun. The file NAME.gone is a copy of the receipt. */
static int sweep_one(const struct place *p, const char *note, struct err *e)
{
    char *path = far_path(p, note);
    struct strbuf sb = {0};
    struct rclone_call c = { { "cat", path }, .output = &sb, .absent_is_fine = true, .stopped = p->o.stopped };
    struct err ignored = {0};
    int rc = rclone_run(&c, p->path, e);
    struct receipt *rec = rc == 0 && sb.buf ? receipt_parse(sb.buf, sb.len, path, &ignored) : NULL;

    if (rec)
        rc = finish_remote_removal(p, rec, e);
    receipt_free(rec);
    strbuf_free(&sb);
    free(path);
    return rc < 0 ? -1 : 0;
}

/* ---- lock ---- */

/*
 * Lock the place. A remote has no locks, so the lock is a file on this machine. It prevents two processes of this
 * machine, such as cron jobs, from using the place at the same time.
 */
static int far_lock(struct place *p, struct err *e)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");
    char *path = str_fmt("%s/ckpt-backup-%ld-%016llx.lock", dir && *dir ? dir : "/tmp", (long)getuid(),
                         (unsigned long long)hash_bytes(HASH_START, p->path, strlen(p->path)));
    struct far_list l = {0};
    int rc = place_acquire_lock(p, path, e);

    free(path);
    if (rc == 0)
        rc = far_list(p, &l, e);
    for (int i = 0; i < l.n && rc == 0; i++)
        if (str_starts(far_name(&l, i), RECEIPT_FOLDER "/") && str_ends(far_name(&l, i), ".gone"))
            rc = sweep_one(p, far_name(&l, i), e);
    if (l.arena)
        far_list_free(&l);
    return rc;
}

static int far_place_write_receipt(struct place *p, const struct receipt *rec, struct err *e)
{
    return far_replace_receipt(p, rec, e);
}

const struct place_ops place_rclone_ops = {
    .lock = far_lock, .receipts = far_receipts, .put = far_put, .check = far_check, .note = far_place_write_receipt,
    .get = far_get, .remove = far_remove,
};
