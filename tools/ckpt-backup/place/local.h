/* local.h - backups in a folder of this machine: functions for paths, copying, restoring and inspecting */
#ifndef SHARDKIT_CKPT_BACKUP_LOCAL_H
#define SHARDKIT_CKPT_BACKUP_LOCAL_H

#include "tools/ckpt-backup/place/place.h"
#include "tools/ckpt-backup/place/backup_staging.h"

/*
 * Return the path of the file that belongs to backup `name` and ends in `suffix`, in RECEIPT_FOLDER of the place. The
 * caller frees it.
 */
char *local_path(const struct place *p, const char *name, const char *suffix);
/* Write the receipt, and the file that lists the sums in the format of rclone. */
MUST_CHECK int local_write_receipt(const struct place *p, const struct receipt *rec, struct err *e);
/* Read the receipt of the backup `name`. Returns NULL without an error if there is none. */
MUST_CHECK struct receipt *local_read_receipt(const struct place *p, const char *name, struct err *e);
/*
 * Check that all files in the receipt exist with their sizes, that none of them is a link, and that the backup has no
 * other files. Adds a finding for the first fault.
 */
void local_check_files(const struct place *p, const struct receipt *rec, struct report *r);
/*
 * Return the path of a file or folder in the backup at `path` that the receipt does not list, or NULL if there is none.
 * The caller frees it.
 */
char *local_foreign(const struct receipt *rec, const char *path);
/* these functions are place_ops.put and place_ops.get */
MUST_CHECK int local_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                         struct err *e);
MUST_CHECK int local_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);
/*
 * Set the modes and times of the files in a restored or copied folder. Sync its folders, so that the names are on disk.
 */
MUST_CHECK int local_finish_folder(const struct receipt *rec, const char *path, struct err *e);

/* A function that restores the files of a backup into the stage, compares them, and publishes the stage. */
typedef int local_take(const struct place *p, const struct receipt *rec, struct backup_stage *s, struct err *e);
/*
 * Restore a backup to `out` by calling `take` with a stage. If the process is killed, `out` does not exist, is
 * unchanged, or is complete.
 */
MUST_CHECK int local_restore(const struct place *p, const struct receipt *rec, const char *out, local_take *take,
                             struct err *e);

#endif
