/*
 * swap.h - an edited folder takes the place of the one it was made from, and back
 *
 * The edit is made beside IN, as IN.before-edit; then the two folders exchange names in one step of the file system,
 * so IN is the old one or the new one, never neither, and IN.before-edit the other. A note beside them,
 * IN.before-edit.json, says which folder was the old one, so that can be told wherever a run was killed.
 */
#ifndef SHARDKIT_CKPT_EDIT_SWAP_H
#define SHARDKIT_CKPT_EDIT_SWAP_H

#include <stdbool.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/* The folder that an edit in place of `in` is of: where the symbolic link `in` leads, else `in`. Caller frees. */
char *swap_folder(const char *in);
char *swap_before(const char *in);              /* caller frees */
/*
 * Keep other edits of the folder `in` away until the descriptor is closed, and clear away what killed ones had not
 * finished writing of their notes. -1: ERR_DATA, another process has it; -2: no error, but this file system has no
 * locks, and nothing is cleared away.
 */
MUST_CHECK int swap_hold(const char *in, struct err *e);
/* Before the edit: note which folder `in` is, and what is to be done to it. */
MUST_CHECK int swap_note(const char *in, const char *command, struct err *e);
/* The edit has failed: there is nothing to note, unless it was made and is still there. */
void swap_unnote(const char *in);

enum swap_state {
    SWAP_NONE,                  /* there is no IN.before-edit, or the edit of it is not complete */
    SWAP_MADE,                  /* the edit is complete beside IN, which is as it was */
    SWAP_DONE,                  /* IN is the edited one */
    SWAP_GIVEN_UP,              /* the same, and IN.before-edit may have lost some of its files */
    SWAP_FOREIGN,               /* IN.before-edit is none of ours */
};
enum swap_state swap_look(const char *in);
/* Was the edit that is there made by this command? */
bool swap_made_by(const char *in, const char *command);
/* May IN be removed, once it has changed its name? ERR_USAGE: it holds what is nobody else's. */
MUST_CHECK int swap_check(const char *in, struct err *e);
/* Exchange the two; both states go to the other one. */
MUST_CHECK int swap_exchange(const char *in, struct err *e);
/* Remove IN.before-edit and the note. */
MUST_CHECK int swap_forget(const char *in, struct err *e);
/* The same of what IN was: from here on, nobody may bring back what a kill may leave half removed. */
MUST_CHECK int swap_give_up(const char *in, struct err *e);

#endif
