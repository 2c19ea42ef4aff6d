/*
 * swap.h - an edited folder takes the place of the one it was made from, and back
 *
 * The edit is made beside IN, as IN.before-edit; then the two folders exchange names in one step of the file system,
 * so IN is the old one or the new one, never neither, and IN.before-edit the other. A note beside them,
 * IN.before-edit.json, says which folder was the old one, so that can be told wherever a run was killed.
 */
#ifndef SHARDKIT_CKPT_EDIT_SWAP_H
#define SHARDKIT_CKPT_EDIT_SWAP_H

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

char *swap_before(const char *in);              /* caller frees */
/* Before the edit: note which folder `in` is, and what is to be done to it. */
MUST_CHECK int swap_note(const char *in, const char *command, struct err *e);

enum swap_state {
    SWAP_NONE,                  /* there is no IN.before-edit, or the edit of it is not complete */
    SWAP_MADE,                  /* the edit is complete beside IN, which is as it was */
    SWAP_DONE,                  /* IN is the edited one */
    SWAP_FOREIGN,               /* IN.before-edit is none of ours */
};
enum swap_state swap_look(const char *in);
/* Exchange the two; both states go to the other one. */
MUST_CHECK int swap_exchange(const char *in, struct err *e);
/* Remove IN.before-edit and the note. */
MUST_CHECK int swap_forget(const char *in, struct err *e);

#endif
