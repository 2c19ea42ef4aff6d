/*
 * tmap.h - how the row-major bytes of one logical tensor come out of its shards
 *
 * A tensor map names, for one state of one parameter, the extents of every slice and the
 * way slices form the whole. Byte b of the logical tensor, 0 <= b < len, is
 *   TMAP_CONCAT      byte b of slice 0, slice 1, ... laid end to end
 *   TMAP_INTERLEAVE  row b / row: each slice gives row_part of its bytes to every row
 *   TMAP_REPLICAS    byte b of every slice; copies should agree (policy decides if not)
 *   TMAP_SUM         the sum of all slices' elements, as tmap_add() adds them; of one slice its bytes
 *   TMAP_BOXES       of the one slice in whose box its element lies; boxes tile the tensor
 * Slices hold whole elements; an extent may end anywhere on an element boundary.
 * A slice may be a window of wider rows: of every window_row bytes of its extents it is
 * window_len bytes from window_at on (some columns of a matrix).
 */
#ifndef SHARDKIT_PLAN_TMAP_H
#define SHARDKIT_PLAN_TMAP_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/replicas.h"

enum tmap_op { TMAP_CONCAT, TMAP_INTERLEAVE, TMAP_REPLICAS, TMAP_SUM, TMAP_BOXES };

/*
 * A box of a tensor, row-major like the tensor: level by level which steps of the level above it takes, counted in
 * steps of `stride` bytes of the whole tensor. The last level is a run of bytes (stride 1).
 */
struct tmap_box {
    int n;                      /* 1 .. TENSOR_MAX_DIM + 1 */
    struct tmap_level {
        uint64_t stride;        /* bytes of the tensor to the next step */
        uint64_t at, len;       /* steps [at, at + len) of those of the level above */
        uint64_t inside;        /* bytes of the box in one step */
    } level[TENSOR_MAX_DIM + 1];
};

struct tmap_slice {
    uint64_t len;               /* bytes: the sum of its extents, or what windows leave of it */
    uint64_t row_part;          /* INTERLEAVE: bytes of each row that come from here; a window is as wide */
    uint64_t window_row, window_at, window_len; /* window_row 0: all bytes of the extents, end to end */
    int n_extents;
    struct extent *extent;
    const struct tmap_box *box; /* BOXES: the slice's place; NULL otherwise */
};

struct tmap {
    enum tmap_op op;
    enum dtype dtype;
    uint64_t len;               /* logical bytes */
    uint64_t row;               /* INTERLEAVE: bytes of a whole row */
    int n_slices;
    struct tmap_slice *slice;
};

/* One piece of a gather: `n` runs of `run` bytes; source bytes are contiguous, destination runs are `stride` apart. */
struct tmap_piece {
    int slice;
    uint64_t at;                /* of its first byte in the slice */
    struct extent src;          /* n * run bytes, contiguous in the record */
    uint64_t dst;               /* where the first run goes, from the start of the range asked for */
    uint64_t run, stride;
    uint64_t n;
};
/*
 * Split logical bytes [from, from + len) of slice `only` (-1: of all slices) into pieces.
 * An extent that begins or ends inside a run is split there, so pieces always hold whole
 * runs or one partial run. Pieces come slice by slice, each in the slice's order.
 * REPLICAS, SUM: pieces of slice k all map onto the same destination bytes.
 */
struct tmap_cursor {
    const struct tmap *map;
    uint64_t from, len;
    int slice, end_slice;       /* the slice we are in; where to stop */
    int extent;
    uint64_t extent_at;         /* first byte of that extent among all of the slice's */
    uint64_t at, end;           /* what of the slice is still to be given out */
    uint64_t column;            /* of the slice: CONCAT where it begins, INTERLEAVE inside a row */
};
void tmap_begin(struct tmap_cursor *c, const struct tmap *m, uint64_t from, uint64_t len, int only);
/* The next piece of at most `most` bytes (>= 1; a strided piece may be cut inside a run). false: no more. */
bool tmap_next(struct tmap_cursor *c, uint64_t most, struct tmap_piece *p);

/* All of them. Calls fn for each; stops and returns its value when not 0. */
int tmap_gather(const struct tmap *m, uint64_t from, uint64_t len, int only,
                int (*fn)(void *ctx, const struct tmap_piece *p), void *ctx);

/* Logical bytes [from, from+len); of REPLICAS those of one slice. Whole elements of a SUM. */
struct tmap_range {
    int replica;
    uint64_t from, len;
};
/*
 * Read a range into buf with pread, no CRC check: for looking at a
 * part (cat, stats, diff, replicas).
 */
MUST_CHECK int tmap_read(const struct tmap *m, struct files *f, struct tmap_range r, void *buf, struct err *e);
/* Is shown every piece as it lies in its record. What is not 0 ends the reading. */
struct tmap_watch {
    int (*seen)(void *ctx, const struct tmap_piece *p, const void *bytes, struct err *e);
    void *ctx;
};
MUST_CHECK int tmap_read_seen(const struct tmap *m, struct files *f, struct tmap_range r, void *buf,
                              const struct tmap_watch *watch, struct err *e);
/* Pieces of such a map may be runs that lie apart in the tensor. */
static inline bool tmap_scatters(const struct tmap *m) { return m->op == TMAP_INTERLEAVE || m->op == TMAP_BOXES; }
/* Does every slice have every byte of the tensor? */
static inline bool tmap_overlays(const struct tmap *m) { return m->op == TMAP_REPLICAS || m->op == TMAP_SUM; }
/* How many bytes are read for one byte of the tensor. */
static inline uint64_t tmap_layers(const struct tmap *m) { return tmap_overlays(m) ? (uint64_t)m->n_slices : 1; }
/* A copy in the arena whose records are `shift` higher: of a map of a table that files_join() added to another. */
struct tmap *tmap_shifted(struct arena *a, const struct tmap *m, int shift);

/*
 * Combine n copies of `bytes` bytes by the policy into out (which may be copy[0]).
 * Returns the number of elements on which they disagree; with REPLICAS_FAIL and
 * disagreement, out is not written. Elements on which all agree are taken as they are, so
 * the result does not depend on how a tensor is cut. f16 and bf16 average in fp32 and
 * round to nearest even; integers have no average: the first copy's value stands.
 */
uint64_t replicas_combine(const void *const *copy, int n, uint64_t bytes, enum dtype dtype,
                          enum replica_policy policy, void *out);
/*
 * The sum of n parts of `bytes` bytes into out (which may be part[0]): 0 + part 0 + part 1 and so on, rounded to the
 * dtype after each, as torch adds tensors. The dtype is a real floating-point one of 16 bits or more.
 */
void tmap_add(const void *const *part, int n, uint64_t bytes, enum dtype dtype, void *out);
/* The lowest element they disagree on; UINT64_MAX: none. */
uint64_t replicas_first_difference(const void *const *copy, int n, uint64_t bytes, enum dtype dtype);

#endif
