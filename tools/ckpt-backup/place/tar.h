/*
 * tar.h - compute where the files of a checkpoint are in a .tar, and write it
 *
 * The members are named TAG/NAME, are in the order of the receipt, and are not compressed, so all tools can read a tar
 * of one checkpoint where it is. libarchive makes the headers: ustar if that is sufficient, else pax.
 */
#ifndef SHARDKIT_CKPT_BACKUP_TAR_H
#define SHARDKIT_CKPT_BACKUP_TAR_H

#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/receipt.h"

/* Bytes of the tar that are not the contents of a file: the header before a member, or the end of the tar. */
struct tar_head {
    uint64_t at;
    struct strbuf bytes;
};

struct tar {
    struct tar_head *head;      /* [n]: the bytes before each file of the receipt, then those at the end */
    int n;
    uint64_t size_bytes;
};

/*
 * Compute the layout, and set the member `at` of all files in the receipt. Returns -1 with ERR_SYS or ERR_DATA if a
 * name cannot be stored in a tar.
 */
MUST_CHECK int tar_place(struct tar *t, struct receipt *r, struct err *e);
void tar_free(struct tar *t);
/*
 * Write all bytes of the tar to the descriptor `to`, in order. The contents of the members are read from the files in
 * `folder`. Returns -1 with ERR_SYS, or with ERR_DATA if a file is too short.
 */
MUST_CHECK int tar_write(const struct tar *t, const struct receipt *r, const char *folder, int to, struct err *e);
/* Return the CRC-32 of the whole tar. It is computed from the CRCs of the files in the receipt. */
uint32_t tar_crc(const struct tar *t, const struct receipt *r);

#endif
