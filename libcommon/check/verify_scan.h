/*
 * verify_scan.h - read every byte of a checkpoint's tensors and records once
 *
 * The part of verify that reads data: it passes logical tensors to a callback and hashes them, and compares the CRC of
 * every record, including records that belong to no tensor.
 */
#ifndef SHARDKIT_CHECK_VERIFY_SCAN_H
#define SHARDKIT_CHECK_VERIFY_SCAN_H

#include "libcommon/check/verify.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/format/zip.h"

struct scan_item {
    const struct tmap *map;
    const char *name;           /* "3.mlp.dense_4h_to_h.weight fp32" */
    bool twins;                 /* the next item is the twin of this one (plan.h) */
    /* The following members are set by scan_run(). */
    bool seen;                  /* false if the bytes could not be read; a finding has the reason */
    uint32_t crc;               /* CRC of the logical bytes; for replicas, of the first copy */
    uint64_t n_differ;          /* number of elements on which the replicas disagree */
};

/*
 * Get the runs of bytes in the layout's files that scan_run() has hashed. The runs are sorted and do not overlap. If
 * the CRC of a record is wrong, there is a finding about it, and the run has the CRC of the actual bytes. The caller
 * frees *out.
 */
int scan_runs(const struct source *s, const struct scan_item *item, int n, struct manifest_run **out);

/*
 * Receives bytes of an item. It may be called from any thread and in any order. Each byte is passed once. `from` is the
 * offset of the bytes from the start of the tensor.
 */
typedef void scan_look(void *ctx, int item, uint64_t from, const void *bytes, uint64_t len);

/*
 * Returns true if an error about the file `name` has been reported. This is a finding that names the file, or whose
 * text begins with the name.
 */
bool scan_has_error(const struct report *r, const char *name);
/*
 * Check the zips that are stored inside other files, a batch at a time. Checks the structure of each zip (not if
 * `lenient` is set), and the CRC of each entry that is not a record of s->files. scan_run() checks the CRCs of the
 * records. Adds findings "unreadable", "container", "crc", "no_crc" and "read".
 */
void scan_items(struct source *s, const struct verify_opts *o, struct report *r);

/* A file of the layout that is a zip. */
struct scan_zip {
    int file;
    struct zip *zip;            /* NULL if the zip's directory is damaged; a finding has the reason */
};

/* The items to read, and the callback that receives their bytes. */
struct scan_list {
    const struct scan_zip *zip;
    int n_zips;
    struct scan_item *item;
    int n;
    scan_look *look;
    void *ctx;
};

/*
 * Read all items and records, and set the results of the items. Truncated files and wrong CRCs become findings ("read",
 * "crc"). Returns -1 only with ERR_STOP. Adds records to s->files.
 */
MUST_CHECK int scan_run(struct source *s, const struct scan_list *scan, const struct verify_opts *o, struct report *r,
                        struct err *e);

#endif
