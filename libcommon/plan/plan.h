/*
 * plan.h - the exact list of byte ranges to move, computed before any data is read
 *
 * A plan is a list of items. An item reads a range of one logical tensor (a tmap). It writes that range to
 * consecutive bytes of one destination file, or distributes the columns of the range over several files, or only
 * checks the range. After the last item, plan_close() adds check-only items for every byte of a touched record that
 * no item reads (padding, the second copy of a tied weight), so that the CRC of every record can be verified.
 *
 * One thread builds a plan. executor.h runs it.
 */
#ifndef SHARDKIT_PLAN_PLAN_H
#define SHARDKIT_PLAN_PLAN_H

#include <stdbool.h>

#include "libcommon/base/crc.h"
#include "libcommon/plan/tmap.h"

/* The conversion applied to the elements of an item. plan_out_bytes() gives the size of the result. */
enum plan_op {
    PLAN_COPY,
    PLAN_F32_TO_BF16, PLAN_F32_TO_F16,
    PLAN_BF16_TO_F32, PLAN_F16_TO_F32,
    PLAN_BF16_TO_F16, PLAN_F16_TO_BF16,
};
/* Returns the conversion between two dtypes (an enum plan_op), or -1 if there is none. */
int plan_op_of(enum dtype from, enum dtype to);

/* One destination of an item whose columns are distributed over several files. */
struct plan_out {
    int dst;
    uint64_t at;
    struct crc_sum crc;         /* of the bytes written to this destination */
};

struct plan_item {
    const struct tmap *map;
    uint64_t from, len;         /* the range of logical bytes: [from, from + len) */
    int dst;                    /* destination file number; -1 if the item is only checked, or has n_outs */
    uint64_t dst_at;
    /*
     * Set by the caller: the next item is the twin of this one, with the same length and element type. Both are cut
     * at the same places and their chunks are handed out alternately, so a consumer that compares the two never has
     * to keep much of either.
     */
    bool twins;
    int n_outs;                 /* number of destinations if the columns are distributed; else 0 */
    struct plan_out *out;       /* [n_outs] */
    uint64_t part;              /* map bytes of every row that each destination receives */
    enum plan_op op;            /* set by the caller after plan_add(); PLAN_COPY by default */
    /*
     * 0, or the number of bytes per row: the map is then a matrix, and the destination is its transpose. Set by the
     * caller. The item begins at a row and consists of whole rows of at most PLAN_ROW_MAX bytes. (A wider matrix is
     * split into several items, each with some of the columns: tmap_slice_columns().) Such an item has no replicas
     * to combine and is not passed to `look`.
     */
    uint64_t transpose_row;
    enum replica_policy policy; /* for TMAP_REPLICAS */
    const char *name;           /* for messages, e.g. "3.mlp.dense_4h_to_h.weight fp32"; must outlive the plan */
    void *user;                 /* for use by the sink */
    int number;                 /* index of the item in the plan */
    struct crc_sum crc;         /* of the item's bytes as they are written (or checked) */
    struct crc_sum share;       /* for the sink: what the item contributes to a larger CRC; the journal saves it */
    _Atomic uint64_t n_differ;  /* number of elements on which the replicas differ */
    _Atomic uint64_t first_differ;      /* the first such element, counted from `from`; UINT64_MAX: none */
    /* Conversions to fp16: finite numbers that became infinite, and numbers other than 0 that became 0. */
    _Atomic uint64_t n_overflow, n_flushed;
    /*
     * Set by the caller: count invalid values (stats.h) among the elements that are read, in each copy, before they
     * are converted.
     */
    enum { PLAN_VALUES_NONE, PLAN_VALUES, PLAN_VALUES_NEGATIVE } values;
    _Atomic uint64_t n_nan, n_inf, n_negative;
    _Atomic uint64_t left;      /* bytes not processed yet; used by the executor */
    bool done;                  /* an earlier run completed the item (resume); it is not executed again */
};

struct plan_dst {
    char *path;                 /* the caller creates the file with its final length before the run */
    uint64_t size;              /* that length if plan_add_sized() set it; else 0 */
};

struct plan;
struct plan *plan_new(struct files *f);
void plan_free(struct plan *p);
struct files *plan_files(const struct plan *p);
/* Add a destination file. Returns its number. The file must exist when the plan runs. */
int plan_add_dst(struct plan *p, const char *path);
/* Like plan_add_dst(), with the length that the file will have before the plan runs. */
int plan_add_sized(struct plan *p, const char *path, uint64_t size);
/*
 * The input of an item: a range of a tensor, and the item's labels. The fields have the meaning of those in struct
 * plan_item.
 */
struct plan_range {
    const struct tmap *map;
    uint64_t from, len;
    enum replica_policy policy;
    const char *name;
    void *user;
};
/* Add an item. Returns its number. With dst < 0 the item is only checked. */
int plan_add(struct plan *p, const struct plan_range *r, int dst, uint64_t dst_at);
/*
 * Add an item of whole rows, each of which is cut into n_outs parts of `part` bytes. Part i of every row is
 * appended to out[i]. Bytes that are distributed over several files are thus read once, in long runs. len must be a
 * multiple of n_outs * part. `out` is copied.
 */
int plan_add_columns(struct plan *p, const struct plan_range *r, uint64_t part, const struct plan_out *out, int n_outs);
/*
 * Add check-only items for the bytes of touched records that no item reads. plan_add() must not be called
 * afterwards.
 */
