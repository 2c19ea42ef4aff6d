/*
 * verify.h - is a checkpoint whole, undamaged and plausible?
 *
 * In order: open the tables (every file and rank there, mappings cover each element
 * once), container bytes no reader uses, files that do not belong, then every byte once:
 * record CRCs, a manifest's digests and files, and the values as they pass.
 * ERROR findings are damage, files that are not of one save, and values that no training continues from: NaN,
 * infinities, copies of a parameter that disagree (verdict.h). WARNING findings are things a sound checkpoint should
 * not have but can be loaded with: single weights that are not the rounded master, non-zero padding, stray files.
 * Memory: the executor's pool, or the files themselves when they are under 8 MiB, which
 * are read directly (about a millisecond for a tiny set).
 */
#ifndef SHARDKIT_CHECK_VERIFY_H
#define SHARDKIT_CHECK_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"

struct source;

struct verify_stats {
    const struct layout *layout;        /* one named "pt" for a single file; NULL if nothing could be opened */
    int n_files;
    uint64_t size_bytes;        /* of those files */
};

/* Bytes on disk that were read and hashed. */
struct verify_run {
    char *path;                 /* of a tar's member: the tar */
    uint64_t at, len;
    uint32_t crc;
};

/* Sorted by path and place, without overlaps. It describes the files only if there is no finding of ERROR. */
struct verify_runs {
    struct verify_run *run;
    int n;
};

struct verify_opts {
    bool lenient;               /* skip the container bytes no reader uses */
    bool weights_only;          /* leave the optimizer's files alone, there or not */
    bool allow_drift;           /* copies of replicated parameters that disagree are a warning */
    const char *certificate;    /* what the tensors must be (certificate.h); NULL: no such thing. For folders only */
    const char *model;          /* as of source_opts; may be NULL */
    int threads;                /* >= 1 */
    uint64_t mem_bytes;         /* executor's pool; 0 = 96 MiB */
    enum progress_mode progress;
    bool (*stopped)(void);      /* may be NULL */
    struct verify_stats *stats; /* filled when not NULL */
    struct verify_runs *runs;   /* filled when not NULL: what else reads the files need not read these again */
};

/*
 * Verify `path`: a checkpoint that source_open() opens, its index.h5, or one .pt file. Damage is added to `r`, even if
 * nothing can be opened. Returns -1 with ERR_SYS if the path cannot be read at all, with ERR_USAGE for a parameter's
 * own .h5, or with ERR_STOP.
 */
MUST_CHECK int verify_run(const char *path, const struct verify_opts *o, struct report *r, struct err *e);
void verify_runs_free(struct verify_runs *l);
/* Yes or no: 0, or -1 with the first ERROR finding, or with what kept it from being verified, in *e. */
MUST_CHECK int verify_sound(const char *path, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e);
/*
 * Compare an open folder's files with its manifest as far as no record's CRC covers them, which everything that reads
 * the record compares: headers, pickles, configuration. Only these bytes are read. Findings "file_crc", "file_size",
 * "file_missing", "file_unlisted": ERROR, or WARNING of a source that was opened with accept_mismatch. 0 without a
 * manifest; -1 when reading fails.
 */
MUST_CHECK int verify_listed(struct source *s, struct report *r, struct err *e);

#endif
