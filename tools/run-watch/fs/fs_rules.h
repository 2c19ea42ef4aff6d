/*
 * fs_rules.h - the limits of file system areas: a file with one area per line, where '#' begins a comment
 *
 *     quota  WORK     85%       idrquota -w -p six         a command that prints "(12.34%)" of bytes, then of inodes
 *     du     SCRATCH  400T 75%  /gpfsssd/scratch/rech/six  bytes in a folder, of a hard limit
 *     inodes WORKFS   3000000 85%  /gpfsssd/worksf/six     the same for inodes
 *     df     SCRATCH  gpfsssd 100T                         free bytes of a file system, by the beginning of its name
 */
#ifndef SHARDKIT_RUN_WATCH_FS_RULES_H
#define SHARDKIT_RUN_WATCH_FS_RULES_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum fs_kind { FS_QUOTA, FS_DU, FS_INODES, FS_DF };
enum { FS_WORDS = 32 };

struct fs_area {
    enum fs_kind kind;
    const char *name;
    /* The maximum number of bytes or inodes. For FS_DF: the minimum number of free bytes. */
    uint64_t limit;
    double share;               /* the part of the limit that may be used, such as 0.85; not used for FS_DF */
    const char *what;           /* path of the folder, or beginning of the name of the file system */
    const char *command[FS_WORDS + 1];  /* for FS_QUOTA; NULL-terminated */
};

struct fs_rules {
    char *text;                 /* the contents of the file, to which the words of all areas point */
    struct fs_area *area;
    int n, cap;
};

/*
 * Read the rules from `path`. Fails with ERR_SYS, or with ERR_USAGE naming file and line of an invalid rule.
 * fs_rules_free() must be called in any case.
 */
MUST_CHECK int fs_rules_read(struct fs_rules *r, const char *path, struct err *e);
void fs_rules_free(struct fs_rules *r);

#endif
