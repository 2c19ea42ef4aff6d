/*
 * tar.h - the layout of a checkpoint's files in a .tar
 *
 * Members are TAG/NAME, in the receipt's order, stored without compression: all tools can read a tar of one
 * checkpoint in place. Headers are made by libarchive: ustar where that suffices, else pax.
 */
#ifndef SHARDKIT_CKPT_BACKUP_TAR_H
#define SHARDKIT_CKPT_BACKUP_TAR_H

#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/receipt.h"

/* Bytes of the tar that are not copied from a file: the header before a member, or the end. */
struct tar_head {
    uint64_t at;
    struct strbuf bytes;
};

struct tar {
    struct tar_head *head;      /* [n]: the bytes before each file of the receipt, and those at the end */
    int n;
    uint64_t size_bytes;
};

/*
 * Compute the layout and set `at` of the receipt's files. Returns -1 with ERR_SYS or ERR_DATA if a name cannot be
 * stored in a tar.
 */
MUST_CHECK int tar_place(struct tar *t, struct receipt *r, struct err *e);
void tar_free(struct tar *t);
/*
 * Write all bytes of the tar in order to descriptor `to`, reading the files below `folder`. Returns -1 with ERR_SYS,
 * or ERR_DATA if a file is too short.
 */
MUST_CHECK int tar_write(const struct tar *t, const struct receipt *r, const char *folder, int to, struct err *e);
/* Return the CRC-32 of the whole tar, computed from the CRCs of the receipt's files. */
uint32_t tar_crc(const struct tar *t, const struct receipt *r);

#endif
