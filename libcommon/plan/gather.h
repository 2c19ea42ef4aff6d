/*
 * gather.h - what happens to the bytes of one chunk between being read and being written
 *
 * Every piece goes into its place in the chunk's output; on the way it is hashed for the
 * record it comes from and for the item it goes to, with as few passes over memory as
 * the operation allows. No I/O here.
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
    uint8_t *out;               /* chunk byte 0; NULL: nothing but hashing is asked for */
    uint64_t copy_stride;       /* REPLICAS, SUM: slice k is gathered at out + k * copy_stride */
    struct report *report;      /* corrupt records go there; NULL: they end the run */
    bool hash_output;           /* the item's CRC cannot be had from those of the pieces */
};

/* Decides hash_output; plan, item_no, from and len are filled. */
void gather_begin(struct gather *g);
/* True when gather_piece() needs `out` even for an item that is only checked. */
bool gather_needs_output(const struct gather *g);
/* The bytes of one piece are at src. -1 with ERR_DATA: they complete a corrupt record. */
MUST_CHECK int gather_piece(const struct gather *g, const struct tmap_piece *pc, const uint8_t *src, struct err *e);
/* All pieces are in: combine replicas, add parts, convert, hash the rest. False: REPLICAS_FAIL, do not write. */
bool gather_end(const struct gather *g);

/* Where the chunk of a transposed item goes: n runs of `run` bytes, `stride` apart, the first at item byte `at`. */
struct gather_matrix {
    uint64_t n, run, stride, at;
};
struct gather_matrix gather_matrix(const struct gather *g);
/* After gather_end(): put those runs one after the other at `to`, and hash them. */
void gather_transpose(const struct gather *g, uint8_t *to);

#endif
