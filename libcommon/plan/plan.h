/*
 * plan.h - the exact list of byte ranges to move, computed before any data is read
 *
 * A plan is a list of items. An item reads a range of one logical tensor (a tmap). It writes this range to consecutive
 * bytes of one destination file, distributes the columns of the range over several files, or only checks the range. If
 * items read only a part of a record, plan_close() adds check-only items for its other bytes (padding, the second copy
 * of a tied weight), so that the CRC of the record can be verified.
 *
 * One thread builds a plan. executor.h runs it.
 */
#ifndef SHARDKIT_PLAN_PLAN_H
#define SHARDKIT_PLAN_PLAN_H

#include <stdbool.h>

#include "libcommon/base/crc.h"
#include "libcommon/plan/tmap.h"

/* The conversion of an item's elements. plan_out_bytes() returns the size of the result. */
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
    struct crc_sum crc;         /* CRC of the bytes that are written to this destination */
};

struct plan_item {
    const struct tmap *map;
    uint64_t from, len;         /* the item is logical bytes [from, from + len) of the map */
    int dst;                    /* number of the destination file; -1 if the item is only checked, or has n_outs
                                 * destinations */
    uint64_t dst_at;
    /*
     * Set by the caller if the next item is the twin of this one. Both items must have the same length and element
     * type. Their chunks end at the same positions and are processed alternately. Code that compares the two items
     * therefore never needs to keep many chunks in memory.
     */
    bool twins;
    int n_outs;                 /* number of destinations over which the columns are distributed; 0 if they are not
                                 * distributed */
    struct plan_out *out;       /* [n_outs] */
    uint64_t part;              /* number of bytes of each row of the map that one destination receives */
    enum plan_op op;            /* set by the caller after plan_add(); the default is PLAN_COPY */
    /*
     * Set by the caller. If it is not 0, the map is a matrix with this number of bytes per row, and its transpose is
     * written. The item must begin at the start of a row and consist of whole rows, each of at most PLAN_ROW_MAX bytes.
     * (A wider matrix is split into several items, each with some of the columns: tmap_slice_columns().) The item must
     * not have replicas that need to be combined. It is not passed to `look`.
     */
    uint64_t transpose_row;
    enum replica_policy policy; /* for TMAP_REPLICAS */
    const char *name;           /* for messages, e.g. "3.mlp.dense_4h_to_h.weight fp32"; must outlive the plan */
    void *user;                 /* for use by the code that writes a layout (sink) */
    int number;                 /* index of the item in the plan */
    struct crc_sum crc;         /* CRC of the item's bytes after conversion, as they are written or checked */
    /* used by the sink: the item's share in the CRC of a longer sequence of bytes; the journal saves it */
    struct crc_sum share;
    _Atomic uint64_t n_differ;  /* number of elements on which the replicas differ */
    _Atomic uint64_t first_differ;      /* index of the first element on which the replicas differ, counted from `from`;
                                         * UINT64_MAX: none */
    /*
     * For conversions to fp16: number of finite numbers that became infinite, and number of nonzero numbers that became
     * 0.
     */
    _Atomic uint64_t n_overflow, n_flushed;
    /*
     * Set by the caller: the kinds of invalid values (stats.h) to count among the elements that are read. They are
     * counted in each copy, before the conversion.
     */
    enum { PLAN_VALUES_NONE, PLAN_VALUES, PLAN_VALUES_NEGATIVE, PLAN_VALUES_SCALES } values;
    enum dtype scale_type;      /* with PLAN_VALUES_SCALES: type of the elements */
    _Atomic uint64_t n_nan, n_inf, n_negative, n_zero;
    _Atomic uint64_t left;      /* number of bytes that have not been processed yet; used by the executor */
    bool done;                  /* an earlier run has completed the item, so a resumed run skips it */
};

struct plan_dst {
    char *path;                 /* path of the file, which the caller must create with its final length before the
                                 * run */
    uint64_t size;              /* length that was passed to plan_add_sized(); else 0 */
};

struct plan;
struct plan *plan_new(struct files *f);
void plan_free(struct plan *p);
struct files *plan_files(const struct plan *p);
/* Add a destination file. Returns its number. The file must exist before the plan is run. */
int plan_add_dst(struct plan *p, const char *path);
/* Add a destination file like plan_add_dst(), and state the length that the file will have before the plan is run. */
int plan_add_sized(struct plan *p, const char *path, uint64_t size);
/* The input of an item: a range of a tensor, and labels. The members have the same meaning as in struct plan_item. */
struct plan_range {
    const struct tmap *map;
    uint64_t from, len;
    enum replica_policy policy;
    const char *name;
    void *user;
};
/* Add an item. Returns its number. If dst < 0, the item is only checked. */
int plan_add(struct plan *p, const struct plan_range *r, int dst, uint64_t dst_at);
/*
 * Add an item of whole rows. Each row is cut into n_outs parts of `part` bytes. Part i of every row is appended to
 * destination out[i]. In this way, bytes that are distributed over several files are read only once, in long runs. The
 * length of the range must be a multiple of n_outs * part. The array `out` is copied.
 */
