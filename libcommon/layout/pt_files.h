/*
 * pt_files.h - open the .pt files of a checkpoint with many threads, with the same result as with one
 *
 * Opening a file mostly waits for the disk, so many files are opened at the same time. Each has a file table and a
 * report of its own. The records and findings of each file are then appended to those of the source, in the order of
 * the list. A record therefore has the same number in every run, with any number of threads. A plan that is resumed,
 * or divided among processes, depends on that.
 */
#ifndef SHARDKIT_LAYOUT_PT_FILES_H
#define SHARDKIT_LAYOUT_PT_FILES_H

#include "libcommon/format/pt.h"

/* The arguments of the function that reads one file: the file, its handle, and a report for this file only. */
struct pt_files_job {
    void *ctx;
    int file;                   /* index in source->file */
    struct files *files;        /* the file table in which the records of pt are numbered */
    struct pt *pt;
    const char *path;           /* path of the file, for findings */
    struct report *r;
};
struct pt_files {
    struct source *s;
    struct report *r;
    int threads;                /* number of threads; 0: 16 */
    void *ctx;
    /*
     * Called for each file that could be opened, after its classes were checked. Several threads may call this at the
     * same time, for different files.
     */
    void (*read)(const struct pt_files_job *j);
    /*
     * Add `base` to the numbers of the records that read() stored for this file. One thread calls this, in the order of
     * the list.
     */
    void (*renumber)(void *ctx, int file, int base);
    bool rank_files;            /* the DTensors in the files are parts; read() or the caller joins them */
    bool holes;                 /* report a file that cannot be opened as a warning, not as an error */
    /* result: the files have more records than any checkpoint has, so the caller's open must fail */
    bool too_many;
};

enum { PT_FILES_RECORDS_MAX = 4 << 20 };        /* maximum number of records in all files of a checkpoint */

/*
 * Open each of the n listed files of the source, call read(), and close the file. Negative numbers in the list are
 * skipped.
 */
void pt_files_each(struct pt_files *o, const int *file, int n);
/*
 * Open each of the n listed files and call read(), like pt_files_each(), but keep the handles open in
 * source->file[].pt. Many threads open the files in advance, so that their tables are in the page cache. One thread
 * calls read(), in the order of the list.
 */
void pt_files_keep(struct pt_files *o, const int *file, int n);

/*
 * Extents for lost bytes (source_opts.holes). Each lost file has a record in a file without bytes. The extents are
 * parts of this record and do not overlap.
 */
struct pt_holes {
    int n, cap;
    struct pt_hole *hole;
};
/* Returns an extent for the next `len` lost bytes of the file `name` of the source. */
struct extent pt_hole(struct pt_holes *h, struct source *s, const char *name, uint64_t len);
void pt_holes_free(struct pt_holes *h);

/* Add pt to the files that are closed with the source. This is for a file to whose trees the source refers. */
void pt_hold(struct source *s, struct pt *pt);
/* Returns true if `pt`, a file of another tag, can be used for this tag. Otherwise records the reason in *ctx. */
typedef bool pt_fits_fn(void *ctx, const struct pt *pt);
/*
 * Open the file `name` of another tag in the same folder. This is the newest tag whose file can be read and for which
 * fits() returns true. If `fits` is NULL, any file is accepted. Returns the file, which the caller closes, or NULL if
 * there is none.
 */
struct pt *pt_sibling(struct source *s, const char *name, int *file, pt_fits_fn *fits, void *ctx);

#endif
