/*
 * checkpoint_steps.h - list the checkpoints in a folder of --save, and set aside those that conflict with a run
 *
 * Any folder with the contents of a checkpoint counts as one, no matter which program wrote it. Checkpoints of this
 * program are named global_step<N>, and a save replaces the one with the same N. Unfinished checkpoints (*.part) are
 * ignored.
 * Threads: these functions create none. Only the process that holds the folder's lock may call them.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_STEPS_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/*
 * The checkpoints in a folder. The folder may also be a checkpoint itself: its own files, or the pointer file of
 * another program, show that.
 */
struct checkpoint_steps {
    /* Number of checkpoints. A checkpoint that a pointer file names is included even if it is not in this folder. */
    int n;
    char name[64];              /* name of the checkpoint whose name has the largest number; "" if n is 0 */
    /* the largest N of all global_step<N> that are folders or are named in `latest`; -1: there is none */
    int64_t newest;
    bool itself;                /* the folder itself is a checkpoint */
};

/*
 * Returns the first line of the file DIR/NAME without blanks at its ends. Returns NULL without an error if the file
 * does not exist. The caller frees the line.
 */
char *checkpoint_pointer(const char *dir, const char *name, struct err *e);
/* Returns true if the folder `path` is a checkpoint, judging from the names of its files. */
bool checkpoint_is_tag(const char *path);
/* Returns the length of the text "global_step<N>" at the start of a name, or 0 if the name does not start like this. */
size_t checkpoint_tag_length(const char *name);
/* Returns the first number in a name (20 for "global_step20_universal"), or -1 if the name has none. */
int64_t checkpoint_tag_number(const char *name);

/* Set *s to the checkpoints in the folder `dir`. If the folder does not exist, n is 0 and newest is -1. */
MUST_CHECK int checkpoint_steps_find(const char *dir, struct checkpoint_steps *s, struct err *e);

/*
 * Move checkpoints into a new folder DIR/set-aside-<UTC time>, whose path is stored in `where`. This program's
 * checkpoints with a number greater than `after` are moved. If after < 0, all checkpoints and all pointer files are
 * moved. `tag` is the checkpoint that the run has loaded: if `latest` names a checkpoint that is to be moved, `latest`
 * is set to `tag` before anything is moved. If there is nothing to move, the function returns 0 and `where` is "". If
 * the process is killed at any point, each checkpoint is complete in one of the two folders.
 */
MUST_CHECK int checkpoint_steps_set_aside(const char *dir, int64_t after, const char *tag, char *where, size_t size,
                                          struct err *e);

#endif
