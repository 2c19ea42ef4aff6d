/*
 * pack.h - lossless compression of the files of a checkpoint into one file
 *
 * A packed file stores the bytes of several files as frames. A frame is at most PACK_FRAME bytes of one run. A run
 * is a part of a file whose numbers have one width, and which may be predictable from other bytes of the files
 * (weights are predictable from the fp32 masters that they were rounded from). Predicted frames are stored as the
 * difference from the prediction, which consists only of the exceptions. Frames are then split into byte planes and
 * compressed with zstd (planes.h). The caller defines the runs. They only affect the size: any choice of runs
 * restores the original bytes. One of the file's CRCs covers each byte of a packed file. See docs/formats.md,
 * section 10.
 *
 * Memory: some MiB per thread, and 16 bytes per frame. Threads: the calls below use several threads themselves;
 * only one call at a time may use a struct pack.
 */
#ifndef SHARDKIT_FORMAT_PACK_PACK_H
#define SHARDKIT_FORMAT_PACK_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"
#include "libcommon/base/report.h"
#include "libcommon/format/pack/guess.h"

#define PACK_FRAME (1u << 20)           /* in bytes; a multiple of every width */

struct pack_file {
    char *name;                         /* relative path within a folder */
    uint64_t size_bytes;
    uint32_t crc;                       /* of the whole file; set by pack_write() */
    int first_run;                      /* set by the library */
};

/* A range of bytes of a file, from which a run is predicted. */
struct pack_ref {
    int file;
    uint64_t at, len;
};

/* Runs of a file must be consecutive without gaps; files are in order, too. */
struct pack_run {
    int file;
    uint64_t at, len;
    int width;                          /* 1, 2 or 4; must divide len */
    enum pack_guess guess;              /* guesses that round require width 2 */
    int first_ref, n_refs;              /* guess_ref_bytes() in total, in runs without a guess */
    uint64_t first_frame;               /* set by the library */
};

struct pack_frame {
    uint32_t len;                       /* size in the packed file */
    uint32_t crc_raw, crc_packed;
    bool guessed;                       /* the run has a guess and it was used for this frame */
};

struct pack_index {
    struct pack_file *file;
    struct pack_run *run;
    struct pack_ref *ref;
    struct pack_frame *frame;
    int n_files, n_runs, n_refs;
    int cap_runs, cap_refs;             /* for the code that fills the arrays */
    uint64_t n_frames;
};

struct pack_opts {
    int threads;
    struct progress *progress;          /* advanced by the unpacked bytes; may be NULL */
    bool (*stopped)(void);              /* may be NULL */
};

/* ---- writing ---- */

/*
 * Pack the files at FOLDER/name into `path`, which is created or replaced, and synced. The caller fills in files
 * and runs; this function fills in frames and CRCs. A guess that is not valid for a run (see pack_index.c) is
 * dropped. Returns -1 with ERR_SYS, ERR_DATA if a file is shorter, or ERR_STOP. After a failure the contents of
 * `path` are invalid.
 */
MUST_CHECK int pack_write(const char *path, const char *folder, struct pack_index *x, const struct pack_opts *o,
                          struct err *e);
void pack_index_free(struct pack_index *x);

/* ---- reading ---- */

struct pack;
/*
 * Open a packed file. Returns NULL with ERR_SYS, or with ERR_DATA and the byte offset if it is not a packed file,
 * is cut short, or has invalid tables.
 */
MUST_CHECK struct pack *pack_open(const char *path, struct err *e);
void pack_close(struct pack *p);                        /* NULL is allowed */
const struct pack_index *pack_index(const struct pack *p);      /* with all members that pack_write() sets */
uint64_t pack_size(const struct pack *p);               /* size of the packed file in bytes */
/* Returns the CRC-32 of the whole packed file, computed from the CRCs stored in it. */
uint32_t pack_crc(const struct pack *p);
/*
 * Returns the CRC-32 of bytes [at, at + len) of a file, computed from the CRCs of the frames. The range must begin
 * and end at boundaries of runs.
 */
uint32_t pack_range_crc(const struct pack_index *x, int file, uint64_t at, uint64_t len);
/*
 * Unpack into FOLDER, where the files must exist with their final lengths. With folder NULL, only check that
 * everything can be unpacked. Every CRC is compared. ERR_DATA names the byte in the packed file, and the file and
 * bytes that are lost. With a report these errors become findings with code "crc", and the other frames are still
 * processed.
 */
MUST_CHECK int pack_unpack(struct pack *p, const char *folder, const struct pack_opts *o, struct report *r,
                           struct err *e);

#endif
