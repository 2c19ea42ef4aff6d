/*
 * checkpoint_steps.h - list the checkpoints in a folder of --save, and move those that conflict with a run
 *
 * A checkpoint is a folder whose contents are those of a checkpoint, written by any program. This program's own are
 * named global_step<N>, and a save replaces the one with its number. Unfinished ones (*.part) are ignored.
 * Threads: none of its own. Only the process that holds the folder's lock may use it.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_STEPS_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/*
 * The contents of a folder of checkpoints. A folder can also be a checkpoint itself, as shown by its own files or the
 * pointer of another program.
 */
struct checkpoint_steps {
    /* number of checkpoints, including those that a pointer names and that are not in this folder */
    int n;
    char name[64];              /* name of the newest one, by the number in its name; "" if n is 0 */
    int64_t newest;             /* the largest N of global_step<N>, as a folder or in `latest`; -1: none */
    bool itself;                /* the folder itself is one */
};

/*
 * Returns the first line of DIR/NAME without leading and trailing blanks, or NULL without an error if the file does
 * not exist. The caller frees it.
 */
char *checkpoint_pointer(const char *dir, const char *name, struct err *e);
/* Returns true if the names in the folder show that it is a checkpoint. */
bool checkpoint_is_tag(const char *path);
/* Returns the length of "global_step20" at the start of a name, or 0. */
size_t checkpoint_tag_length(const char *name);
/* Returns the first number in a name ("global_step20_universal": 20), or -1 if there is none. */
int64_t checkpoint_tag_number(const char *name);

/* Fill *s from the folder `dir`. If the folder does not exist, the result has n 0 and newest -1. */
MUST_CHECK int checkpoint_steps_find(const char *dir, struct checkpoint_steps *s, struct err *e);

/*
 * Move checkpoints into a new folder DIR/set-aside-<UTC time>, whose path is stored in `where`. Moved are this
 * program's checkpoints whose number is greater than `after`; if after < 0, all checkpoints and all pointers. `tag`
 * is the checkpoint that the run has loaded: if `latest` names one that is to be moved, `latest` is set to `tag`
 * before anything is moved. If there is nothing to move, it returns 0 and `where` is "". If the process is killed at
 * any point, each checkpoint is complete in one of the two folders.
 */
MUST_CHECK int checkpoint_steps_set_aside(const char *dir, int64_t after, const char *tag, char *where, size_t size,
                                          struct err *e);

#endif
