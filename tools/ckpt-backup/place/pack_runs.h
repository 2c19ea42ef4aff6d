/* pack_runs.h - find the properties of a checkpoint's bytes that help to pack them */
#ifndef SHARDKIT_CKPT_BACKUP_PACK_RUNS_H
#define SHARDKIT_CKPT_BACKUP_PACK_RUNS_H

#include "libcommon/format/pack/pack.h"
#include "tools/ckpt-backup/place/content.h"

/* A record of a .pt file, with the CRC that the .pt file stores for it. */
struct pack_record {
    int file;                   /* index of the file in the content */
    uint64_t at, len;
    uint32_t crc;
    char *name;
};

struct pack_records {
    struct pack_record *record;
    int n, cap;
};

/*
 * Fill in the files and runs of the index. A run has the width of the tensor's type. Weights are predicted from the
 * fp32 masters from which they were rounded; copies of tied and replicated parameters are predicted from the first
 * copy. Runs are split at the beginning and end of each record of a .pt. Bytes that the layout does not describe become
 * runs of single bytes, so this function cannot fail.
 */
void pack_runs_make(struct pack_index *x, struct pack_records *records, const struct content *c, int threads);
void pack_records_free(struct pack_records *l);

#endif
