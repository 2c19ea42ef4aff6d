/*
 * pack_runs.h - what is known of a checkpoint's bytes before they are packed
 */
#ifndef SHARDKIT_CKPT_BACKUP_PACK_RUNS_H
#define SHARDKIT_CKPT_BACKUP_PACK_RUNS_H

#include "libcommon/format/pack/pack.h"
#include "tools/ckpt-backup/place/content.h"

/* A record of a .pt with the CRC that its container has. */
struct pack_record {
    int file;                   /* of the content */
    uint64_t at, len;
    uint32_t crc;
    char *name;
};

struct pack_records {
    struct pack_record *record;
    int n, cap;
};

/*
 * Fill in the index's files and runs: numbers by the type of their tensors; weights told from the masters they
 * were rounded from, and copies of tied and replicated parameters from the first. Records begin and end with runs.
 * What the layout does not tell is bytes without a width, so this never fails.
 */
void pack_runs_make(struct pack_index *x, struct pack_records *records, const struct content *c, int threads);
void pack_records_free(struct pack_records *l);

#endif
