/*
 * edit_chunks.h - the archives of a new .distcp, one for each chunk of a tensor
 *
 * Internal to this folder. Values form the head of the file. The chunks follow, each in a container of its own.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CHUNKS_H
#define SHARDKIT_LAYOUT_EDIT_CHUNKS_H

#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/write/folder_file.h"

struct edit_chunk {
    const char *name;                   /* name of its entry */
    int ndim;
    const int64_t *shape;
    const struct edit_bytes *of;
    bool seen_only;                     /* it stays where it is and is only hashed */
    uint64_t at;                        /* offset in the file */
};
/* Returns the container of a chunk with its one storage, allocated in the arena. */
struct folder_box edit_chunk_box(struct arena *a, const struct edit_chunk *c);

#endif
