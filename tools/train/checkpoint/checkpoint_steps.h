/*
 * checkpoint_steps.h - the checkpoints that a folder of --save holds, and moving them out of a run's way
 *
 * A checkpoint is a folder whose contents are one's, whichever program wrote it; this program's own are named
 * global_step<N>, and a save replaces the one of its number. Unfinished ones (*.part) do not count.
 * Threads: none of its own; for the process that holds the folder's lock.
 */
#ifndef SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_STEPS_H
#define SHARDKIT_TRAIN_CHECKPOINT_CHECKPOINT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

/* Where the folder's own files, or the pointer of another program, show that it is a checkpoint. */
struct checkpoint_steps {
    int n;                      /* checkpoints, and pointers that name none of them */
    char name[64];              /* the newest one's, by the number in its name; "" where n is 0 */
    int64_t newest;             /* largest N of global_step<N>, as a folder or in `latest`; -1: none */
    bool itself;                /* the folder itself is one */
};

/* The first line of DIR/NAME without blanks at its ends; NULL and no error: there is none. Caller frees. */
char *checkpoint_pointer(const char *dir, const char *name, struct err *e);
/* Do the names in the folder show that it is a checkpoint? */
bool checkpoint_is_tag(const char *path);
/* The length of "global_step20" at the start of a name, or 0. */
size_t checkpoint_tag_length(const char *name);
/* The first number in a name ("global_step20_universal": 20), -1: there is none. */
int64_t checkpoint_tag_number(const char *name);

/* All zero where the folder does not exist. */
MUST_CHECK int checkpoint_steps_find(const char *dir, struct checkpoint_steps *s, struct err *e);

/*
 * Move checkpoints into a new folder DIR/set-aside-<UTC time>, whose path goes into `where`: those of this program
 * whose number is greater than `after`; with after < 0 all checkpoints and all pointers. `tag` is what the run has
 * loaded: where `latest` names what is moved, it names `tag` from then on, before anything is moved. Nothing to move:
 * 0, and `where` is "". Killed anywhere, each checkpoint is in one of the two folders and whole.
 */
MUST_CHECK int checkpoint_steps_set_aside(const char *dir, int64_t after, const char *tag, char *where, size_t size,
                                          struct err *e);

#endif
