/*
 * backup_verdict.h - check that the bytes match the receipt, and that they are a sound checkpoint
 *
 * Both are established by one reading: verify (libcommon/check/verify.h) reads and hashes nearly all bytes, and the
 * few that it omits are read after it. If verify finds an error, the bytes are read again and compared with the sums
 * alone. This distinguishes a damaged copy from a faithful copy of an unsound checkpoint. If verify
 * cannot read the backup in place (receipt_reads_in_place()), the source is verified instead.
 */
#ifndef SHARDKIT_CKPT_BACKUP_BACKUP_VERDICT_H
#define SHARDKIT_CKPT_BACKUP_BACKUP_VERDICT_H

#include "tools/ckpt-backup/place/place.h"

/*
 * Read the backup at `path`, in the form that the receipt gives, and compare all sums. Makes no verdict about the
 * checkpoint. With `r` NULL, stops at the first mismatch.
 */
MUST_CHECK int verdict_bytes(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                             struct err *e);
/*
 * Read a folder or .tar at `path`, bypassing the page cache. Compares its bytes with the receipt's sums and stores the
 * result of verify in rec->checked and rec->unsound. Messages show the name `shown` instead of `path`. With `r` NULL,
 * the first wrong byte ends the call with ERR_DATA; else each mismatch becomes a finding.
 */
MUST_CHECK int verdict_compare(const struct place_opts *o, struct receipt *rec, const char *path, const char *shown,
                               struct report *r, struct err *e);
/*
 * Read the receipt's files below `folder`, and store their sums and the result of verify in the receipt. The receipt's
 * form must be that of a folder.
 */
MUST_CHECK int verdict_sum(const struct place_opts *o, struct receipt *rec, const char *folder, struct err *e);

#endif
