/*
 * verify_scan.h - read every byte of a checkpoint's tensors and records once
 *
 * The part of verify that moves bytes: logical tensors are shown to a callback and
 * hashed, every record's CRC is compared, records that belong to no tensor included.
 */
#ifndef SHARDKIT_CHECK_VERIFY_SCAN_H
#define SHARDKIT_CHECK_VERIFY_SCAN_H

#include "libcommon/check/verify.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/zip.h"

struct scan_item {
    const struct tmap *map;
    const char *name;           /* "3.mlp.dense_4h_to_h.weight fp32" */
    /* Filled by scan_run(): */
    bool seen;                  /* false if it could not be read; a finding has the reason */
    uint32_t crc;               /* of the logical bytes; of replicas the first copy's */
    uint64_t n_differ;          /* elements on which replicas disagree */
};

/*
 * Get the runs of the layout's files whose bytes scan_run() hashed, sorted and without overlaps. A record with a wrong
 * CRC has a finding, and its run has the CRC of the bytes. The caller frees *out.
 */
int scan_runs(const struct source *s, const struct scan_item *item, int n, struct manifest_run **out);

/* Any thread, any order, each byte of each item once; `from` counts from the tensor's start. */
typedef void scan_look(void *ctx, int item, uint64_t from, const void *bytes, uint64_t len);

/* Has an error about this file been reported? Its finding names it, or its sentence begins with it. */
bool scan_has_error(const struct report *r, const char *name);
/*
 * The zips inside files, a batch at a time: their containers (not with `lenient`), and the CRCs of all entries that are
 * no record of s->files; those are scan_run()'s. Findings "unreadable", "container", "crc", "no_crc", "read".
 */
void scan_items(struct source *s, const struct verify_opts *o, struct report *r);

/* A zip: a file of the layout. */
struct scan_zip {
    int file;
    struct zip *zip;            /* NULL if it is damaged, which a finding reports */
};

/* The items to read, and the functions that receive their bytes. */
struct scan_list {
    const struct scan_zip *zip;
    int n_zips;
    struct scan_item *item;
    int n;
    scan_look *look;
    void *ctx;
};

/*
 * Files cut short and wrong
 * CRCs are findings ("read", "crc"). -1 only with ERR_STOP. Adds records to s->files.
 */
MUST_CHECK int scan_run(struct source *s, const struct scan_list *scan, const struct verify_opts *o, struct report *r,
                        struct err *e);

#endif
