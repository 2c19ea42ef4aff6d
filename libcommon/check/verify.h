/*
 * verify.h - check that a checkpoint is complete, undamaged and plausible
 *
 * The phases are, in order: open the tables (all files and ranks exist, the mappings cover each element once); check
 * container bytes that no reader uses; find files that do not belong; then read every byte once and check record CRCs,
 * a manifest's digests and files, and the values.
 * ERROR findings are damage, files of different saves, and values from which no training can continue: NaN, infinities,
 * copies of a parameter that disagree (verdict.h). WARNING findings are things that a sound checkpoint should not have
 * but that do not prevent loading: single weights that are not the rounded master, non-zero padding, stray files.
 * Memory: the executor's pool. Sets under 8 MiB are read into memory directly (about a millisecond for a tiny set).
 */
#ifndef SHARDKIT_CHECK_VERIFY_H
#define SHARDKIT_CHECK_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"

struct source;

struct verify_stats {
    const struct layout *layout;        /* "pt" for a single file; NULL if nothing could be opened */
    int n_files;
    uint64_t size_bytes;        /* total size of these files */
};

/* A range of bytes on disk that was read and hashed. */
struct verify_run {
    char *path;                 /* for a member of a tar: path of the tar */
    uint64_t at, len;
    uint32_t crc;
};

/* Ranges sorted by path and offset, without overlaps. They are valid only if there is no ERROR finding. */
struct verify_runs {
    struct verify_run *run;
    int n;
};

struct verify_opts {
    bool lenient;               /* do not check container bytes that no reader uses */
    bool weights_only;          /* ignore the optimizer's files, whether they exist or not */
    bool allow_drift;           /* report copies of replicated parameters that disagree as a warning */
    const char *certificate;    /* path of the certificate that lists the expected digests (certificate.h); NULL:
                                 * none. For folders only */
    const char *model;          /* source_opts.model; may be NULL */
    int threads;                /* >= 1 */
    uint64_t mem_bytes;         /* executor's pool; 0 = 96 MiB */
    enum progress_mode progress;
    bool (*stopped)(void);      /* returns true to stop; may be NULL */
    struct verify_stats *stats; /* receives the statistics; may be NULL */
    struct verify_runs *runs;   /* receives the ranges that were read, so that another pass need not read them again;
                                 * may be NULL */
};

/*
 * Verify `path`: a checkpoint that source_open() opens, its index.h5, or one .pt file. Damage is added to `r`, even if
 * nothing can be opened. Returns -1 with ERR_SYS if the path cannot be read at all, with ERR_USAGE for a parameter's
 * own .h5, or with ERR_STOP.
 */
MUST_CHECK int verify_run(const char *path, const struct verify_opts *o, struct report *r, struct err *e);
void verify_runs_free(struct verify_runs *l);
/*
 * Verify `path` without a report. Returns 0 if there is no ERROR finding; else -1 with the first one, or with the
 * reason why the path could not be verified, in *e.
 */
MUST_CHECK int verify_sound(const char *path, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e);
/*
 * Compare an open folder's files with its manifest as far as no record's CRC covers them: headers, pickles,
 * configuration. (Every reader of a record checks its CRC.) Only these bytes are read. Adds "file_crc", "file_size",
 * "file_missing" and "file_unlisted" as ERROR, or as WARNING if the source was opened with accept_mismatch. Returns 0
 * if there is no manifest, and -1 if reading fails.
 */
MUST_CHECK int verify_listed(struct source *s, struct report *r, struct err *e);

#endif
