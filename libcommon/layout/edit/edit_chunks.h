/*
 * edit_chunks.h - a new .distcp: values, then an archive for each chunk of tensors
 *
 * For the room only. Values are the head of the file; chunks are items of the plan, each in a container of its own.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CHUNKS_H
#define SHARDKIT_LAYOUT_EDIT_CHUNKS_H

#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"

struct edit_chunk {
    const char *name;                   /* of its entry */
    int ndim;
    const int64_t *shape;
    const struct edit_bytes *of;
    bool seen_only;                     /* it stays where it is, and is hashed */
    uint64_t at;                        /* in the file */
    int item;                           /* of the plan; -1: it has no bytes */
    struct crc_sum sum;                 /* of what passed by, as it lies in its tensor */
};
/* A box of a tensor, row-major like it: runs of bytes that lie together there, too. */
struct edit_runs {
    int ndim, outer;                    /* dimensions that a run does not go through */
    uint64_t n, run, stride[TENSOR_MAX_DIM + 1];
    const int64_t *at, *len;            /* the box */
};
struct edit_runs edit_runs_of(uint64_t elem, int ndim, const int64_t *shape, const int64_t *at, const int64_t *len);
uint64_t edit_runs_place(const struct edit_runs *r, uint64_t k);        /* in the tensor, of run k */
uint64_t edit_chunk_size(const struct edit_chunk *c);   /* of its archive */
void edit_chunks_plan(struct edit_made *made, struct arena *a, struct plan *p, int dst);
/* What surrounds the tensors' bytes; 0 or -1 with errno. */
MUST_CHECK int edit_chunks_write(const struct edit_made *made, struct plan *p, int fd);
/* Bytes of a chunk, from `from` on, as they are written. */
void edit_chunk_look(struct edit_chunk *c, const struct edit_states *to, uint64_t from, const void *bytes,
                     uint64_t len);
/* Digests of the list's tensors that are all of the file's chunks. */
struct edit_chunk_sum { uint32_t crc; uint64_t len; };
/* sum[tensor * STATE_N + state] */
void edit_chunks_sum(const struct edit_made *made, struct plan *p, struct edit_chunk_sum *sum);
uint64_t edit_new_bytes(const struct edit_new *t, enum state st);       /* as written */

#endif
