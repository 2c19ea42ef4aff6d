/*
 * pt_files.h - open the .pt files of a checkpoint with many threads, with the same result as one by one
 *
 * Opening waits for the disk, not for the processor, so many files are opened at a time, each with a table of files
 * and a report of its own. Their records and findings are then appended to those of the source in the order of the
 * list. A record therefore has the same number in every run and with any number of threads. A plan that is resumed,
 * or divided among processes, depends on that.
 */
#ifndef SHARDKIT_LAYOUT_PT_FILES_H
#define SHARDKIT_LAYOUT_PT_FILES_H

#include "libcommon/format/pt.h"

/* The arguments of the function that reads a file: the file, its handle, a report of its own. */
struct pt_files_job {
    void *ctx;
    int file;                   /* index in source->file */
    struct files *files;        /* in which pt's records are numbered */
    struct pt *pt;
    const char *path;           /* for findings */
    struct report *r;
};
struct pt_files {
    struct source *s;
    struct report *r;
    int threads;                /* 0 for the default of 16 */
    void *ctx;
    /*
     * Called for each file that was opened, after a check of its classes. Different files may be read by different
     * threads.
     */
    void (*read)(const struct pt_files_job *j);
    /* Adds `base` to the numbers of the records that read() stored for the file. Called in order, by one thread. */
    void (*renumber)(void *ctx, int file, int base);
    bool holes;                 /* a file that cannot be opened is a warning */
    /* result: there are more records than any checkpoint has; the caller's open must fail */
    bool too_many;
};

enum { PT_FILES_RECORDS_MAX = 4 << 20 };        /* limit for a whole tag; the largest known has some ten thousand */

/* Open the listed files of the source (negative numbers are skipped), call read(), and close them. */
void pt_files_each(struct pt_files *o, const int *file, int n);
/*
 * Like pt_files_each(), but the handles stay open in source->file[].pt. Many threads read ahead; one thread calls
 * read(), in the order of the list.
 */
void pt_files_keep(struct pt_files *o, const int *file, int n);

/*
 * Lost bytes as extents of records of files without bytes (source_opts.holes). There is one such file per lost file,
 * and no two extents overlap.
 */
struct pt_holes {
    int n, cap;
    struct pt_hole *hole;
};
/* Returns an extent of the next `len` lost bytes of the source's file `name`. */
struct extent pt_hole(struct pt_holes *h, struct source *s, const char *name, uint64_t len);
void pt_holes_free(struct pt_holes *h);

/* Close pt with the source, because trees refer to it. */
void pt_hold(struct source *s, struct pt *pt);
/* Returns true if the file of another tag can be used here; otherwise it reports the reason. */
typedef bool pt_fits_fn(void *ctx, const struct pt *pt);
/*
 * Open the file `name` of the newest other tag in the same folder that has a readable one which fits (`fits` NULL: any
 * one). Returns NULL if there is none. The caller closes it.
 */
struct pt *pt_sibling(struct source *s, const char *name, int *file, pt_fits_fn *fits, void *ctx);

#endif
