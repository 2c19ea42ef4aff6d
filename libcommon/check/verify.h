/*
 * verify.h - check that a checkpoint is complete, undamaged and plausible
 *
 * The phases are, in order: open the tables (check that all files and ranks exist and that the mappings cover each
 * element once); check container bytes that no reader uses; find files that do not belong to the checkpoint; then read
 * every byte once and check the CRCs of records, the digests and files that a manifest lists, and the values. ERROR
 * findings are damage, files of different saves, and values from which no training can continue: NaN, infinities,
 * copies of a parameter that disagree (verdict.h). WARNING findings are things that a sound checkpoint should not have
 * but that do not prevent loading: single weights that are not the rounded master, non-zero padding, stray files.
 * Memory is limited to the executor's pool. A checkpoint of less than 8 MiB is read into memory directly, which takes
 * about a millisecond if it is tiny.
 */
#ifndef SHARDKIT_CHECK_VERIFY_H
#define SHARDKIT_CHECK_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"

struct source;

struct verify_stats {
    const char *layout;         /* name of the layout; "pt" for a single file; NULL if nothing could be opened */
    bool opens_with_holes;      /* ckpt-edit salvage can open the checkpoint, even if files are missing */
    int n_files;
    uint64_t size_bytes;        /* total size of these files */
};

/* A range of bytes on disk that was read and hashed. */
struct verify_run {
    char *path;                 /* path of the file; for a member of a tar, path of the tar */
    uint64_t at, len;
    uint32_t crc;
};

/*
 * The ranges of bytes that were read, sorted by path and offset, without overlaps. They are valid only if there is no
 * ERROR finding.
 */
struct verify_runs {
    struct verify_run *run;
    int n;
};

struct verify_opts {
    bool lenient;               /* do not check container bytes that no reader uses */
    bool tables_only;           /* folders only: stop before tensor data are read */
    bool weights_only;          /* ignore the optimizer's files, even if they exist */
    /* report replicated parameters whose copies disagree as a warning instead of an error */
    bool allow_drift;
    const char *certificate;    /* path of the certificate that lists the expected digests (certificate.h); NULL: none.
                                 * Allowed for folders only */
    const char *model;          /* source_opts.model; may be NULL */
    int threads;                /* >= 1 */
    uint64_t mem_bytes;         /* executor's pool; 0 = 96 MiB */
    enum progress_mode progress;
    bool (*stopped)(void);      /* returns true to stop; may be NULL */
    struct verify_stats *stats; /* receives the statistics; may be NULL */
    struct verify_runs *runs;   /* set to the ranges that were read, so that a later pass need not read them again;
                                 * may be NULL */
};

/*
 * Verify `path`, which may be a checkpoint that source_open() opens, the checkpoint's index.h5, or one .pt file. Damage
 * is added to `r`, even if nothing can be opened. Returns -1 with ERR_SYS if the path cannot be read at all, with
 * ERR_USAGE if it is the .h5 file of a single parameter, or with ERR_STOP.
 */
MUST_CHECK int verify_run(const char *path, const struct verify_opts *o, struct report *r, struct err *e);
void verify_runs_free(struct verify_runs *l);
/*
 * Verify the folder `path` without reading its tensor data. Only the checks of the first phases are made: whether all
 * files, parameters and states exist that other files name, and whether they have the sizes that the configuration
 * states. Adds findings to `r`. `model` is source_opts.model. Returns -1 as verify_run() does.
 */
MUST_CHECK int verify_tables(const char *path, const char *model, int threads, struct report *r, struct err *e);
/*
 * Verify `path` without a report. Returns 0 if there is no ERROR finding. Otherwise returns -1, and *e is the first
 * ERROR finding or the reason why `path` could not be verified.
 */
MUST_CHECK int verify_sound(const char *path, int threads, uint64_t mem_bytes, bool (*stopped)(void), struct err *e);
/*
 * Compare the bytes that no record's CRC covers with the manifest of an open folder. These bytes are headers, pickles
 * and configuration. Only they are read, because each reader of a record checks its bytes. Adds ERROR findings
 * "file_crc", "file_size", "file_missing" and "file_unlisted"; they are WARNINGs if the source was opened with
 * accept_mismatch. Returns 0 if there is no manifest, and -1 if reading fails.
 */
MUST_CHECK int verify_listed(struct source *s, struct report *r, struct err *e);

#endif
