/*
 * verdict.h - is what was copied a sound checkpoint, and are the bytes those of the receipt?
 *
 * Both are established by one reading: verify (libcommon/check/verify.h) reads and hashes nearly all bytes, and the few
 * that it leaves are read after it. Where verify finds an error, the bytes are read again and compared on their own: so
 * a damaged copy is distinguished from a faithful copy of an unsound checkpoint. Of a .pack the source is verified.
 */
#ifndef SHARDKIT_CKPT_BACKUP_VERDICT_H
#define SHARDKIT_CKPT_BACKUP_VERDICT_H

#include "tools/ckpt-backup/place/place.h"

/* Read what lies at `path` (the receipt's form), compare all sums, no verdict. `r` NULL: the first wrong ends it. */
MUST_CHECK int verdict_bytes(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                             struct err *e);
/*
 * Read a folder or .tar at `path`, around the page cache: its bytes against the receipt's sums, and verify's verdict
 * into rec->checked and rec->unsound. Messages of the latter name `shown` for `path`. `r` NULL: the first byte that is
 * wrong ends it with ERR_DATA; else each is a finding.
 */
MUST_CHECK int verdict_compare(const struct place_opts *o, struct receipt *rec, const char *path, const char *shown,
                               struct report *r, struct err *e);
/* Read the receipt's files below `folder`: their sums into the receipt, and the verdict. The form is a folder's. */
MUST_CHECK int verdict_sum(const struct place_opts *o, struct receipt *rec, const char *folder, struct err *e);

#endif
