/*
 * local.h - backups in a folder of this machine: paths, copying, restoring, inspecting
 */
#ifndef SHARDKIT_CKPT_BACKUP_LOCAL_H
#define SHARDKIT_CKPT_BACKUP_LOCAL_H

#include "tools/ckpt-backup/place/place.h"
#include "tools/ckpt-backup/place/backup_staging.h"

/* Return the path of the file NAME with `suffix` in RECEIPT_FOLDER of the place. Caller frees. */
char *local_path(const struct place *p, const char *name, const char *suffix);
/* Write the receipt and the file with its sums. */
MUST_CHECK int local_write_receipt(const struct place *p, const struct receipt *rec, struct err *e);
/* Read the receipt of the backup `name`. Returns NULL without an error if there is none. */
MUST_CHECK struct receipt *local_read_receipt(const struct place *p, const char *name, struct err *e);
/*
 * Check that all files of the receipt exist with their sizes, that none is a link, and that there are no other files.
 * Adds a finding for the first fault.
 */
void local_check_files(const struct place *p, const struct receipt *rec, struct report *r);
/* Return the path of an entry of the backup at `path` that the receipt does not list, or NULL. Caller frees. */
char *local_foreign(const struct receipt *rec, const char *path);
/* place_ops.put and .get */
MUST_CHECK int local_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                         struct err *e);
MUST_CHECK int local_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);
/*
 * Set modes and times of the files in a restored or copied folder, and sync its folders, so that the names are on disk.
 */
MUST_CHECK int local_finish_folder(const struct receipt *rec, const char *path, struct err *e);

/* Restores a backup's files into the stage, compares them, and publishes the stage. */
typedef int local_take(const struct place *p, const struct receipt *rec, struct backup_stage *s, struct err *e);
/*
 * Restore a backup to `out` by calling `take` with a stage. If the process is killed, `out` is absent, unchanged, or
 * complete.
 */
MUST_CHECK int local_restore(const struct place *p, const struct receipt *rec, const char *out, local_take *take,
                             struct err *e);

#endif
