/*
 * fs_measure.h - measure how full an area is, with external programs
 */
#ifndef SHARDKIT_RUN_WATCH_FS_MEASURE_H
#define SHARDKIT_RUN_WATCH_FS_MEASURE_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/fs/fs_rules.h"

struct fs_measure {
    /* FS_QUOTA: percentages of bytes and of inodes; du: number of bytes or inodes; FS_DF: free bytes */
    double used[2];
    struct strbuf output;         /* output of the program */
    char *doubt;                /* why the actual value may be higher, or NULL (du could not read everything) */
};

/*
 * Measure the usage of an area. With ERR_SYS or ERR_DATA the usage is unknown. fs_measure_free() must be called in any
 * case.
 */
MUST_CHECK int fs_measure_run(struct fs_measure *m, const struct fs_area *a, struct err *e);
void fs_measure_free(struct fs_measure *m);

#endif
