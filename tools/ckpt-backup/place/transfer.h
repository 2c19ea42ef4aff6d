/*
 * transfer.h - copy or only read runs of bytes of files with libcommon's executor, and compute their CRC-32
 *
 * A run is a whole file or a member of a .tar. Its bytes are hashed once while they are copied. If the CRC of the run
 * is known, it is compared. For a .pt file, the CRCs in its own directory are also compared, record by record. Copying
 * damaged bytes therefore always fails.
 */
#ifndef SHARDKIT_CKPT_BACKUP_TRANSFER_H
#define SHARDKIT_CKPT_BACKUP_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"

struct transfer_run {
    char *from;                 /* path of the file to read; freed by transfer_free() */
    uint64_t from_at, size_bytes;
    /* Path of the file to write, which must exist with its final length. NULL: the run is only read. */
    char *to;
    uint64_t to_at;
    bool records;               /* `from` is a .pt file: compare the CRCs that it stores for its records */
    bool has_crc;               /* compare the computed CRC with `crc` */
    uint32_t crc;               /* set to the computed CRC, unless the run is only read and compared */
};

struct transfer {
    struct transfer_run *run;
    int n, cap;
};

struct transfer_opts {
    int threads;
    uint64_t mem_bytes;
    enum progress_mode progress;
    const char *what;           /* text before the progress display, e.g. "copy" */
    bool (*stopped)(void);
    const char *job;            /* folder of the journal, by which a transfer can be resumed; NULL: no journal */
    const char *folder;         /* folder that contains the destinations; used with `job` */
    /*
     * If not NULL, wrong CRCs and short files become findings in it, and the other files are still read. NULL: the
     * first of them ends the transfer.
     */
    struct report *report;
};

/*
 * Remove a file from the page cache, so that the next read comes from the disk. Bytes that were just written would
 * otherwise come from memory, and reading them would prove nothing.
 */
void transfer_drop_cached(const char *path);
/* Add a run. transfer_free() frees `from` and `to`. */
struct transfer_run *transfer_add(struct transfer *t, char *from, char *to, uint64_t size_bytes);
void transfer_free(struct transfer *t);
/*
 * Copy or read all runs, and sync the files that were written. Returns -1 with ERR_SYS, ERR_STOP or ERR_DATA as
 * exec_run() does. *moved is set to the number of bytes that were read; bytes that the journal lists as copied are not
 * read. `moved` may be NULL.
 */
MUST_CHECK int transfer_do(struct transfer *t, const struct transfer_opts *o, uint64_t *moved, struct err *e);

#endif
