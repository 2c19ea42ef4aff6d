/*
 * edit_share.h - a file of the source that stays as it is, in the folder of the result
 *
 * For the room only.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_SHARE_H
#define SHARDKIT_LAYOUT_EDIT_SHARE_H

#include "libcommon/layout/edit/edit_impl.h"

/*
 * 1: `to` has the file's bytes, by a reflink or as a hard link; 0: the file system refuses that, and they have to be
 * copied. A copy that an earlier run began at `to` stays.
 */
MUST_CHECK int edit_share(const struct files *f, int file, enum edit_way way, const char *to, struct err *e);
/* The folder that it is to lie in. */
MUST_CHECK int edit_make_parent(const char *path, struct err *e);
/*
 * A file that is none of the layout's as `name` in `dir`, shared or copied. Folders are made. rehearsal: a hole of its
 * size.
 */
MUST_CHECK int edit_share_or_copy(struct edit *x, const struct edit_file *f, const char *dir, bool rehearsal,
                                  struct err *e);

#endif
