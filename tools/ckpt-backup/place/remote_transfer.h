/*
 * remote_transfer.h - transport of a backup's bytes to a remote and back, in any form
 *
 * Files are copied as they are. A .tar is piped as it is made, so it needs no disk space on this machine. A .pack is
 * made in a folder of this machine, $TMPDIR/ckpt-backup-UID-HASH, because it counts only after it has been unpacked
 * again for comparison. It stays in that folder until it has arrived, so that the next run can resume an interrupted
 * transfer. Threads: use from one thread.
 */
#ifndef SHARDKIT_CKPT_BACKUP_REMOTE_TRANSFER_H
#define SHARDKIT_CKPT_BACKUP_REMOTE_TRANSFER_H

#include "tools/ckpt-backup/place/remote.h"
#include "tools/ckpt-backup/place/tar.h"

struct far_cargo {
    const struct place *p;
    const struct content *c;
    struct receipt *rec;        /* the receipt, which the caller owns; complete except for the time of verification */
    struct tar tar;             /* for FORM_TAR */
    /* for FORM_PACK: the folder on this machine that holds the packed file; path is NULL if unused */
    struct place staged;
};

/*
 * Read the source, set the sums in the receipt, and check the CRCs stored in the source. *moved receives the bytes
 * read. Returns -1 with ERR_SYS, ERR_DATA or ERR_STOP; call far_cargo_free() in that case, too.
 */
MUST_CHECK int far_cargo_make(struct far_cargo *g, const struct place *p, const struct content *c,
                              struct receipt *rec, uint64_t *moved, struct err *e);
/*
 * Send the parts that are not at the remote yet; with `bad`, send exactly the marked parts again. Parts that are
 * there with the right size are assumed to be sent; far_read_back() detects wrong bytes in them.
 */
MUST_CHECK int far_cargo_send(const struct far_cargo *g, const bool *bad, struct err *e);
/* Free the cargo. arrived: true also removes the files that were made on this machine for the cargo. */
void far_cargo_free(struct far_cargo *g, bool arrived);
/* Remove the files that a killed process left on this machine for a backup that has arrived. */
void far_cargo_sweep(const struct place *p, struct receipt *rec);
/* place_ops.get */
MUST_CHECK int far_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);

#endif
