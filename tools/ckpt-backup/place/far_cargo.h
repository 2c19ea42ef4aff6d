/*
 * far_cargo.h - a backup's bytes on their way to a remote and back, whatever its form
 *
 * Files go as they are. A .tar goes through a pipe as it is made, so it needs no room here. A .pack is made in a folder
 * of this machine, $TMPDIR/ckpt-backup-UID-HASH, since it counts only once it was unpacked again; it stays there
 * until it is there, so a run that was ended goes on with sending. Threads: one.
 */
#ifndef SHARDKIT_CKPT_BACKUP_FAR_CARGO_H
#define SHARDKIT_CKPT_BACKUP_FAR_CARGO_H

#include "tools/ckpt-backup/place/far.h"
#include "tools/ckpt-backup/place/tar.h"

struct far_cargo {
    const struct place *p;
    const struct content *c;
    struct receipt *rec;        /* the caller's; complete but for when it was verified */
    struct tar tar;             /* of FORM_TAR */
    struct place staged;        /* of FORM_PACK: a folder of this machine; no path: none */
};

/*
 * Read the source: sums into the receipt, and whether the CRCs in it hold. *moved: bytes read. ERR_SYS, ERR_DATA,
 * ERR_STOP; far_cargo_free() it then, too.
 */
MUST_CHECK int far_cargo_make(struct far_cargo *g, const struct place *p, const struct content *c,
                              struct receipt *rec, uint64_t *moved, struct err *e);
/*
 * Send what is not there yet; with `bad` those of its files, whatever is there. What is there in its size is taken for
 * sent: far_read_back() knows better.
 */
MUST_CHECK int far_cargo_send(const struct far_cargo *g, const bool *bad, struct err *e);
/* arrived: what was made here for it goes. */
void far_cargo_free(struct far_cargo *g, bool arrived);
/* It has arrived: so does what a run left here that was killed before it could. */
void far_cargo_sweep(const struct place *p, struct receipt *rec);
/* place_ops.get */
MUST_CHECK int far_get(struct place *p, const struct receipt *rec, const char *out, struct err *e);

#endif
