/*
 * plan.h - what has to be moved where, known to the byte before it starts
 *
 * A plan is a list of items. An item takes a range of one logical tensor (a tmap) and
 * writes it to consecutive bytes of a destination file, or deals its columns out to several
 * of them, or only checks it. After
 * the last item plan_close() adds check-only items for every byte of a touched record
 * that nobody wanted (padding, the tied copy), so that each record's CRC can close.
 * Building is for one thread; executor.h runs it.
 */
#ifndef SHARDKIT_PLAN_PLAN_H
#define SHARDKIT_PLAN_PLAN_H

#include <stdbool.h>

#include "libcommon/base/crc.h"
#include "libcommon/plan/tmap.h"

/* What happens to an item's elements on their way; see plan_out_bytes() for what they become. */
enum plan_op {
    PLAN_COPY,
    PLAN_F32_TO_BF16, PLAN_F32_TO_F16,
    PLAN_BF16_TO_F32, PLAN_F16_TO_F32,
    PLAN_BF16_TO_F16, PLAN_F16_TO_BF16,
};
/* The conversion from one dtype to another: -1 when there is none. */
int plan_op_of(enum dtype from, enum dtype to);

/* One destination of an item that is dealt out by columns. */
struct plan_out {
    int dst;
    uint64_t at;
    struct crc_sum crc;         /* of the bytes that go there */
};

struct plan_item {
    const struct tmap *map;
    uint64_t from, len;         /* logical bytes [from, from + len) */
    int dst;                    /* destination file number, or -1: check only, or dealt out */
    uint64_t dst_at;
    /*
     * Set by the caller: the next item is this one's twin, of the same length and element. The two are cut
     * alike and handed out by turns, so that whoever looks at both never waits for much of one.
     */
    bool twins;
    int n_outs;                 /* dealt out to so many destinations; else 0 */
    struct plan_out *out;       /* [n_outs] */
    uint64_t part;              /* map bytes of every row that go to each */
    enum plan_op op;            /* set by the caller after plan_add(); PLAN_COPY unless it says otherwise */
    /*
     * 0; or bytes of a row: the map is a matrix, and the destination its transpose. Set by
     * the caller; the item begins at a row and has whole ones of at most PLAN_ROW_MAX bytes
     * (wider matrices are several items, each some columns: tmap_slice_columns()), it has
     * no replicas to combine and is not shown to `look`.
     */
    uint64_t transpose_row;
    enum replica_policy policy; /* for TMAP_REPLICAS */
    const char *name;           /* "3.mlp.dense_4h_to_h.weight fp32": for messages; outlives the plan */
    void *user;                 /* the sink's */
    int number;                 /* its index in the plan */
    struct crc_sum crc;         /* of the item's bytes as written (or checked) */
    struct crc_sum share;       /* the sink's: what the item adds to some larger CRC; kept by the journal */
    _Atomic uint64_t n_differ;  /* elements on which replicas disagreed */
    _Atomic uint64_t first_differ;      /* the lowest of them, counted from `from`; UINT64_MAX: none */
    /* To fp16: finite numbers that became infinite; others than 0 that became 0. */
    _Atomic uint64_t n_overflow, n_flushed;
    /*
     * Set by the caller: count what no value should be (stats.h) among the elements that are read, those of each copy,
     * before they are converted.
     */
    enum { PLAN_VALUES_NONE, PLAN_VALUES, PLAN_VALUES_NEGATIVE } values;
    _Atomic uint64_t n_nan, n_inf, n_negative;
    _Atomic uint64_t left;      /* bytes still to be done; the executor's */
    bool done;                  /* resumed: an earlier run finished it; not executed again */
};

struct plan_dst {
    char *path;                 /* created by the caller with its final length before the run */
    uint64_t size;              /* that length, where plan_add_sized() told it; else 0 */
};

struct plan;
struct plan *plan_new(struct files *f);
void plan_free(struct plan *p);
struct files *plan_files(const struct plan *p);
/* A destination file; returns its number. The file must exist when the plan runs. */
int plan_add_dst(struct plan *p, const char *path);
/* The same, with the length that somebody is to give the file before the plan runs (layout/sink.c does). */
int plan_add_sized(struct plan *p, const char *path, uint64_t size);
/* What an item is made of: these bytes of a tensor, and how they are told of. Fields as struct plan_item's. */
struct plan_range {
    const struct tmap *map;
    uint64_t from, len;
    enum replica_policy policy;
    const char *name;
    void *user;
};
/* Returns the item's number. dst < 0: check only. */
int plan_add(struct plan *p, const struct plan_range *r, int dst, uint64_t dst_at);
/*
 * An item of whole rows that are cut into n_outs parts of `part` bytes: part i of every row
 * goes to out[i], one after the other. So bytes that several files share are read once, in
 * large runs. len is a multiple of n_outs * part; `out` is copied.
 */
