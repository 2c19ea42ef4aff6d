/*
 * far.h - files and receipts of a place that rclone reaches
 */
#ifndef SHARDKIT_CKPT_BACKUP_FAR_H
#define SHARDKIT_CKPT_BACKUP_FAR_H

#include <jansson.h>

#include "libcommon/base/names.h"
#include "tools/ckpt-backup/place/place.h"

/* ---- single files ---- */

char *far_path(const struct place *p, const char *inside);      /* "REMOTE:path/inside"; caller frees */
/* What lies in RECEIPT_FOLDER of the place: "NAME" and `suffix`; caller frees. */
char *far_note(const struct place *p, const char *name, const char *suffix);
/* The file becomes `text`. Takes the path. */
MUST_CHECK int far_write(const struct place *p, char *path, const char *text, struct err *e);
/* Delete files of a folder of the place, one a line. What is not there is fine. */
MUST_CHECK int far_delete(const struct place *p, const char *inside, const char *files, struct err *e);
MUST_CHECK int far_delete_note(const struct place *p, const char *name, const char *suffix, struct err *e);
MUST_CHECK int far_write_receipt(const struct place *p, const struct receipt *rec, struct err *e);

/* ---- what is there ---- */

/* Every file of the place and its size. */
struct far_list {
    struct arena *arena;
    struct names *names;        /* paths inside the place to numbers */
    json_t *all;
    int64_t *size;
    int n;
};
/* A place that is not there yet has no files. */
MUST_CHECK int far_list(const struct place *p, struct far_list *l, struct err *e);
void far_list_free(struct far_list *l);
const char *far_name(const struct far_list *l, int i);
/* Is there a note of that name and suffix? */
bool far_has(const struct far_list *l, const char *name, const char *suffix);
/* As place_ops.receipts. */
MUST_CHECK int far_read_receipts(const struct place *p, const struct far_list *l, struct place_receipts *out,
                                 struct report *r, struct err *e);
struct receipt *far_find_receipt(const struct place_receipts *l, const char *name);

/* ---- a backup's bytes ---- */

/* What lies there has so many parts: its files, or the one that it is. Paths inside the place; caller frees. */
int far_parts(const struct receipt *rec);
char *far_part_path(const struct receipt *rec, int i);
uint32_t far_part_crc(const struct receipt *rec, int i);
/* Names of parts, of the bad ones only where `bad` is given, one a line. Caller frees. */
char *far_list_text(const struct receipt *rec, const bool *bad);
/* Download it all and compare: how many parts are not right, told in bad[far_parts()]; -1. */
MUST_CHECK int far_read_back(const struct place *p, const struct receipt *rec, bool *bad, struct err *e);

#endif