int plan_add_columns(struct plan *p, const struct plan_range *r, uint64_t part, const struct plan_out *out, int n_outs);
/*
 * Finish the plan. If items read only some bytes of a record, check-only items are added for its other bytes.
 * plan_add() must not be called after this.
 */
void plan_close(struct plan *p);
/*
 * Finish the plan like plan_close(), but without adding check-only items. If the items do not read all bytes of a
 * record, the CRC of the record is not checked.
 */
void plan_close_parts(struct plan *p);

enum { PLAN_ROW_MAX = 8192 };

/*
 * Returns the size of one element of the item's map. If the item has a conversion, the conversion determines the size,
 * because a map of zeros has no dtype of its own.
 */
static inline uint64_t plan_elem_bytes(const struct plan_item *it)
{
    switch (it->op) {
    case PLAN_COPY: return (uint64_t)dtype_size(it->map->dtype);
    case PLAN_F32_TO_BF16: case PLAN_F32_TO_F16: return 4;
    default: return 2;
    }
}

/* Returns the number of bytes to which n map bytes of the item are converted. */
static inline uint64_t plan_out_bytes(const struct plan_item *it, uint64_t n)
{
    switch (it->op) {
    case PLAN_F32_TO_BF16: case PLAN_F32_TO_F16: return n / 2;
    case PLAN_BF16_TO_F32: case PLAN_F16_TO_F32: return 2 * n;
    default: return n;
    }
}
/* Returns the dtype of the elements after conversion. */
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
uint64_t plan_read_bytes(const struct plan *p);     /* items that have `done` set are not counted */
uint64_t plan_write_bytes(const struct plan *p);

/*
 * Returns the CRC of record `record` so far, computed from what the run has read. The plan must be closed. When `seen`
 * is equal to the length of the record, the record is complete, and the sum must be equal to its CRC. A byte that
 * several items read is counted once, namely for the item whose read of this byte begins first in the record. This is
 * the same item in every run of the same plan.
 */
struct crc_sum *plan_record_sum(struct plan *p, int record);
/*
 * The contribution of one item to the CRC of one record. A journal saves the contributions of an item when the item is
 * done. To resume, the caller sets `done` and `crc` of the item, and adds each contribution to plan_record_sum() with
 * crc_sum_merge(). (The sum of the record cannot be saved instead, because it also contains chunks of incomplete
 * items.) plan_item_parts() returns the list of an item's contributions. The plan owns this list, which is the same in
 * every run of the same plan.
 */
struct plan_part {
    int record;
    int place;                  /* rank of the record among all records, sorted by file and offset */
    struct crc_sum sum;
};
struct plan_part *plan_item_parts(struct plan *p, int i, int *n);
/*
 * Must be called after the run. Returns 0 if every record from which items read is complete and has its CRC. Otherwise
 * returns -1 with ERR_DATA, which names the record.
 */
MUST_CHECK int plan_check_records(struct plan *p, struct err *e);

/*
 * Several processes can share a plan. Each process builds the same plan, sets `done` for the items of the other
 * processes, and runs its own items. Each process then knows a part of the CRC of every record, so the processes
 * exchange these parts.
 *
 * plan_mark() returns a checksum that is equal for equal plans. It covers the items and the records that they read:
 * offsets, sizes, CRCs and file names. The names are relative to `root`, because the checkpoint may have a different
 * path on each host.
 *
 * plan_seen() lists in out[] what this process has read of each record, in the order of the records' places. It lists
 * only records that have a CRC and from which items read. Returns the number of these records. If `out` is NULL, only
 * this number is determined.
 *
 * plan_seen_add() adds the list of another process. Returns -1 with ERR_DATA if this completes a record and the CRC is
 * wrong.
 */
struct plan_seen {
    uint64_t bytes;
    uint64_t acc;               /* the member `acc` of the record's crc_sum */
};
uint32_t plan_mark(const struct plan *p, const char *root);
int plan_seen(const struct plan *p, struct plan_seen *out);
MUST_CHECK int plan_seen_add(struct plan *p, const struct plan_seen *other, struct err *e);

/* ---- used by the executor ---- */

/*
 * Determine whether bytes of a piece of item i count for the CRC of their record. *counts is set to true if byte `skip`
 * of the piece counts, and otherwise to false. Returns the number of bytes, from byte `skip` on, for which the answer
 * is the same.
 */
uint64_t plan_counted(const struct plan *p, int i, const struct tmap_piece *pc, uint64_t skip, bool *counts);
/* Returns true if every byte that item i reads counts for the CRC of its record. */
bool plan_counts_all(const struct plan *p, int i);
/*
 * Add `crc`, the CRC of the bytes `x` that item i has read, to the CRC of their record. All of these bytes must count.
 * Returns -1 with ERR_DATA if this completes the record and the CRC is wrong. May be called from any thread.
 */
MUST_CHECK int plan_record_add(struct plan *p, int i, const struct extent *x, uint32_t crc, struct err *e);

#endif
