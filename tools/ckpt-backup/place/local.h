/*
 * local.h - a backup in a folder of this machine: names in it, filling it, looking at it
 */
#ifndef SHARDKIT_CKPT_BACKUP_LOCAL_H
#define SHARDKIT_CKPT_BACKUP_LOCAL_H

#include "tools/ckpt-backup/place/place.h"
#include "tools/ckpt-backup/place/stage.h"

/* What lies in RECEIPT_FOLDER of the place: "NAME" and `suffix`. Caller frees. */
char *local_path(const struct place *p, const char *name, const char *suffix);
/* Write the receipt and its sums. */
MUST_CHECK int local_write_receipt(const struct place *p, const struct receipt *rec, struct err *e);
/* The receipt of that name; NULL without an error: there is none. */
MUST_CHECK struct receipt *local_read_receipt(const struct place *p, const char *name, struct err *e);
/* Are all files of the receipt there with their sizes, no link and nothing else? A finding for the first fault. */
void local_look(const struct place *p, const struct receipt *rec, struct report *r);
/* Anything in the backup at `path` that the receipt does not list? Its path inside, or NULL. Caller frees. */
char *local_foreign(const struct receipt *rec, const char *path);
/* place_ops.put and .get */
MUST_CHECK int local_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out,
                         struct err *e);
MUST_CHECK int local_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);
/* Modes and times of a restored or copied folder, and its names on disk. */
MUST_CHECK int local_finish_folder(const struct receipt *rec, const char *path, struct err *e);

/* Brings a backup's files into the stage, compared. */
typedef int local_take(const struct place *p, const struct receipt *rec, struct backup_stage *s, struct err *e);
/* `out` out of a backup, by `take` and the stage: absent, what it was, or whole. */
MUST_CHECK int local_restore(const struct place *p, const struct receipt *rec, const char *out, local_take *take,
                             struct err *e);

#endif
