/*
 * tar.h - where a checkpoint's files lie in a .tar of it
 *
 * Members are TAG/NAME, in the receipt's order, stored: a tar of one checkpoint is read in place by all tools. Headers
 * are libarchive's, ustar where that can say it, else pax.
 */
#ifndef SHARDKIT_CKPT_BACKUP_TAR_H
#define SHARDKIT_CKPT_BACKUP_TAR_H

#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/receipt.h"

/* A tar's own bytes: what stands before each member. */
struct tar_head {
    uint64_t at;
    struct strbuf bytes;
};

struct tar {
    struct tar_head *head;      /* [n]: one for each file of the receipt, and the end */
    int n;
    uint64_t size_bytes;
};

/* Places the receipt's files (their `at`). ERR_SYS when a name cannot stand in a tar. */
MUST_CHECK int tar_place(struct tar *t, struct receipt *r, struct err *e);
void tar_free(struct tar *t);
/* All its bytes in their order into `to`, files from below `folder`. ERR_SYS, ERR_DATA: a file is shorter. */
MUST_CHECK int tar_write(const struct tar *t, const struct receipt *r, const char *folder, int to, struct err *e);
/* Of all its bytes, from the CRCs of the receipt's files. */
uint32_t tar_crc(const struct tar *t, const struct receipt *r);

#endif
