/*
 * rclone.h - run the rclone program, one command at a time
 *
 * rclone uses the user's configuration file and RCLONE_* variables. rclone itself repeats operations that fail.
 * Threads: only one thread may use these functions.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RCLONE_H
#define SHARDKIT_CKPT_BACKUP_RCLONE_H

#include <stdbool.h>

#include "libcommon/base/child.h"

enum { RCLONE_ARGS = 12 };

struct rclone_call {
    const char *arg[RCLONE_ARGS];       /* arguments, e.g. "copy"; ends at the first NULL */
    const char *input;                  /* text for the standard input of rclone; NULL: none */
    struct strbuf *output;              /* the standard output of rclone is appended to it; NULL: it is discarded */
    int output_fd;                      /* if greater than 0, descriptor to which rclone writes its standard output */
    int (*feed)(void *feed_arg, int to, struct err *e);     /* as in struct child_call; used instead of `input` */
    void *feed_arg;
    bool absent_is_fine;                /* it is not an error if the file or folder does not exist */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/*
 * Run rclone. Returns 0 if it succeeds. Returns 1 if the file or folder does not exist and absent_is_fine is set.
 * Returns -1 with ERR_SYS if rclone cannot be run, with ERR_STOP if stopped() returned true, and otherwise with
 * ERR_DATA and the last message of rclone.
 */
MUST_CHECK int rclone_run(const struct rclone_call *c, const char *remote, struct err *e);

#endif
