/*
 * pack_runs.h - find what is known about a checkpoint's bytes before they are packed
 */
#ifndef SHARDKIT_CKPT_BACKUP_PACK_RUNS_H
#define SHARDKIT_CKPT_BACKUP_PACK_RUNS_H

#include "libcommon/format/pack/pack.h"
#include "tools/ckpt-backup/place/content.h"

/* A record of a .pt file, with the CRC that the .pt file stores for it. */
struct pack_record {
    int file;                   /* index in the content */
    uint64_t at, len;
    uint32_t crc;
    char *name;
};

struct pack_records {
    struct pack_record *record;
    int n, cap;
};

/*
 * Fill in the files and runs of the index. A run has the width of its tensor's type. Weights are predicted from the
 * masters that they were rounded from, and copies of tied and replicated parameters from the first copy. Every record
 * begins and ends at a run boundary. Bytes that the layout does not describe have no width, so this function cannot
 * fail.
 */
void pack_runs_make(struct pack_index *x, struct pack_records *records, const struct content *c, int threads);
void pack_records_free(struct pack_records *l);

#endif
