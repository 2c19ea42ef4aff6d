/*
 * tmap.h - tensor maps: how the row-major bytes of one logical tensor are assembled from its shards
 *
 * A tensor map describes one state of one parameter. It lists the extents of every slice, and how the slices form the
 * whole tensor. Byte b of the logical tensor, 0 <= b < len, is:
 *   TMAP_CONCAT      byte b of slice 0, slice 1, ... concatenated
 *   TMAP_INTERLEAVE  in row number b / row; every row consists of row_part bytes of each slice
 *   TMAP_REPLICAS    byte b of every slice; the slices are copies that should agree (if they do not, a policy selects
 *                    the value)
 *   TMAP_SUM         the sum of the elements of all slices, computed by tmap_add(); a single slice is copied
 *   TMAP_BOXES       in the slice whose box contains the element; each element is in exactly one box
 * Slices hold whole elements. An extent may end at any element boundary. A slice may be a window, which is some columns
 * of a matrix: of every row of window_row bytes in its extents, it then contains window_len bytes from offset window_at
 * on.
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
 * A box of a tensor, stored row-major like the tensor. It is described by levels, from the outermost to the innermost.
 * The steps of a level are `stride` bytes of the tensor apart. The box contains steps [at, at + len) of the level
 * inside each step of the level above. The last level is a run of bytes (stride 1).
 */
struct tmap_box {
    int n;                      /* 1 .. TENSOR_MAX_DIM + 1 */
    struct tmap_level {
        uint64_t stride;        /* distance in bytes of the tensor between two steps */
        uint64_t at, len;       /* selects steps [at, at + len) of the level above */
        uint64_t inside;        /* number of bytes of the box in one step */
    } level[TENSOR_MAX_DIM + 1];
};