void plan_close(struct plan *p);
/*
 * Like plan_close(), but without those check-only items. A record that the items do not read completely is not
 * checked.
 */
void plan_close_parts(struct plan *p);

enum { PLAN_ROW_MAX = 8192 };

/*
 * Returns the size of one element of the item's map. For a conversion the operation defines it, because a map of
 * zeros has no dtype of its own.
 */
static inline uint64_t plan_elem_bytes(const struct plan_item *it)
{
    switch (it->op) {
    case PLAN_COPY: return (uint64_t)dtype_size(it->map->dtype);
    case PLAN_F32_TO_BF16: case PLAN_F32_TO_F16: return 4;
    default: return 2;
    }
}

/* Returns the number of output bytes that n map bytes of the item are converted to. */
static inline uint64_t plan_out_bytes(const struct plan_item *it, uint64_t n)
{
    switch (it->op) {
    case PLAN_F32_TO_BF16: case PLAN_F32_TO_F16: return n / 2;
    case PLAN_BF16_TO_F32: case PLAN_F16_TO_F32: return 2 * n;
    default: return n;
    }
}
/* Returns the dtype of the output elements. */
static inline enum dtype plan_out_dtype(const struct plan_item *it)
{
    switch (it->op) {
    case PLAN_F32_TO_BF16: case PLAN_F16_TO_BF16: return DTYPE_BF16;
    case PLAN_F32_TO_F16: case PLAN_BF16_TO_F16: return DTYPE_F16;
    case PLAN_BF16_TO_F32: case PLAN_F16_TO_F32: return DTYPE_F32;
    case PLAN_COPY: break;
    }
    return it->map->dtype;
}
static inline bool plan_writes(const struct plan_item *it) { return it->dst >= 0 || it->n_outs > 0; }
/* Returns the number of bytes that the item writes to each of its destinations. */
static inline uint64_t plan_share(const struct plan_item *it)
{
    return plan_out_bytes(it, it->n_outs ? it->len / (uint64_t)it->n_outs : it->len);
}

int plan_n(const struct plan *p);
struct plan_item *plan_item(struct plan *p, int i);
int plan_n_dst(const struct plan *p);
const struct plan_dst *plan_dst(const struct plan *p, int i);
uint64_t plan_read_bytes(const struct plan *p);     /* without items marked done */
uint64_t plan_write_bytes(const struct plan *p);

/*
 * Returns the CRC state of record `record`, computed from what the run has read of it so far. The plan must be
 * closed. A record whose `seen` equals its length is complete and must match its CRC. A byte that several items
 * read is counted once, for the item whose read of that byte begins first in the record. That item is the same in
 * every run of the same plan.
 */
struct crc_sum *plan_record_sum(struct plan *p, int record);
/*
 * The contributions of item i to the CRCs of records. A journal saves them when the item is done. To resume, set
 * the item's `done` and `crc`, and pass each part to crc_sum_merge() with plan_record_sum(). (The record's own sum
 * cannot be saved instead: it also contains chunks of items that are not complete.) The plan owns the list, which
 * is the same in every run of the same plan.
 */
struct plan_part {
    int record;
    int place;                  /* rank of the record among all records, sorted by file and offset */
    struct crc_sum sum;
};
struct plan_part *plan_item_parts(struct plan *p, int i, int *n);
/*
 * To be called after the run. Returns 0 if every touched record is complete and matches its CRC, else -1 with
 * ERR_DATA that names the record.
 */
MUST_CHECK int plan_check_records(struct plan *p, struct err *e);

/*
 * Several processes can share a plan. Each process builds the same plan, sets `done` for the items of the other
 * processes, and runs its own items. Each process then has a part of the CRC of every record, and the processes
 * exchange these parts.
 *
 * plan_mark() returns a checksum that is equal for equal plans. It covers the items and the records that they read:
 * file names (relative to `root`, because each host may have its copy at a different path), offsets, sizes and
 * CRCs.
 *
 * plan_seen() writes to out[] what this process has read of every touched record that has a CRC, in the order of
 * their places. Returns the number of these records; with out NULL it does only that.
 *
 * plan_seen_add() adds the list of another process. Returns -1 with ERR_DATA if that completes a record whose CRC
 * is wrong.
 */
struct plan_seen {
    uint64_t bytes;
    uint64_t acc;               /* the acc of the record's crc_sum */
};
uint32_t plan_mark(const struct plan *p, const char *root);
int plan_seen(const struct plan *p, struct plan_seen *out);
MUST_CHECK int plan_seen_add(struct plan *p, const struct plan_seen *other, struct err *e);

/* ---- used by the executor ---- */

/*
 * Inspect the bytes of a piece of item i, from byte `skip` of the piece. Returns the length of the leading run of
 * bytes that are all counted for the CRC of the record or all not counted, and sets *counts to which.
 */
uint64_t plan_counted(const struct plan *p, int i, const struct tmap_piece *pc, uint64_t skip, bool *counts);
/* Returns true if every byte that item i reads is counted. */
bool plan_counts_all(const struct plan *p, int i);
/*
 * Add the CRC of the counted bytes `x` of a record, read by item i. Returns -1 with ERR_DATA if that completes the
 * record and its CRC is wrong. May be called from any thread.
 */
MUST_CHECK int plan_record_add(struct plan *p, int i, const struct extent *x, uint32_t crc, struct err *e);

#endif
