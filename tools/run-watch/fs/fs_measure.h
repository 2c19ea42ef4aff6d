/*
 * fs_measure.h - how full an area is, by the programs that know
 */
#ifndef SHARDKIT_RUN_WATCH_FS_MEASURE_H
#define SHARDKIT_RUN_WATCH_FS_MEASURE_H

#include "libcommon/base/mem.h"
#include "tools/run-watch/fs/fs_rules.h"

struct fs_measure {
    double used[2];             /* percent of bytes and of inodes (FS_QUOTA), a number (du), free bytes (FS_DF) */
    struct strbuf said;         /* what the program said */
    char *doubt;                /* why it may be more, or NULL (du could not read everything) */
};

/* ERR_SYS, ERR_DATA: not known. fs_measure_free() frees what there is. */
MUST_CHECK int fs_measure_take(struct fs_measure *m, const struct fs_area *a, struct err *e);
void fs_measure_free(struct fs_measure *m);

#endif
