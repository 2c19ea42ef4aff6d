/*
 * pack.h - files of a checkpoint in one file, in fewer bytes, to the bit
 *
 * A packed file holds the bytes of several files as frames, each of at most PACK_FRAME bytes of one run: a piece of
 * a file whose numbers have one width, and which may be told from other bytes of the files (weights from the fp32
 * masters that they were rounded from). What is told so is kept as its difference, which is nothing but the
 * exceptions; and then, or else, frames are byte planes through zstd (planes.h). What is in a run is the caller's
 * knowledge and only ever a matter of size: any runs come back as the bytes that they were. Each byte of a packed file
 * is under one of its CRCs. docs/formats.md, section 10.
 *
 * Memory: some MiB a thread, and 16 bytes a frame.
 * Threads: calls below work on so many themselves; a struct pack may be used by one call at a time.
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

#define PACK_FRAME (1u << 20)           /* bytes; a multiple of every width */

struct pack_file {
    char *name;                         /* a path inside a folder */
    uint64_t size_bytes;
    uint32_t crc;                       /* of all its bytes; pack_write() fills it in */
    int first_run;                      /* filled in */
};

/* Bytes of a file that a run is told from. */
struct pack_ref {
    int file;
    uint64_t at, len;
};

/* Runs of a file follow each other without a gap, files too. */
struct pack_run {
    int file;
    uint64_t at, len;
    int width;                          /* 1, 2 or 4; divides len */
    enum pack_guess guess;              /* a rounded one has width 2 */
    int first_ref, n_refs;              /* guess_ref_bytes() in all, of runs without a guess */
    uint64_t first_frame;               /* filled in */
};

struct pack_frame {
    uint32_t len;                       /* in the packed file */
    uint32_t crc_raw, crc_packed;
    bool guessed;                       /* of a run with a guess: it held */
};

struct pack_index {
    struct pack_file *file;
    struct pack_run *run;
    struct pack_ref *ref;
    struct pack_frame *frame;
    int n_files, n_runs, n_refs;
    int cap_runs, cap_refs;             /* for who fills it */
    uint64_t n_frames;
};

struct pack_opts {
    int threads;
    struct progress *progress;          /* raw bytes are added; may be NULL */
    bool (*stopped)(void);              /* may be NULL */
};

/* ---- writing ---- */

/*
 * Pack the files at FOLDER/name into `path`, which is made anew and synced. Files and runs come filled in, frames and
 * CRCs are made here. A guess that a run may not have (pack_index.c says which) is dropped. ERR_SYS; ERR_DATA when a
 * file is shorter; ERR_STOP. On -1 what lies at `path` is worthless.
 */
MUST_CHECK int pack_write(const char *path, const char *folder, struct pack_index *x, const struct pack_opts *o,
                          struct err *e);
void pack_index_free(struct pack_index *x);

/* ---- reading ---- */

struct pack;
/* NULL: ERR_SYS; ERR_DATA with the byte where it is no packed file, cut short, or its tables do not hold. */
MUST_CHECK struct pack *pack_open(const char *path, struct err *e);
void pack_close(struct pack *p);                        /* NULL is fine */
const struct pack_index *pack_index(const struct pack *p);      /* with all that pack_write() filled in */
uint64_t pack_size(const struct pack *p);               /* bytes of the packed file */
/* CRC-32 of all its bytes, as its own CRCs make it. */
uint32_t pack_crc(const struct pack *p);
/* CRC-32 of bytes [at, at + len) of a file, which begin and end with runs, as the frames' CRCs make it. */
uint32_t pack_range_crc(const struct pack_index *x, int file, uint64_t at, uint64_t len);
/*
 * Unpack into FOLDER, where the files are with their lengths; or, folder NULL, only see that all comes out right.
 * Every CRC is compared. ERR_DATA names the byte of the packed file, and the file and bytes of it that are lost; with
 * a report these are findings, code "crc", and the rest is done.
 */
MUST_CHECK int pack_unpack(struct pack *p, const char *folder, const struct pack_opts *o, struct report *r,
                           struct err *e);

#endif
