/*
 * transfer.h - copy or only read runs of files through libcommon's executor, computing their CRC-32
 *
 * A run is a whole file or a member of a .tar. Its bytes are hashed once as they pass. If the run's CRC is known, it
 * is compared; for a .pt, the CRCs in its own directory are also compared, record by record. A copy of damaged bytes
 * therefore always fails, whatever damaged them.
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
    /* path of the file to write, which exists with its final length; NULL: the run is only read */
    char *to;
    uint64_t to_at;
    bool records;               /* `from` is a .pt: compare the CRCs stored in it */
    bool has_crc;               /* compare `crc` */
    uint32_t crc;               /* receives the computed CRC, unless a run is only read and compared */
};

struct transfer {
    struct transfer_run *run;
    int n, cap;
};

struct transfer_opts {
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    const char *what;           /* label for the progress display, e.g. "copy" */
    bool (*stopped)(void);
    const char *job;            /* folder of the journal, which is needed for resuming after a kill; NULL: no journal */
    const char *folder;         /* folder that holds the destinations; used with `job` */
    /*
     * receives wrong CRCs and short files as findings, and the rest is read; NULL: the first of them ends the transfer
     */
    struct report *report;
};

/*
 * Drop a file from the page cache, so that the next reader reads the disk. Recently written bytes would otherwise be
 * read from memory and prove nothing.
 */
void transfer_drop_cached(const char *path);
/* Add a run. transfer_free() frees `from` and `to`. */
struct transfer_run *transfer_add(struct transfer *t, char *from, char *to, uint64_t size_bytes);
void transfer_free(struct transfer *t);
/*
 * Move or read all runs, and sync what was written. Returns -1 with ERR_SYS, ERR_STOP or ERR_DATA as exec_run() does.
 * *moved (may be NULL) receives the number of bytes read, without those that the journal made unnecessary.
 */
MUST_CHECK int transfer_do(struct transfer *t, const struct transfer_opts *o, uint64_t *moved, struct err *e);

#endif
