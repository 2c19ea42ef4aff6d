/*
 * swap.h - exchange an edited folder with the one it was made from, and back
 *
 * The edit is made next to IN, as IN.before-edit. Then the two folders exchange names in one step of the file
 * system. So at any time IN is the old folder or the new one, and IN.before-edit is the other one. A file next
 * to them, IN.before-edit.json (the note), records which folder was the old one, so that the state can be
 * determined wherever a run was killed.
 */
#ifndef SHARDKIT_CKPT_EDIT_SWAP_H
#define SHARDKIT_CKPT_EDIT_SWAP_H

#include <stdbool.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/*
 * Return the folder that an edit in place of `in` concerns: the target if `in` is a symbolic link, else `in`. The
 * caller frees it.
 */
char *swap_folder(const char *in);
char *swap_before(const char *in);              /* caller frees */
/*
 * Lock the folder `in` against other edits until the returned descriptor is closed, and remove unfinished copies
 * of the note that killed edits left. Returns -1 on failure, with ERR_DATA if another process holds the lock.
 * Returns -2 without an error if the file system has no locks; in that case nothing is removed.
 */
MUST_CHECK int swap_hold(const char *in, struct err *e);
/* Write the note before the edit: which folder `in` is, and the command that is applied to it. */
MUST_CHECK int swap_record_edit(const char *in, const char *command, struct err *e);
/* Remove the note after a failed edit, unless IN.before-edit exists. */
void swap_remove_record(const char *in);

enum swap_state {
    SWAP_NONE,                  /* IN.before-edit does not exist, or its edit is not complete */
    SWAP_MADE,                  /* the edit in IN.before-edit is complete; IN is unchanged */
    SWAP_DONE,                  /* IN is the edited folder */
    SWAP_GIVEN_UP,              /* as SWAP_DONE, but IN.before-edit may have lost some of its files */
    SWAP_FOREIGN,               /* IN.before-edit was not made by ckpt-edit */
};
enum swap_state swap_inspect(const char *in);
/* Returns true if the existing edit was made by this command. */
bool swap_made_by(const char *in, const char *command);
/*
 * Check whether IN may be removed after the exchange. Fails with ERR_USAGE if it holds files that exist nowhere
 * else.
 */
MUST_CHECK int swap_check(const char *in, struct err *e);
/* Exchange the two names. This changes SWAP_MADE to SWAP_DONE and vice versa. */
MUST_CHECK int swap_exchange(const char *in, struct err *e);
/* Remove IN.before-edit and the note. */
MUST_CHECK int swap_forget(const char *in, struct err *e);
/*
 * Record in the note that IN.before-edit is given up, then remove both. From then on rollback is refused, because
 * a killed removal may leave the folder incomplete.
 */
MUST_CHECK int swap_give_up(const char *in, struct err *e);

#endif
