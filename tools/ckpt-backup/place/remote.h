/*
 * remote.h - the files and receipts of a place that rclone reaches
 */
#ifndef SHARDKIT_CKPT_BACKUP_REMOTE_H
#define SHARDKIT_CKPT_BACKUP_REMOTE_H

#include <jansson.h>

#include "libcommon/base/names.h"
#include "tools/ckpt-backup/place/place.h"

/* ---- single files ---- */

char *far_path(const struct place *p, const char *inside);      /* Return "REMOTE:path/inside". Caller frees. */
/* Return the path of the file NAME with `suffix` in RECEIPT_FOLDER of the place. Caller frees. */
char *far_sidecar_path(const struct place *p, const char *name, const char *suffix);
/* Write `text` to the file at `path`, replacing its contents. Frees `path`. */
MUST_CHECK int far_write(const struct place *p, char *path, const char *text, struct err *e);
/* Delete files of a folder of the place. `files` has one name per line. Files that do not exist are not an error. */
MUST_CHECK int far_delete(const struct place *p, const char *inside, const char *files, struct err *e);
MUST_CHECK int far_delete_sidecar(const struct place *p, const char *name, const char *suffix, struct err *e);
MUST_CHECK int far_write_receipt(const struct place *p, const struct receipt *rec, struct err *e);

/* ---- listing ---- */

/* Every file of the place with its size. */
struct far_list {
    struct arena *arena;
    struct names *names;        /* maps paths inside the place to indices */
    json_t *all;
    int64_t *size;
    int n;
};
/* List the files of the place. A place that does not exist yet has no files. */
MUST_CHECK int far_list(const struct place *p, struct far_list *l, struct err *e);
void far_list_free(struct far_list *l);
const char *far_name(const struct far_list *l, int i);
/* Returns true if RECEIPT_FOLDER has a file with that name and suffix. */
bool far_has(const struct far_list *l, const char *name, const char *suffix);
/* Read the receipts, as place_ops.receipts does. */
MUST_CHECK int far_read_receipts(const struct place *p, const struct far_list *l, struct place_receipts *out,
                                 struct report *r, struct err *e);
struct receipt *far_find_receipt(const struct place_receipts *l, const char *name);

/* ---- a backup's bytes ---- */

/*
 * Return the number of parts in which a backup is stored: its files, or the one .tar or .pack. Paths of parts are
 * relative to the place.
 */
int far_parts(const struct receipt *rec);
char *far_part_path(const struct receipt *rec, int i);
uint32_t far_part_crc(const struct receipt *rec, int i);
/* Return the names of the parts, one per line; with `bad`, only those that are marked in it. Caller frees. */
char *far_list_text(const struct receipt *rec, const bool *bad);
/*
 * Download all parts and compare them with the receipt. Marks wrong parts in bad[far_parts()]. Returns the number of
 * wrong parts, or -1.
 */
MUST_CHECK int far_read_back(const struct place *p, const struct receipt *rec, bool *bad, struct err *e);

#endif
