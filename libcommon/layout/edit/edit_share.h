/*
 * edit_share.h - put an unchanged file of the source into the folder of the result
 *
 * Internal to this folder.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_SHARE_H
#define SHARDKIT_LAYOUT_EDIT_SHARE_H

#include "libcommon/layout/edit/edit_impl.h"

/*
 * Returns 1 if `to` now has the file's bytes by a reflink or hard link, and 0 if the file system refuses, so that
 * they must be copied. A copy that an earlier run began at `to` is kept.
 */
MUST_CHECK int edit_share(const struct files *f, int file, enum edit_way way, const char *to, struct err *e);
/* Make the parent folder of `path`. */
MUST_CHECK int edit_make_parent(const char *path, struct err *e);
/*
 * Share or copy a file that does not belong to the layout to its name in `dir`. Folders are made as needed. In a
 * rehearsal a hole of its size is written.
 */
MUST_CHECK int edit_share_or_copy(struct edit *x, const struct edit_file *f, const char *dir, bool rehearsal,
                                  struct err *e);

#endif