int plan_add_columns(struct plan *p, const struct plan_range *r, uint64_t part, const struct plan_out *out, int n_outs);
/* Add check-only items for the bytes of touched records that no item reads. No plan_add() after it. */
void plan_close(struct plan *p);
/* The same without those items: a record that the items do not read whole is not checked. */
void plan_close_parts(struct plan *p);

enum { PLAN_ROW_MAX = 8192 };

/* Bytes of an element of the item's map. A conversion knows its own: zeros have no dtype of theirs. */
static inline uint64_t plan_elem_bytes(const struct plan_item *it)
{
    switch (it->op) {
    case PLAN_COPY: return (uint64_t)dtype_size(it->map->dtype);
    case PLAN_F32_TO_BF16: case PLAN_F32_TO_F16: return 4;
    default: return 2;
    }
}

/* Bytes that n map bytes of the item become. */
static inline uint64_t plan_out_bytes(const struct plan_item *it, uint64_t n)
{
    switch (it->op) {
    case PLAN_F32_TO_BF16: case PLAN_F32_TO_F16: return n / 2;
    case PLAN_BF16_TO_F32: case PLAN_F16_TO_F32: return 2 * n;
    default: return n;
    }
}
/* What an element of the map becomes. */
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
/* Bytes of the item that go to each of its destinations. */
static inline uint64_t plan_share(const struct plan_item *it)
{
    return plan_out_bytes(it, it->n_outs ? it->len / (uint64_t)it->n_outs : it->len);
}

int plan_n(const struct plan *p);
struct plan_item *plan_item(struct plan *p, int i);
int plan_n_dst(const struct plan *p);
const struct plan_dst *plan_dst(const struct plan *p, int i);
uint64_t plan_read_bytes(const struct plan *p);     /* items marked done excluded */
uint64_t plan_write_bytes(const struct plan *p);

/*
 * CRC state of the source records: what the run has seen so far of record r (once the
 * plan is closed). A record whose `seen` equals its length is complete and must match its
 * CRC. A byte that several items read counts once: for the item whose read of it begins
 * first in the record, which is the same in every run of the same plan.
 */
struct crc_sum *plan_record_sum(struct plan *p, int record);
/*
 * The part of that which came from item i: what a journal notes when the item is done. To
 * resume, set the item's `done` and `crc`, and crc_sum_merge() each part into
 * plan_record_sum(). (The record's own sum will not do: it also holds chunks of items
 * that were under way.) Owned by the plan; the same list in every run of the same plan.
 */
struct plan_part {
    int record;
    int place;                  /* the record's place among all, by file and offset */
    struct crc_sum sum;
};
struct plan_part *plan_item_parts(struct plan *p, int i, int *n);
/* After everything ran: every touched record complete and right, else -1 and ERR_DATA naming it. */
MUST_CHECK int plan_check_records(struct plan *p, struct err *e);

/*
 * Processes that share a plan: each makes the same one, sets `done` of the others' items, and runs its own. Then
 * the records that they read between them are known in parts, which they tell each other.
 *
 * plan_mark(): the same of the same plan, which is items, and the records they read: their files' names (below `root`:
 * each host may have a copy somewhere of its own), places, sizes and CRCs. What has been seen of the touched records
 * that have a CRC goes into out[], in the order of their places; returns how many they are (out NULL: only that).
 * plan_seen_add() adds another's list, and is -1 with ERR_DATA when that completes a record whose CRC is wrong.
 */
struct plan_seen {
    uint64_t bytes;
    uint64_t acc;               /* of the record's crc_sum */
};
uint32_t plan_mark(const struct plan *p, const char *root);
int plan_seen(const struct plan *p, struct plan_seen *out);
MUST_CHECK int plan_seen_add(struct plan *p, const struct plan_seen *other, struct err *e);

/* ---- for the executor ---- */

/*
 * Of the bytes of a piece of item i from its byte `skip` on: how many have the same
 * answer to "do they count for the record's CRC?", and that answer.
 */
uint64_t plan_counted(const struct plan *p, int i, const struct tmap_piece *pc, uint64_t skip, bool *counts);
/* True when every byte that item i reads counts. */
bool plan_counts_all(const struct plan *p, int i);
/*
 * Item i saw the counted bytes `x` of a record. -1 with ERR_DATA when that completes
 * the record and its CRC is wrong. Any thread.
 */
MUST_CHECK int plan_record_add(struct plan *p, int i, const struct extent *x, uint32_t crc, struct err *e);

#endif
