/*
 * swap.h - exchange an edited folder with the folder from which it was made, and back
 *
 * The result of the edit is written next to IN, as IN.before-edit. Then the two folders exchange names in one step of
 * the file system. At any time IN is thus the old or the new folder, and IN.before-edit is the other one. A file next
 * to them, IN.before-edit.json (the record file), records which folder is the old one. The state can therefore be
 * determined even if a run was killed.
 */
#ifndef SHARDKIT_CKPT_EDIT_SWAP_H
#define SHARDKIT_CKPT_EDIT_SWAP_H

#include <stdbool.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/*
 * Return the folder that an edit in place changes. If `in` is a symbolic link, this is the folder to which it refers;
 * otherwise it is `in`. The caller frees it.
 */
char *swap_folder(const char *in);
char *swap_before(const char *in);              /* caller frees */
/*
 * Lock the folder `in` against other edits until the returned descriptor is closed. Also remove unfinished copies of
 * the record file that killed edits have left. Returns -1 on failure, with ERR_DATA if another process holds the lock.
 * Returns -2 without an error if the file system has no locks; nothing is removed then.
 */
MUST_CHECK int swap_hold(const char *in, struct err *e);
/* Write the record file before an edit: which folder `in` is, and which command is applied to it. */
MUST_CHECK int swap_record_edit(const char *in, const char *command, struct err *e);
/* Remove the record file after a failed edit, unless IN.before-edit exists. */
void swap_remove_record(const char *in);

enum swap_state {
    SWAP_NONE,                  /* IN.before-edit does not exist, or is not complete yet */
    SWAP_MADE,                  /* IN.before-edit is the complete result of an edit, and IN is unchanged */
    SWAP_DONE,                  /* the names were exchanged: IN is the edited folder */
    SWAP_GIVEN_UP,              /* like SWAP_DONE, but IN.before-edit may have lost some of its files */
    SWAP_FOREIGN,               /* IN.before-edit was not made by ckpt-edit */
};
enum swap_state swap_inspect(const char *in);
/* Returns true if the existing edit was made by this command with the same arguments. */
bool swap_made_by(const char *in, const char *command);
/* Check that IN may be removed after the exchange. Fails with ERR_USAGE if it has files that exist nowhere else. */
MUST_CHECK int swap_check(const char *in, struct err *e);
/* Exchange the names of IN and IN.before-edit. This changes the state from SWAP_MADE to SWAP_DONE, or back. */
MUST_CHECK int swap_exchange(const char *in, struct err *e);
/* Remove IN.before-edit and the record file. */
MUST_CHECK int swap_forget(const char *in, struct err *e);
/*
 * Record that IN.before-edit is being removed, then remove it and the record file. From then on rollback is refused,
 * because the folder may be incomplete if the removal is interrupted.
 */
MUST_CHECK int swap_give_up(const char *in, struct err *e);

#endif
