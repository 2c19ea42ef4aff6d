/*
 * rclone.h - the rclone program, run for one thing at a time
 *
 * What it is configured to do is the user's: its configuration, RCLONE_* variables. Retries are rclone's own.
 * Threads: one.
 */
#ifndef SHARDKIT_CKPT_BACKUP_RCLONE_H
#define SHARDKIT_CKPT_BACKUP_RCLONE_H

#include <stdbool.h>

#include "libcommon/base/child.h"

enum { RCLONE_ARGS = 12 };

struct rclone_call {
    const char *arg[RCLONE_ARGS];       /* "copy", ...; the first NULL ends them */
    const char *input;                  /* its standard input; NULL: none */
    struct strbuf *output;              /* its standard output is added; NULL: thrown away */
    int output_fd;                      /* more than 0: it goes there */
    int (*feed)(void *feed_arg, int to, struct err *e);     /* as child_call's, in place of `input` */
    void *feed_arg;
    bool absent_is_fine;                /* a file or folder that is not there is no failure */
    bool (*stopped)(void);              /* may be NULL */
};

/*
 * 0, or 1 where what is asked for is not there and may be so. -1: ERR_SYS when there is no rclone, ERR_STOP, and for
 * all else ERR_DATA with the last thing that it said.
 */
MUST_CHECK int rclone_run(const struct rclone_call *c, const char *remote, struct err *e);

#endif
