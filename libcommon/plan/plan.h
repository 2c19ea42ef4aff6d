/*
 * plan.h - what has to be moved where, known to the byte before it starts
 *
 * A plan is a list of items. An item takes a range of one logical tensor (a tmap) and
 * either writes it to consecutive bytes of a destination file or only checks it. After
 * the last item plan_close() adds check-only items for every byte of a touched record
 * that nobody wanted (padding, the tied copy), so that each record's CRC can close.
 * Building is for one thread; executor.h runs it.
 */
#ifndef SHARDKIT_PLAN_PLAN_H
#define SHARDKIT_PLAN_PLAN_H

#include <stdbool.h>

#include "libcommon/base/crc.h"
#include "libcommon/plan/tmap.h"

/* What happens to an item's bytes on their way; a conversion makes four bytes two. */
enum plan_op { PLAN_COPY, PLAN_F32_TO_BF16, PLAN_F32_TO_F16 };

struct plan_item {
    const struct tmap *map;
    uint64_t from, len;         /* logical bytes [from, from + len) */
    int dst;                    /* destination file number, or -1: check only */
    uint64_t dst_at;
    enum plan_op op;            /* set by the caller after plan_add(); PLAN_COPY unless it says otherwise */
    enum replica_policy policy; /* for TMAP_REPLICAS */
    const char *name;           /* "3.mlp.dense_4h_to_h.weight fp32": for messages; outlives the plan */
    void *user;                 /* the sink's */
    int number;                 /* its index in the plan */
    struct crc_sum crc;         /* of the item's bytes as written (or checked) */
    struct crc_sum share;       /* the sink's: what the item adds to some larger CRC; kept by the journal */
    _Atomic uint64_t n_differ;  /* elements on which replicas disagreed */
    _Atomic uint64_t first_differ;      /* the lowest of them, counted from `from`; UINT64_MAX: none */
    _Atomic uint64_t left;      /* bytes still to be done; the executor's */
    bool done;                  /* resumed: an earlier run finished it; not executed again */
};

struct plan_dst {
    char *path;                 /* created by the caller with its final length before the run */
};

struct plan;
struct plan *plan_new(struct files *f);
void plan_free(struct plan *p);
struct files *plan_files(const struct plan *p);
/* A destination file; returns its number. The file must exist when the plan runs. */
int plan_add_dst(struct plan *p, const char *path);
/* Returns the item's number. dst < 0: check only. */
int plan_add(struct plan *p, const struct tmap *map, uint64_t from, uint64_t len,
             int dst, uint64_t dst_at, enum replica_policy policy, const char *name, void *user);
/* Add check-only items for the bytes of touched records that no item reads. No plan_add() after it. */
void plan_close(struct plan *p);

/* Bytes that n map bytes of the item become. */
static inline uint64_t plan_out_bytes(const struct plan_item *it, uint64_t n) { return it->op == PLAN_COPY ? n : n / 2; }

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

/* ---- for the executor ---- */

/*
 * Of the bytes of a piece of item i from its byte `skip` on: how many have the same
 * answer to "do they count for the record's CRC?", and that answer.
 */
uint64_t plan_counted(const struct plan *p, int i, const struct tmap_piece *pc, uint64_t skip, bool *counts);
/* True when every byte that item i reads counts. */
bool plan_counts_all(const struct plan *p, int i);
/*
 * Item i saw counted bytes [at, at+len) of a record. -1 with ERR_DATA when that completes
 * the record and its CRC is wrong. Any thread.
 */
MUST_CHECK int plan_record_add(struct plan *p, int i, int record, uint64_t at, uint64_t len,
                               uint32_t crc, struct err *e);

#endif