struct tmap_slice {
    uint64_t len;               /* size in bytes: the sum of the extents, or of the windows in the extents */
    /* INTERLEAVE: number of bytes of each row that are in the slice; also the width of a window */
    uint64_t row_part;
    uint64_t window_row, window_at, window_len; /* window_row 0: the slice is not a window and contains all bytes of
                                                 * the extents */
    int n_extents;
    struct extent *extent;
    const struct tmap_box *box; /* BOXES: the position of the slice in the tensor; NULL otherwise */
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
 * One piece of a range. Its bytes are contiguous in the file. In the tensor they are copied to `n` runs of `run` bytes,
 * which begin `stride` bytes apart.
 */
struct tmap_piece {
    int slice;
    uint64_t at;                /* offset of the piece's first byte in the slice */
    struct extent src;          /* the n * run bytes, which are contiguous in the record */
    uint64_t dst;               /* offset of the first run in the tensor, relative to the start of the requested
                                 * range */
    uint64_t run, stride;
    uint64_t n;
};
/*
 * A cursor splits logical bytes [from, from + len) into pieces. If `only` is -1, it visits all slices; otherwise it
 * visits only slice `only`. A run is split where an extent begins or ends inside it. A piece therefore has either whole
 * runs or a part of one run. Pieces are returned in the order of the slices, and within a slice in the order of its
 * bytes. With REPLICAS and SUM, every slice is copied to the same bytes of the tensor.
 */
struct tmap_cursor {
    const struct tmap *map;
    uint64_t from, len;
    int slice, end_slice;       /* the current slice, and the first slice that is not visited */
    int extent;
    uint64_t extent_at;         /* offset of the current extent's first byte in the concatenated extents of the slice */
    uint64_t at, end;           /* range of the slice's bytes that have not been returned yet */
    uint64_t column;            /* offset of the slice: in the tensor for CONCAT, within a row for INTERLEAVE */
};
void tmap_begin(struct tmap_cursor *c, const struct tmap *m, uint64_t from, uint64_t len, int only);
/*
 * Get the next piece, which has at most `most` bytes (>= 1). A run may be split for this reason. Returns false if there
 * are no more pieces.
 */
bool tmap_next(struct tmap_cursor *c, uint64_t most, struct tmap_piece *p);

/* Call fn for each piece of a range. If fn returns a value other than 0, this function stops and returns that value. */
int tmap_gather(const struct tmap *m, uint64_t from, uint64_t len, int only,
                int (*fn)(void *ctx, const struct tmap_piece *p), void *ctx);

/*
 * Logical bytes [from, from + len). If the map is REPLICAS, the bytes are read from slice number `replica`. If the map
 * is SUM, the range must consist of whole elements.
 */
struct tmap_range {
    int replica;
    uint64_t from, len;
};
/*
 * Read a range to buf with pread, without checking CRCs. This is for commands that inspect a part of a tensor (cat,
 * stats, diff, replicas).
 */
MUST_CHECK int tmap_read(const struct tmap *m, struct files *f, struct tmap_range r, void *buf, struct err *e);
/*
 * Read a range like tmap_read(), and check the whole records from which it is read with files_check_record(). Fails
 * with ERR_DATA if one of the records is corrupt.
 */
MUST_CHECK int tmap_read_checked(const struct tmap *m, struct files *f, struct tmap_range r, void *buf, struct err *e);
/*
 * A callback that receives the bytes of every piece as the record stores them. If it returns a value other than 0, the
 * read ends.
 */
struct tmap_watch {
    int (*seen)(void *ctx, const struct tmap_piece *p, const void *bytes, struct err *e);
    void *ctx;
};
MUST_CHECK int tmap_read_seen(const struct tmap *m, struct files *f, struct tmap_range r, void *buf,
                              const struct tmap_watch *watch, struct err *e);
/* Returns the total size in bytes that the map's elements would have if their type was t. */
static inline uint64_t tmap_bytes_as(const struct tmap *m, enum dtype t)
{
    return m->len / (uint64_t)dtype_size(m->dtype) * (uint64_t)dtype_size(t);
}

/* Returns true if a piece of this map may consist of several runs that are not adjacent in the tensor. */
static inline bool tmap_scatters(const struct tmap *m) { return m->op == TMAP_INTERLEAVE || m->op == TMAP_BOXES; }
/* Returns true if every slice contains every byte of the tensor. */
static inline bool tmap_overlays(const struct tmap *m) { return m->op == TMAP_REPLICAS || m->op == TMAP_SUM; }
/* Returns the number of bytes that are read for each byte of the tensor. */
static inline uint64_t tmap_layers(const struct tmap *m) { return tmap_overlays(m) ? (uint64_t)m->n_slices : 1; }
/*
 * Returns a copy of m, allocated in the arena, in which `shift` has been added to every record number. The copy is
 * needed after files_join() has appended the table of files of m to another table.
 */
struct tmap *tmap_shifted(struct arena *a, const struct tmap *m, int shift);

/*
 * Combine n copies of `bytes` bytes as the policy requires, and store the result in `out`, which may be copy[0].
 * Returns the number of elements on which the copies differ. If this is not 0 and the policy is REPLICAS_FAIL, `out` is
 * not written. Elements on which all copies agree are not changed, so the result does not depend on how a tensor is
 * cut. REPLICAS_AVERAGE averages f16 and bf16 in fp32 and rounds to nearest even. Integers have no average, so the
 * first copy of an integer is used.
 */
uint64_t replicas_combine(const void *const *copy, int n, uint64_t bytes, enum dtype dtype,
                          enum replica_policy policy, void *out);
/*
 * Add n parts of `bytes` bytes, element by element, and store the result in `out`, which may be part[0]. The sum is
 * computed as torch adds tensors: 0 + part 0 + part 1 and so on, rounded to the dtype after each addition. The dtype
 * must be a floating-point type of 16 bits or more that is not complex.
 */
void tmap_add(const void *const *part, int n, uint64_t bytes, enum dtype dtype, void *out);
/* Returns the index of the first element on which the copies differ, or UINT64_MAX if all copies are equal. */
uint64_t replicas_first_difference(const void *const *copy, int n, uint64_t bytes, enum dtype dtype);

#endif
