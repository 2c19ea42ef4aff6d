/*
 * transfer.h - runs of files copied or only read, through libcommon's executor, with their CRC-32
 *
 * A run is a whole file or a member of a .tar. While its bytes pass they are hashed once; a CRC that is known for the
 * run is compared, and of a .pt those that its own directory has, record by record. So a copy of damaged bytes does
 * not end well, whoever damaged them.
 */
#ifndef SHARDKIT_CKPT_BACKUP_TRANSFER_H
#define SHARDKIT_CKPT_BACKUP_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"

struct transfer_run {
    char *from;                 /* path; freed by transfer_free() */
    uint64_t from_at, size_bytes;
    char *to;                   /* exists with its final length; NULL: only read */
    uint64_t to_at;
    bool records;               /* `from` is a .pt: compare the CRCs in it */
    bool has_crc;               /* compare `crc` */
    uint32_t crc;               /* filled in where it is not compared, and by a copy */
};

struct transfer {
    struct transfer_run *run;
    int n, cap;
};

struct transfer_opts {
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    const char *what;           /* "copy", for progress */
    bool (*stopped)(void);
    const char *job;            /* folder of the journal, to go on after a kill; NULL: none */
    const char *folder;         /* where destinations lie, with `job` */
    struct report *report;      /* wrong CRCs and short files are findings, and the rest is read; NULL: they end it */
};

/* What was written lately would be read from memory and prove nothing: what reads the file next reads the disk. */
void transfer_drop_cached(const char *path);
/* Takes `from` and `to`. */
struct transfer_run *transfer_add(struct transfer *t, char *from, char *to, uint64_t size_bytes);
void transfer_free(struct transfer *t);
/*
 * Move and read it all. What was written is synced. ERR_SYS, ERR_STOP, ERR_DATA as exec_run(). *moved (may be NULL):
 * bytes read, without what the journal spared.
 */
MUST_CHECK int transfer_do(struct transfer *t, const struct transfer_opts *o, uint64_t *moved, struct err *e);

#endif
