/*
 * fs_rules.h - which areas of file systems have which limits: a file, one area a line, '#' begins a comment
 *
 *     quota  WORK     85%       idrquota -w -p six         a command that prints "(12.34%)" of bytes, then of inodes
 *     du     SCRATCH  400T 75%  /gpfsssd/scratch/rech/six  bytes below a folder, of a hard limit
 *     inodes WORKFS   3000000 85%  /gpfsssd/worksf/six     the same of inodes
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
    uint64_t limit;             /* bytes or inodes; of FS_DF what shall be free */
    double share;               /* of the limit that may be used: 0.85; FS_DF: not used */
    const char *what;           /* folder or file system */
    const char *command[FS_WORDS + 1];  /* FS_QUOTA; NULL ends it */
};

struct fs_rules {
    char *text;                 /* holds all words */
    struct fs_area *area;
    int n, cap;
};

/* ERR_SYS; ERR_USAGE with file and line for what is no rule. fs_rules_free() frees what there is. */
MUST_CHECK int fs_rules_read(struct fs_rules *r, const char *path, struct err *e);
void fs_rules_free(struct fs_rules *r);

#endif
