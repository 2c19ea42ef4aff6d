/*
 * tmap.h - tensor maps: how the row-major bytes of one logical tensor are assembled from its shards
 *
 * A tensor map describes one state of one parameter. It lists the extents of every slice, and how the slices form
 * the whole tensor. Byte b of the logical tensor, 0 <= b < len, is:
 *   TMAP_CONCAT      byte b of slice 0, slice 1, ... concatenated
 *   TMAP_INTERLEAVE  in row b / row: each slice contributes row_part bytes to every row
 *   TMAP_REPLICAS    byte b of every slice; copies should agree (a policy decides if they do not)
 *   TMAP_SUM         the sum of the elements of all slices, computed by tmap_add(); a single slice is copied
 *   TMAP_BOXES       in the one slice whose box contains the element; the boxes tile the tensor
 * Slices hold whole elements. An extent may end at any element boundary. A slice may be a window of wider rows
 * (some columns of a matrix): it then consists of window_len bytes, from offset window_at, out of every window_row
 * bytes of its extents.
 */
#ifndef SHARDKIT_PLAN_TMAP_H
#define SHARDKIT_PLAN_TMAP_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/replicas.h"
#include "libcommon/base/tensor.h"

enum tmap_op { TMAP_CONCAT, TMAP_INTERLEAVE, TMAP_REPLICAS, TMAP_SUM, TMAP_BOXES };

/*
 * A box of a tensor, stored row-major like the tensor. Each level selects a range of the steps of the level above.
 * Steps are `stride` bytes of the whole tensor apart. The last level is a run of bytes (stride 1).
 */
struct tmap_box {
    int n;                      /* 1 .. TENSOR_MAX_DIM + 1 */
    struct tmap_level {
        uint64_t stride;        /* bytes of the tensor from one step to the next */
        uint64_t at, len;       /* selects steps [at, at + len) of the level above */
        uint64_t inside;        /* bytes of the box in one step */
    } level[TENSOR_MAX_DIM + 1];
};

struct tmap_slice {
    uint64_t len;               /* size in bytes: the sum of the extents, or of the windows in them */
    uint64_t row_part;          /* INTERLEAVE: bytes of each row that this slice contributes; a window has this width */
    uint64_t window_row, window_at, window_len; /* window_row 0: no window, the slice is all bytes of the extents */
    int n_extents;
    struct extent *extent;
    const struct tmap_box *box; /* BOXES: the position of the slice; NULL otherwise */
};

struct tmap {
    enum tmap_op op;
    enum dtype dtype;
    uint64_t len;               /* size in logical bytes */
    uint64_t row;               /* INTERLEAVE: size of a whole row in bytes */
    int n_slices;
    struct tmap_slice *slice;
};

/*
 * One piece of a gather: `n` runs of `run` bytes. The source bytes are contiguous; the destination runs start
 * `stride` bytes apart.
 */
struct tmap_piece {
    int slice;
    uint64_t at;                /* offset of its first byte in the slice */
    struct extent src;          /* n * run bytes, contiguous in the record */
    uint64_t dst;               /* offset of the first run, relative to the start of the requested range */
    uint64_t run, stride;
    uint64_t n;
};
/*
 * A cursor that splits logical bytes [from, from + len) of slice `only` (-1: of all slices) into pieces. An extent
 * that begins or ends inside a run is split there, so a piece holds either whole runs or one partial run. The
 * pieces of a slice follow each other in the order of the slice, and slices follow in their own order. With
 * REPLICAS and SUM the pieces of every slice map onto the same destination bytes.
 */
struct tmap_cursor {
    const struct tmap *map;
    uint64_t from, len;
    int slice, end_slice;       /* the current slice; the first slice not to visit */
    int extent;
    uint64_t extent_at;         /* offset of that extent's first byte among all extents of the slice */
    uint64_t at, end;           /* the range of the slice that has not been returned yet */
    uint64_t column;            /* offset of the slice: CONCAT in the tensor, INTERLEAVE within a row */
};
void tmap_begin(struct tmap_cursor *c, const struct tmap *m, uint64_t from, uint64_t len, int only);
/*
 * Get the next piece, at most `most` bytes long (>= 1; a strided piece may be cut inside a run). Returns false if
 * there are no more.
 */
