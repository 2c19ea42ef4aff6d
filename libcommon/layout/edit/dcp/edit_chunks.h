/*
 * edit_chunks.h - the zip archives in a new .distcp file, one for each chunk of a tensor
 *
 * Internal to this folder. The file begins with the plain values. The chunks follow, each in an archive of its own.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CHUNKS_H
#define SHARDKIT_LAYOUT_EDIT_CHUNKS_H

#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"
#include "libcommon/write/folder_file.h"

struct edit_chunk {
    const char *name;                   /* name of the entry to which the chunk belongs */
    int ndim;
    const int64_t *shape;
    const struct edit_bytes *of;
    bool seen_only;                     /* the chunk is only read for the digest of its tensor, and not written */
    uint64_t at;                        /* offset of the chunk's archive in the file */
};
/* Returns the archive of a chunk, which has one storage. It is allocated in the arena. */
struct folder_box edit_chunk_box(struct arena *a, const struct edit_chunk *c);

#endif
