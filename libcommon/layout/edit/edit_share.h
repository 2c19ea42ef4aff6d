/*
 * edit_share.h - a file of the source that stays as it is, in the folder of the result
 *
 * For the room only: a reflink, else a hard link.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_SHARE_H
#define SHARDKIT_LAYOUT_EDIT_SHARE_H

#include "libcommon/base/files.h"

/* 1: `to` is there; 0: the file system has neither of the two, and it has to be copied. What was there goes. */
MUST_CHECK int edit_share(const struct files *f, int file, const char *to, struct err *e);
/* The folder that it is to lie in. */
MUST_CHECK int edit_make_parent(const char *path, struct err *e);
/* The same for a file beside the layout's, `name` in `dir`, copied where it must be. Folders are made. */
MUST_CHECK int edit_share_or_copy(struct files *f, int file, const char *dir, const char *name, struct err *e);

#endif
