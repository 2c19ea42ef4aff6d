/* remote.h - the files and receipts of a place that is accessed by rclone */
#ifndef SHARDKIT_CKPT_BACKUP_REMOTE_H
#define SHARDKIT_CKPT_BACKUP_REMOTE_H

#include <jansson.h>

#include "libcommon/base/names.h"
#include "tools/ckpt-backup/place/place.h"

/* ---- single files ---- */

char *far_path(const struct place *p, const char *inside);      /* returns "REMOTE:path/inside", which the caller
                                                                 * frees */
/*
 * Return the path of the file that belongs to backup `name` and ends in `suffix`, in RECEIPT_FOLDER of the place. The
 * caller frees it.
 */
char *far_sidecar_path(const struct place *p, const char *name, const char *suffix);
/* Write `text` to the file at `path`, and replace its previous contents. Frees `path`. */
MUST_CHECK int far_write(const struct place *p, char *path, const char *text, struct err *e);
/*
 * Delete files in a folder of the place. `files` lists their names, one per line. A file that does not exist is not an
 * error.
 */
MUST_CHECK int far_delete(const struct place *p, const char *inside, const char *files, struct err *e);
MUST_CHECK int far_delete_sidecar(const struct place *p, const char *name, const char *suffix, struct err *e);
/* Write the first receipt of a backup, NAME.json, and the list of its sums, NAME.crc32. */
MUST_CHECK int far_write_receipt(const struct place *p, const struct receipt *rec, struct err *e);
/*
 * Replace the receipt of a backup that counts. Writing to a remote is not atomic: an interrupted upload may leave no
 * file. So the new receipt is written to NAME.json.new, then to NAME.json, and NAME.json.new is deleted; at any time
 * one of the two is whole. The readers prefer a whole NAME.json.new, which is never older than NAME.json.
 */
MUST_CHECK int far_replace_receipt(const struct place *p, const struct receipt *rec, struct err *e);

/* ---- listing ---- */

/* All files of the place with their sizes. */
struct far_list {
    struct arena *arena;
    struct names *names;        /* maps a path inside the place to the index of the file */
    json_t *all;
    int64_t *size;
    int n;
};
/* List the files of the place. A place that does not exist yet has no files. */
MUST_CHECK int far_list(const struct place *p, struct far_list *l, struct err *e);
void far_list_free(struct far_list *l);
const char *far_name(const struct far_list *l, int i);
/* Returns true if RECEIPT_FOLDER has a file whose name is `name` followed by `suffix`. */
bool far_has(const struct far_list *l, const char *name, const char *suffix);
/* Read the receipts; this is how place_ops.receipts is implemented. */
MUST_CHECK int far_read_receipts(const struct place *p, const struct far_list *l, struct place_receipts *out,
                                 struct report *r, struct err *e);
struct receipt *far_find_receipt(const struct place_receipts *l, const char *name);

/* ---- a backup's bytes ---- */

/*
 * Return the number of parts of a backup. The parts are its files; if it is a .tar or .pack, this file is the only
 * part. The paths of parts are relative to the place.
 */
int far_parts(const struct receipt *rec);
char *far_part_path(const struct receipt *rec, int i);
uint32_t far_part_crc(const struct receipt *rec, int i);
/*
 * Return the names of the parts, one per line. If `bad` is not NULL, only those parts are listed for which it is true.
 * The caller frees the text.
 */
char *far_list_text(const struct receipt *rec, const bool *bad);
/*
 * Download all parts, and compare them with the receipt. bad[far_parts()] is set to true for each wrong part. Returns
 * the number of wrong parts, or -1 on error.
 */
MUST_CHECK int far_read_back(const struct place *p, const struct receipt *rec, bool *bad, struct err *e);

#endif
