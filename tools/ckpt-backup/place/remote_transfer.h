/*
 * remote_transfer.h - transport the bytes of a backup to a remote and back, in any form
 *
 * Files are copied as they are. A .tar is piped as it is made, so it needs no disk space on this machine. A .pack is
 * made in a folder of this machine, $TMPDIR/ckpt-backup-UID-HASH, because it must be unpacked again for comparison
 * before it is sent. It stays in this folder until it has arrived, so that the next run can resume an interrupted
 * transfer. Threads: only one thread may use these functions.
 */
#ifndef SHARDKIT_CKPT_BACKUP_REMOTE_TRANSFER_H
#define SHARDKIT_CKPT_BACKUP_REMOTE_TRANSFER_H

#include "tools/ckpt-backup/place/remote.h"
#include "tools/ckpt-backup/place/tar.h"

struct far_cargo {
    const struct place *p;
    const struct content *c;
    struct receipt *rec;        /* belongs to the caller; it is complete except for the time of verification */
    struct tar tar;             /* for FORM_TAR */
    /* for FORM_PACK: the folder on this machine in which the packed file is; for other forms its path is NULL */
    struct place staged;
};

/*
 * Read the source, set the sums in the receipt, and check the CRCs that the source stores. *moved is set to the number
 * of bytes that were read. Returns -1 with ERR_SYS, ERR_DATA or ERR_STOP. far_cargo_free() must be called even after a
 * failure.
 */
MUST_CHECK int far_cargo_make(struct far_cargo *g, const struct place *p, const struct content *c,
                              struct receipt *rec, uint64_t *moved, struct err *e);
/*
 * Send the parts that the remote does not have yet. If `bad` is not NULL, send exactly the parts that it marks, even if
 * the remote has them. Otherwise a part that the remote has with the right size is assumed to be correct;
 * far_read_back() detects wrong bytes in it.
 */
MUST_CHECK int far_cargo_send(const struct far_cargo *g, const bool *bad, struct err *e);
/* Free the cargo. If `arrived` is true, also remove the files that were made for it on this machine. */
void far_cargo_free(struct far_cargo *g, bool arrived);
/* Remove the files that a killed process has left on this machine for a backup that has arrived. */
void far_cargo_sweep(const struct place *p, struct receipt *rec);
/* this function is place_ops.get */
MUST_CHECK int far_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);

#endif
