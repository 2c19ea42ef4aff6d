/*
 * fs_measure.h - measure how full an area is, with external programs
 */
#ifndef SHARDKIT_RUN_WATCH_FS_MEASURE_H
#define SHARDKIT_RUN_WATCH_FS_MEASURE_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/fs/fs_rules.h"

struct fs_measure {
    /*
     * The measured usage. FS_QUOTA: used[0] is the percentage of bytes, used[1] that of inodes. du: used[0] is the
     * number of bytes or inodes. FS_DF: used[0] is the number of free bytes.
     */
    double used[2];
    struct strbuf output;         /* output of the program */
    char *doubt;                /* why the actual usage may be higher, or NULL: du could not read all files */
};

/*
 * Measure the usage of an area. If the function fails with ERR_SYS or ERR_DATA, the usage is unknown. The caller must
 * call fs_measure_free() in any case.
 */
MUST_CHECK int fs_measure_run(struct fs_measure *m, const struct fs_area *a, struct err *e);
void fs_measure_free(struct fs_measure *m);

#endif
