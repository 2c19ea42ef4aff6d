/*
 * rclone.h - run the rclone program, one command at a time
 *
 * The user configures rclone: its configuration file and RCLONE_* variables apply. Retries are done by rclone.
 * Threads: use from one thread.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RCLONE_H
#define SHARDKIT_CKPT_BACKUP_RCLONE_H

#include <stdbool.h>

#include "libcommon/base/child.h"

enum { RCLONE_ARGS = 12 };

struct rclone_call {
    const char *arg[RCLONE_ARGS];       /* arguments, e.g. "copy"; ends at the first NULL */
    const char *input;                  /* text for its standard input; NULL: none */
    struct strbuf *output;              /* its standard output is appended here; NULL: discarded */
    int output_fd;                      /* if greater than 0, its standard output goes there */
    int (*feed)(void *feed_arg, int to, struct err *e);     /* as in child_call; replaces `input` */
    void *feed_arg;
    bool absent_is_fine;                /* a missing file or folder is not an error */
    bool (*stopped)(void);              /* may be NULL */
};

/*
 * Run rclone. Returns 0, or 1 if the file or folder does not exist and absent_is_fine is set. Returns -1 with ERR_SYS
 * if rclone cannot be run, ERR_STOP if stopped, else ERR_DATA with the last message that rclone printed.
 */
MUST_CHECK int rclone_run(const struct rclone_call *c, const char *remote, struct err *e);

#endif
