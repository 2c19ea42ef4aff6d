/*
 * packing.h - a backup as one packed file
 */
#ifndef SHARDKIT_CKPT_BACKUP_PACKING_H
#define SHARDKIT_CKPT_BACKUP_PACKING_H

#include "libcommon/base/report.h"
#include "tools/ckpt-backup/place/place.h"

/*
 * Pack the content into the file `part`, and fill in the receipt's sums and size. ERR_DATA, too, when the content's own
 * CRCs do not hold. On -1 what is at `part` is worthless.
 */
MUST_CHECK int packing_put(const struct place_opts *o, const struct content *c, struct receipt *rec, const char *part,
                           struct err *e);
/* Unpack it all, keep nothing, and compare with the receipt; `r` NULL: the first that is wrong ends it. */
MUST_CHECK int packing_check(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                             struct err *e);
/* Unpack into FOLDER, where the receipt's files are with their lengths. */
MUST_CHECK int packing_get(const struct place_opts *o, const struct receipt *rec, const char *path, const char *folder,
                           struct err *e);

#endif
