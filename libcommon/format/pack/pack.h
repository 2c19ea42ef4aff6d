/*
 * pack.h - lossless compression of the files of a checkpoint into one file
 *
 * A packed file stores the bytes of several files as frames. A frame is at most PACK_FRAME bytes of one run. A run is a
 * part of a file whose numbers all have the same width. It may be predictable from other bytes of the files: weights,
 * for example, are predictable from the fp32 masters from which they were rounded. A predicted frame is stored as its
 * difference from the prediction, which is zero except where the prediction is wrong. Frames are then split into byte
 * planes and compressed with zstd (planes.h). The caller defines the runs. They affect only the size: the original
 * bytes are restored for any choice of runs. Each byte of a packed file is covered by one of the CRCs in it. See
 * docs/formats.md, section 10.
 *
 * Memory: some MiB per thread, and 16 bytes per frame. Threads: the functions below use several threads themselves;
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

#define PACK_FRAME (1u << 20)           /* size in bytes; a multiple of every width */

struct pack_file {
    char *name;                         /* path of the file, relative to the folder */
    uint64_t size_bytes;
    uint32_t crc;                       /* CRC of the whole file; set by pack_write() */
    int first_run;                      /* index of the file's first run; set by the library */
};

/* A range of bytes of a file, from which a run is predicted. */
struct pack_ref {
    int file;
    uint64_t at, len;
};

/* The runs of a file must follow each other without gaps. Runs are sorted by file. */
struct pack_run {
    int file;
    uint64_t at, len;
    int width;                          /* size of a number in bytes: 1, 2 or 4; must divide len */
    enum pack_guess guess;              /* a guess that rounds requires width 2 */
    int first_ref, n_refs;              /* the ranges from which the run is predicted; they have guess_ref_bytes() bytes
                                         * in total, and are parts of runs without a guess */
    uint64_t first_frame;               /* index of the run's first frame; set by the library */
};

struct pack_frame {
    uint32_t len;                       /* size of the frame in the packed file */
    uint32_t crc_raw, crc_packed;
    /* the run has a guess, and this frame is stored as the difference from the guess */
    bool guessed;
};

struct pack_index {
    struct pack_file *file;
    struct pack_run *run;
    struct pack_ref *ref;
    struct pack_frame *frame;
    int n_files, n_runs, n_refs;
    int cap_runs, cap_refs;             /* capacities of the arrays, for the code that fills them */
    uint64_t n_frames;
};

struct pack_opts {
    int threads;
    struct progress *progress;          /* is advanced by the number of unpacked bytes; may be NULL */
    bool (*stopped)(void);              /* returns true to stop; may be NULL */
};

/* ---- writing ---- */

/*
 * Pack the files at FOLDER/name into `path`, which is created or replaced, and synced. The caller fills in files and
 * runs. This function fills in frames and CRCs. A run whose guess is not valid (see pack_index.c) is packed without it.
 * Returns -1 with ERR_SYS, with ERR_STOP or, if a file is shorter than stated, with ERR_DATA. After a failure the
 * contents of `path` are invalid.
 */
MUST_CHECK int pack_write(const char *path, const char *folder, struct pack_index *x, const struct pack_opts *o,
                          struct err *e);
void pack_index_free(struct pack_index *x);

/* ---- reading ---- */

struct pack;
/*
 * Open a packed file. Returns NULL with ERR_SYS if it cannot be read. Returns NULL with ERR_DATA and the byte offset if
 * it is not a packed file, is cut short, or has invalid tables.
 */
MUST_CHECK struct pack *pack_open(const char *path, struct err *e);
void pack_close(struct pack *p);                        /* NULL is allowed */
const struct pack_index *pack_index(const struct pack *p);      /* all members that pack_write() sets are set */
uint64_t pack_size(const struct pack *p);               /* size of the packed file in bytes */
/* Returns the CRC-32 of the whole packed file. It is computed from the CRCs that the file stores. */
uint32_t pack_crc(const struct pack *p);
/*
 * Returns the CRC-32 of bytes [at, at + len) of a file, computed from the CRCs of the frames. The range must begin
 * and end at boundaries of runs.
 */
uint32_t pack_range_crc(const struct pack_index *x, int file, uint64_t at, uint64_t len);
/*
 * Unpack into FOLDER, in which the files must exist with their final lengths. If FOLDER is NULL, only check that
 * everything can be unpacked. Every CRC is compared. If one is wrong, *e is ERR_DATA; it names the byte in the packed
 * file, and the file and the bytes that are lost. If r is not NULL, each such error becomes a finding "crc" instead,
 * and the remaining frames are still processed.
 */
MUST_CHECK int pack_unpack(struct pack *p, const char *folder, const struct pack_opts *o, struct report *r,
                           struct err *e);

#endif
