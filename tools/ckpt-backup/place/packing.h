/*
 * packing.h - a backup as one packed file
 */
#ifndef SHARDKIT_CKPT_BACKUP_PACKING_H
#define SHARDKIT_CKPT_BACKUP_PACKING_H

#include "libcommon/base/report.h"
#include "tools/ckpt-backup/place/place.h"

/*
 * Pack the content into the file `part`, and set the receipt's sums and size. Returns -1 on an error; it is ERR_DATA if
 * bytes do not match the CRCs that the content's .pt files store for them. The file `part` is useless then.
 */
MUST_CHECK int packing_put(const struct place_opts *o, const struct content *c, struct receipt *rec, const char *part,
                           struct err *e);
/*
 * Unpack the packed file without writing anything, and compare its contents with the receipt. With `r` NULL, stops at
 * the first mismatch.
 */
MUST_CHECK int packing_check(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                             struct err *e);
/* Unpack into FOLDER, where the receipt's files must exist with their final lengths. */
MUST_CHECK int packing_get(const struct place_opts *o, const struct receipt *rec, const char *path, const char *folder,
                           struct err *e);

#endif
