/*
 * edit_items.h - update the CRCs of the zip archives inside a .distcp file whose tensors changed; internal to this
 * folder
 */
#ifndef SHARDKIT_LAYOUT_EDIT_ITEMS_H
#define SHARDKIT_LAYOUT_EDIT_ITEMS_H

#include "libcommon/layout/edit/edit_impl.h"

/*
 * Write the CRCs of changed tensors wherever their zip archives store them. `path` is the new file, in which the
 * tensors are already written. Repeated calls have the same result. The change of the file's CRC is XORed into *delta:
 * the caller must XOR *delta with the CRC of the file as the executor wrote it.
 */
MUST_CHECK int edit_items_seal(const struct edit *x, const struct edit_file *f, const char *path, uint32_t *delta,
                               struct err *e);

#endif
