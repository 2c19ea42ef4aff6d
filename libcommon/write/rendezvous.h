/*
 * rendezvous.h - find out whether all tasks of a launch take part in this conversion, or only one was started
 *
 * srun and mpirun give a process its number and the number of tasks. From this, a process cannot know whether the other
 * tasks run the same command: a script may run the converter in only one of its tasks. Each task therefore creates a
 * file, and looks for the files of the other tasks:
 *   OUT.part.meet.<launch>/
 *       task.<i>    created by task i; its modification time shows whether another launch has left it
 *       all         created by a task that has found the files of all other tasks
 *       alone       created by a task that has waited long enough and converts everything alone; contains its number
 * The last task to leave removes the folder.
 */
#ifndef SHARDKIT_WRITE_RENDEZVOUS_H
#define SHARDKIT_WRITE_RENDEZVOUS_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct rendezvous {
    /* the folder OUT.part.meet.<launch>; NULL: it was not necessary to wait for other tasks */
    char *dir;
    char *mine;
    char *made;                 /* the topmost parent folder of OUT that was created for the meeting; NULL: none */
    int n_tasks;
    bool alone;
};

struct rendezvous_opts {
    int task, n_tasks;
    bool all;                   /* all tasks must come: wait ten minutes for them, then fail */
    bool (*stopped)(void);      /* returns true to stop; may be NULL */
    void (*say)(void *ctx, const char *text);   /* called with messages that name the missing tasks or give the result;
                                                 * may be NULL */
    void *ctx;
};

/*
 * Wait until the other tasks of this launch have called this function for the same `out`. Returns 1 if all of them have
 * called it. Each task then converts its own part. Returns 0 if some have not called it within SHARDKIT_MEET_SECONDS
 * (60). The caller then converts everything alone. Returns -1 with ERR_SYS, ERR_STOP, or ERR_DATA. ERR_DATA means that
 * another task converts everything alone, or that `all` was set and some tasks have not come.
 */
MUST_CHECK int rendezvous_join(struct rendezvous *m, const char *out, const struct rendezvous_opts *o, struct err *e);
/*
 * Remove the file of this task, and the folder if it is empty. Must also be called after a failure of
 * rendezvous_join(). Does nothing if rendezvous_join() has created no file.
 */
void rendezvous_close(struct rendezvous *m);

#endif
