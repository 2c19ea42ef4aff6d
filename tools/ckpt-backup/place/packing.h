/* packing.h - write, check and restore a backup that is one packed file, or one file of differences */
#ifndef SHARDKIT_CKPT_BACKUP_PACKING_H
#define SHARDKIT_CKPT_BACKUP_PACKING_H

#include "libcommon/base/report.h"
#include "tools/ckpt-backup/place/place.h"

/*
 * Pack the content into the file `part`, and set the sums and the size in the receipt. Returns -1 on an error. It is
 * ERR_DATA if bytes do not match the CRCs that the .pt files of the content store for them. After an error the file
 * `part` is useless.
 */
MUST_CHECK int packing_put(const struct place_opts *o, const struct content *c, struct receipt *rec, const char *part,
                           struct err *e);
/*
 * Unpack the packed file without writing anything, and compare its contents with the receipt. If r is NULL, the first
 * mismatch ends the call.
 */
MUST_CHECK int packing_check(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                             struct err *e);
/* Unpack into FOLDER, in which the files of the receipt must exist with their final lengths. */
MUST_CHECK int packing_get(const struct place_opts *o, const struct receipt *rec, const char *path, const char *folder,
                           struct err *e);

/*
 * Write the differences of the content from the backup `base`, which is a folder in the same place, into the file
 * `part`. Sets the sums, the size and the base in the receipt. Returns -1 with ERR_DATA if the base has other bytes
 * than its receipt, or if bytes do not match the CRCs that the .pt files of the content store for them.
 */
MUST_CHECK int differing_put(const struct place_opts *o, const struct content *c, struct receipt *rec,
                             const struct receipt *base, const char *part, struct err *e);
/*
 * Read the differences and the base, which is in the folder of `path`, and compare the files that result with the
 * receipt. They are written to FOLDER, unless it is NULL. If r is not NULL, wrong bytes become a finding.
 */
MUST_CHECK int differing_read(const struct place_opts *o, const struct receipt *rec, const char *path,
                              const char *folder, struct report *r, struct err *e);

#endif
