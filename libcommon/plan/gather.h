/*
 * gather.h - process the bytes of one chunk after they are read and before they are written
 *
 * Every piece is copied to its position in the chunk's output. Its bytes are hashed for the record from which they were
 * read and for the item, in as few passes over memory as the operation allows. This module does no I/O.
 */
#ifndef SHARDKIT_PLAN_GATHER_H
#define SHARDKIT_PLAN_GATHER_H

#include "libcommon/base/report.h"
#include "libcommon/plan/plan.h"

struct gather {
    struct plan *plan;
    int item_no;
    struct plan_item *item;
    uint64_t from, len;         /* range of the chunk, in logical bytes of the item's map */
    uint8_t *out;               /* address for the first byte of the chunk; NULL: the bytes are hashed but not copied */
    uint64_t copy_stride;       /* for REPLICAS and SUM: slice k is copied to out + k * copy_stride */
    struct report *report;      /* receives a finding for each corrupt record; NULL: a corrupt record ends the run */
    bool hash_output;           /* true if the CRC of the item must be computed from its output, because it does not
                                 * follow from the CRCs of the pieces */
};

/* Set g->hash_output. The members plan, item_no, item, from and len must be filled in. */
void gather_begin(struct gather *g);
/* Returns true if gather_piece() needs g->out even if the item is only checked. */
bool gather_needs_output(const struct gather *g);
/*
 * Process one piece, whose bytes are at src. If the piece completes a record whose CRC is wrong, returns -1 with
 * ERR_DATA.
 */
MUST_CHECK int gather_piece(const struct gather *g, const struct tmap_piece *pc, const uint8_t *src, struct err *e);
/*
 * Finish the chunk after all pieces were processed. This combines replicas, adds the parts of a sum, converts elements,
 * and hashes the bytes that have not been hashed. Returns false if replicas disagree under REPLICAS_FAIL; the chunk
 * must then not be written.
 */
bool gather_end(const struct gather *g);

/*
 * Describes where a chunk of a transposed item is written: n runs of `run` bytes each. The first run begins at byte
 * `at` of the item. Each further run begins `stride` bytes after the previous one.
 */
struct gather_matrix {
    uint64_t n, run, stride, at;
};
struct gather_matrix gather_matrix(const struct gather *g);
/* Store the runs of gather_matrix() at `to`, one after the other, and hash them. Must be called after gather_end(). */
void gather_transpose(const struct gather *g, uint8_t *to);

#endif
