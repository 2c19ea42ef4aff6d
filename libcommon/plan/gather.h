/*
 * gather.h - processing of the bytes of one chunk between the read and the write
 *
 * Every piece is copied to its position in the chunk's output. On the way it is hashed for the record it is read
 * from and for the item it belongs to, in as few passes over memory as the operation allows. This module does no
 * I/O.
 */
#ifndef SHARDKIT_PLAN_GATHER_H
#define SHARDKIT_PLAN_GATHER_H

#include "libcommon/base/report.h"
#include "libcommon/plan/plan.h"

struct gather {
    struct plan *plan;
    int item_no;
    struct plan_item *item;
    uint64_t from, len;         /* the chunk, in logical bytes of the item's map */
    uint8_t *out;               /* address of the first byte of the chunk; NULL: only hash */
    uint64_t copy_stride;       /* REPLICAS, SUM: slice k is gathered at out + k * copy_stride */
    struct report *report;      /* corrupt records are added to it; NULL: they end the run */
    bool hash_output;           /* the item's CRC cannot be computed from the CRCs of the pieces */
};

/* Set hash_output. plan, item_no, item, from and len must be filled in. */
void gather_begin(struct gather *g);
/* Returns true if gather_piece() needs `out` even for an item that is only checked. */
bool gather_needs_output(const struct gather *g);
/* Process one piece, whose bytes are at src. Returns -1 with ERR_DATA if they complete a corrupt record. */
MUST_CHECK int gather_piece(const struct gather *g, const struct tmap_piece *pc, const uint8_t *src, struct err *e);
/*
 * Finish the chunk after all pieces: combine replicas, add parts, convert, and hash what has not been hashed.
 * Returns false if replicas disagree under REPLICAS_FAIL; the chunk must then not be written.
 */
bool gather_end(const struct gather *g);

/*
 * The destination of a chunk of a transposed item: n runs of `run` bytes, `stride` apart, the first at item byte
 * `at`.
 */
struct gather_matrix {
    uint64_t n, run, stride, at;
};
struct gather_matrix gather_matrix(const struct gather *g);
/* Store those runs consecutively at `to`, and hash them. Must be called after gather_end(). */
void gather_transpose(const struct gather *g, uint8_t *to);

#endif
