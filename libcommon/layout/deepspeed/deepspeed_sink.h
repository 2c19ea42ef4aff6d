/*
 * deepspeed_sink.h - what the files of the sink of a conversion share; for the room only
 *
 * Every storage of a layer file or a shard is filled by several plan items, each a range
 * of one parameter (deepspeed_sink_plan.c). Headers need the CRCs of whole storages, so
 * they are written at the end, by the process that publishes (deepspeed_sink.c).
 */
#ifndef SHARDKIT_LAYOUT_DEEPSPEED_SINK_H
#define SHARDKIT_LAYOUT_DEEPSPEED_SINK_H

#include "libcommon/layout/deepspeed/deepspeed_file.h"

/*
 * One item: a run of one storage, or of that storage in the files of several tensor ranks,
 * and where it stands in the merged tensor.
 */
struct dss_item {
    struct sink_item pub;
    int file, storage;                  /* dealt out by columns: of the first rank's */
    uint64_t at;                        /* bytes in the storage */
    int param;                          /* of the target */
    bool counts;                        /* for the tensor's digest: not a copy of what another item holds */
    bool by_columns;                    /* some columns of the merged tensor: rows are hashed as they pass */
    uint64_t row_len, column_at, column_len;    /* by_columns: of the merged tensor, bytes as written */
    uint64_t logical_at;                /* else: its first byte in the merged tensor */
    struct crc_sum share;               /* by_columns: what has passed */
};

struct dss {
    const struct ds_target *t;
    struct arena *arena;
    int n_files;
    struct ds_file *file;
    int zeros;                          /* record of zeros, -1 not made yet */
    struct tmap *zero_map;
    struct tmap **columns;              /* [param][state][group of columns]: made when first needed */
};

/* Add the items of one file; all files are laid out. */
void dss_plan_file(struct sink *k, struct ds_file *f, struct plan *plan);
/* sink_ops.look: sum up what rows of a row-parallel slice add to the merged tensor's CRC. */
void dss_look(struct sink *k, const struct plan_item *it, uint64_t from, const void *bytes, uint64_t len);

#endif
