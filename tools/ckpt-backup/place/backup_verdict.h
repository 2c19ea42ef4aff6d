/*
 * backup_verdict.h - check that the bytes of a backup match its receipt, and that they are a sound checkpoint
 *
 * The bytes are read once for both checks: verify (libcommon/check/verify.h) reads and hashes nearly all bytes, and the
 * remaining ones are read after it. If verify finds an error, all bytes are read again and only compared with the sums
 * in the receipt. This shows whether the copy is damaged, or is a faithful copy of a checkpoint that is not sound. If
 * verify cannot read the backup in place (receipt_reads_in_place()), the source is verified instead.
 */
#ifndef SHARDKIT_CKPT_BACKUP_BACKUP_VERDICT_H
#define SHARDKIT_CKPT_BACKUP_BACKUP_VERDICT_H

#include "tools/ckpt-backup/place/place.h"

/*
 * Read the backup at `path`, whose form is that in the receipt, and compare all sums. Whether the checkpoint is sound
 * is not checked. If r is NULL, the first mismatch ends the call.
 */
MUST_CHECK int verdict_bytes(const struct place_opts *o, const struct receipt *rec, const char *path, struct report *r,
                             struct err *e);
/*
 * Read a folder or .tar at `path`, bypassing the page cache. Compare its bytes with the sums in the receipt, and store
 * the result of verify in rec->checked and rec->unsound. Messages contain `shown` instead of `path`. If r is NULL, the
 * first wrong byte ends the call with ERR_DATA; otherwise each mismatch becomes a finding.
 */
MUST_CHECK int verdict_compare(const struct place_opts *o, struct receipt *rec, const char *path, const char *shown,
                               struct report *r, struct err *e);
/*
 * Read the files that the receipt lists in `folder`. Store their sums and the result of verify in the receipt. The form
 * in the receipt must be that of a folder.
 */
MUST_CHECK int verdict_sum(const struct place_opts *o, struct receipt *rec, const char *folder, struct err *e);

#endif
