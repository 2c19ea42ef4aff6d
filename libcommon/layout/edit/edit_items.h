/*
 * edit_items.h - update the CRCs of the archives inside a .distcp whose tensors changed; internal to this folder
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ITEMS_H
#define SHARDKIT_LAYOUT_EDIT_ITEMS_H

#include "libcommon/layout/edit/edit_impl.h"

/*
 * Write the CRCs of changed tensors wherever an item's container stores them. `path` is the new file with its
 * tensors in place. The call may be repeated with the same result. The CRC of the file as written must be XORed with
 * *delta.
 */
MUST_CHECK int edit_items_seal(const struct edit *x, const struct edit_file *f, const char *path, uint32_t *delta,
                               struct err *e);

#endif
