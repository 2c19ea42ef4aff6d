/*
 * edit_chunks.c - compute sizes of chunks, and make their archives
 */
#include "libcommon/layout/edit/dcp/edit_chunks.h"

#include "libcommon/format/pt.h"

struct folder_box edit_chunk_box(struct arena *a, const struct edit_chunk *c)
{
    const uint64_t bytes = tmap_bytes_as(c->of->map, c->of->dtype);
    const struct pt_new t = { .dtype = c->of->dtype, .ndim = c->ndim, .shape = c->shape,
                              .storage_elems = (int64_t)(bytes / (uint64_t)dtype_size(c->of->dtype)) };
    struct folder_box b = { .n = 1, .storage = arena_alloc(a, sizeof *b.storage) };

    *b.storage = (struct folder_storage){ .len = bytes };
    if (c->of->whole) {                 /* the bytes are a whole archive already */
        b.size = bytes;
        return b;
    }
    b.prefix = "archive";
    b.root = pt_new_tensor(a, &t);
    return b;
}
