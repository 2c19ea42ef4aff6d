/*
 * pt_files.h - the .pt files of a checkpoint, opened by many threads, as if by one in order
 *
 * Opening waits for the disk, not for the processor, so many are opened at once: each among files and findings of its
 * own. Records and findings then join those of the source in the order of the list, so that a record has the same
 * number in every run and on any number of threads: a plan that is resumed, or shared out among processes, depends on
 * that.
 */
#ifndef SHARDKIT_LAYOUT_PT_FILES_H
#define SHARDKIT_LAYOUT_PT_FILES_H

#include "libcommon/format/pt.h"
#include "libcommon/layout/layout.h"

/* What the function that reads a file gets: the file, its handle, a report of its own. */
struct pt_files_job {
    void *ctx;
    int file;                   /* in source->file */
    struct files *files;        /* in which pt's records are numbered */
    struct pt *pt;
    const char *path;           /* for findings */
    struct report *r;
};
struct pt_files {
    struct source *s;
    struct report *r;
    int threads;                /* 0: 16 */
    void *ctx;
    /* Called for each file that opened, its classes checked already; by any thread for different files. */
    void (*read)(const struct pt_files_job *j);
    /* Adds `base` to the numbers of the records that read() kept of the file; in order, by one thread. */
    void (*renumber)(void *ctx, int file, int base);
    bool holes;                 /* a file that cannot be opened is a warning */
    bool too_many;              /* set: more records than any checkpoint has; the caller's open fails */
};

enum { PT_FILES_RECORDS_MAX = 4 << 20 };        /* of a whole tag; the largest known has some ten thousand */

/* Open the listed files of the source (negative numbers are passed over), read, close. */
void pt_files_each(struct pt_files *o, const int *file, int n);
/* The same for files whose handles stay in source->file[].pt: read ahead by many threads, read() in order by one. */
void pt_files_keep(struct pt_files *o, const int *file, int n);

/*
 * Bytes that are lost, as extents of records of files without bytes (source_opts.holes): one such file per lost file,
 * and no two extents overlap.
 */
struct pt_holes {
    int n, cap;
    struct pt_hole *hole;
};
/* The next `len` lost bytes of the source's file `name`. */
struct extent pt_hole(struct pt_holes *h, struct source *s, const char *name, uint64_t len);
void pt_holes_free(struct pt_holes *h);

/* The file `name` of the newest other tag in the same folder that has one which opens; NULL: none. Caller closes it. */
struct pt *pt_sibling(struct source *s, const char *name, int *file);

#endif
