/*
 * meeting.h - do all tasks of a launch take part in this conversion, or was one called alone?
 *
 * srun and mpirun tell a process its number and how many there are, not whether the others
 * were given the same command: a script that calls a converter in one task looks the same
 * from inside. So the tasks meet, in files:
 *   OUT.part.meet.<launch>/
 *       task.<i>    task i came (i of n); others look at its time, so a left-over is none
 *       all         somebody saw them all
 *       alone       a task waited long enough and does the conversion by itself; holds its number
 * The folder goes with the last that leaves.
 */
#ifndef SHARDKIT_CONVERT_MEETING_H
#define SHARDKIT_CONVERT_MEETING_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct meeting {
    char *dir;                  /* NULL: no meeting was held */
    char *mine;
    char *made;                 /* the topmost parent of OUT that was created for it; NULL: none */
    int n_tasks;
    bool alone;
};

struct meeting_opts {
    int task, n_tasks;
    bool all;                   /* all must come: wait ten minutes, and then fail */
    bool (*stopped)(void);      /* may be NULL */
    void (*say)(void *ctx, const char *text);   /* whom we wait for, and what came of it; may be NULL */
    void *ctx;
};

/*
 * Wait for the other tasks of this launch to come to `out`. 1: all are here, do your part.
 * 0: they did not come within SHARDKIT_MEET_SECONDS (60): do all of it, alone. -1: ERR_SYS,
 * ERR_STOP, or ERR_DATA when another task does it alone (or `all` was asked and some did not
 * come).
 */
MUST_CHECK int meeting_hold(struct meeting *m, const char *out, const struct meeting_opts *o, struct err *e);
/* Leave. Also after a failure, and when none was held. */
void meeting_close(struct meeting *m);

#endif
