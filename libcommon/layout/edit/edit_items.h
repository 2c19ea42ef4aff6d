/*
 * edit_items.h - CRCs of the archives inside a .distcp whose tensors have changed; for the room only
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ITEMS_H
#define SHARDKIT_LAYOUT_EDIT_ITEMS_H

#include "libcommon/layout/edit/edit_impl.h"

/*
 * `path` is the file as it was written, its tensors in place: say the CRCs of those that changed wherever an item's
 * container says them. The same when it is done twice. *delta is what the CRC of the file as it was written is to be
 * XORed with.
 */
MUST_CHECK int edit_items_seal(const struct edit *x, const struct edit_file *f, const char *path, uint32_t *delta,
                               struct err *e);

#endif
