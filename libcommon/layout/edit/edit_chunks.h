/*
 * edit_chunks.h - a new .distcp: values, followed by an archive for each chunk of tensors
 *
 * Internal to this folder. Values form the head of the file. Chunks are items of the plan, each in a container of
 * its own.
 */
#ifndef SHARDKIT_LAYOUT_EDIT_CHUNKS_H
#define SHARDKIT_LAYOUT_EDIT_CHUNKS_H

#include "libcommon/base/tensor.h"
#include "libcommon/layout/edit/dcp/edit_entries.h"
#include "libcommon/layout/edit/edit_impl.h"

struct edit_chunk {
    const char *name;                   /* name of its entry */
    int ndim;
    const int64_t *shape;
    const struct edit_bytes *of;
    bool seen_only;                     /* it stays where it is and is only hashed */
    uint64_t at;                        /* offset in the file */
    int item;                           /* number of the plan item; -1 if it has no bytes */
    struct crc_sum sum;                 /* digest of the bytes seen so far, by their position in the tensor */
};
/* A box of a row-major tensor, as runs of bytes that are contiguous in the tensor. */
struct edit_runs {
    int ndim, outer;                    /* outer: number of leading dimensions that a run does not extend over */
    uint64_t n, run, stride[TENSOR_MAX_DIM + 1];
    const int64_t *at, *len;            /* the box */
};
struct edit_runs edit_runs_of(uint64_t elem, int ndim, const int64_t *shape, const int64_t *at, const int64_t *len);
uint64_t edit_runs_place(const struct edit_runs *r, uint64_t k);        /* offset of run k in the tensor */
uint64_t edit_chunk_size(const struct edit_chunk *c);   /* size of its archive */
void edit_chunks_plan(struct edit_made *made, struct arena *a, struct plan *p, int dst);
/* Write the bytes that surround the tensors. Returns 0, or -1 with errno set. */
MUST_CHECK int edit_chunks_write(const struct edit_made *made, struct plan *p, int fd);
/* Add bytes of a chunk, from offset `from`, to its digest as they are written. */
void edit_chunk_on_bytes(struct edit_chunk *c, const struct edit_states *to, uint64_t from, const void *bytes,
                         uint64_t len);
/*
 * Digest of a state that new chunks make up. It is complete if len, the number of bytes covered, is the size of the
 * state.
 */
struct edit_chunk_sum { uint32_t crc; uint64_t len; };
/* Add the digests of the file's chunks to sum[tensor * STATE_N + state]. */
void edit_chunks_sum(const struct edit_made *made, struct plan *p, struct edit_chunk_sum *sum);
uint64_t edit_new_bytes(const struct edit_new *t, enum state st);       /* size as written */

#endif