bool tmap_next(struct tmap_cursor *c, uint64_t most, struct tmap_piece *p);

/* Call fn for each piece of a range. Stops as soon as fn returns a value other than 0, and returns that value. */
int tmap_gather(const struct tmap *m, uint64_t from, uint64_t len, int only,
                int (*fn)(void *ctx, const struct tmap_piece *p), void *ctx);

/*
 * Logical bytes [from, from + len). With REPLICAS they are read from one slice. With SUM they must be whole
 * elements.
 */
struct tmap_range {
    int replica;
    uint64_t from, len;
};
/*
 * Read a range into buf with pread, without checking CRCs. For commands that inspect a part of a tensor (cat,
 * stats, diff, replicas).
 */
MUST_CHECK int tmap_read(const struct tmap *m, struct files *f, struct tmap_range r, void *buf, struct err *e);
/* A callback that receives every piece as it is stored in its record. A return value other than 0 ends the read. */
struct tmap_watch {
    int (*seen)(void *ctx, const struct tmap_piece *p, const void *bytes, struct err *e);
    void *ctx;
};
MUST_CHECK int tmap_read_seen(const struct tmap *m, struct files *f, struct tmap_range r, void *buf,
                              const struct tmap_watch *watch, struct err *e);
/* Returns the size of the map's elements in bytes if they are stored as `t`. */
static inline uint64_t tmap_bytes_as(const struct tmap *m, enum dtype t)
{
    return m->len / (uint64_t)dtype_size(m->dtype) * (uint64_t)dtype_size(t);
}

/* Returns true if a piece of the map may consist of runs that are not adjacent in the tensor. */
static inline bool tmap_scatters(const struct tmap *m) { return m->op == TMAP_INTERLEAVE || m->op == TMAP_BOXES; }
/* Returns true if every slice contains every byte of the tensor. */
static inline bool tmap_overlays(const struct tmap *m) { return m->op == TMAP_REPLICAS || m->op == TMAP_SUM; }
/* Returns the number of bytes that are read per byte of the tensor. */
static inline uint64_t tmap_layers(const struct tmap *m) { return tmap_overlays(m) ? (uint64_t)m->n_slices : 1; }
/*
 * Returns a copy of m in the arena with `shift` added to every record number. Used for a map of a table that
 * files_join() appended to another table.
 */
struct tmap *tmap_shifted(struct arena *a, const struct tmap *m, int shift);

/*
 * Combine n copies of `bytes` bytes by the policy and store the result in out, which may be copy[0]. Returns the
 * number of elements on which they differ; if there are any under REPLICAS_FAIL, out is not written. Elements on
 * which all copies agree are copied unchanged, so the result does not depend on how a tensor is cut.
 * REPLICAS_AVERAGE averages f16 and bf16 in fp32 and rounds to nearest even; integers have no average, so the first
 * copy's value is used.
 */
uint64_t replicas_combine(const void *const *copy, int n, uint64_t bytes, enum dtype dtype,
                          enum replica_policy policy, void *out);
/*
 * Add n parts of `bytes` bytes element by element and store the result in out, which may be part[0]. The sum is
 * computed as 0 + part 0 + part 1 and so on, rounded to the dtype after each addition, as torch adds tensors. The
 * dtype must be a real floating-point type of 16 bits or more.
 */
void tmap_add(const void *const *part, int n, uint64_t bytes, enum dtype dtype, void *out);
/* Returns the index of the first element on which the copies differ, or UINT64_MAX if they are equal. */
uint64_t replicas_first_difference(const void *const *copy, int n, uint64_t bytes, enum dtype dtype);

#endif
