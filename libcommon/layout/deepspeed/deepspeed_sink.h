/*
 * deepspeed_sink.h - declarations shared by the files of the conversion's sink; internal
 *
 * Every storage of a layer file or a shard is filled by several plan items, each a range of one parameter
 * (deepspeed_sink_plan.c). Headers need the CRCs of whole storages, so the process that publishes writes them at the
 * end (deepspeed_sink.c).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SINK_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SINK_H

#include "libcommon/layout/deepspeed/deepspeed_file.h"
#include "libcommon/write/sink.h"

/*
 * One item: a run of one storage, or of that storage in the files of several tensor ranks, and its position in the
 * merged tensor.
 */
struct dss_item {
    struct sink_item pub;
    int file, storage;                  /* if split by columns: of the first rank */
    uint64_t at;                        /* byte offset in the storage */
    int param;                          /* index in the target */
    bool counts;                        /* contributes to the tensor's digest: not a copy of the data of another item */
    bool by_columns;                    /* holds some columns of the merged tensor: its rows are hashed as they pass */
    uint64_t row_len, column_at, column_len;    /* by_columns: of the merged tensor, bytes as written */
    uint64_t logical_at;                /* otherwise: byte offset in the merged tensor */
    struct crc_sum share;               /* by_columns: sum of the data so far */
};

struct dss {
    const struct ds_target *t;
    struct arena *arena;
    int n_files;
    struct ds_file *file;
    int zeros;                          /* record of zeros, -1 if not made yet */
    struct tmap *zero_map;
    struct tmap **columns;              /* [param][state][group of columns]: made on first use */
};

/* Add the items of one file to the plan. All files must be laid out. */
void dss_plan_file(struct sink *k, struct ds_file *f, struct plan *plan);
/* sink_ops.look: add what the rows of a row-parallel slice contribute to the merged tensor's CRC. */
void dss_on_bytes(struct sink *k, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len);

#endif
