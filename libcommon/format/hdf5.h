/*
 * hdf5.h - the few things asked of the HDF5 library
 *
 * Writing makes tables only: groups, attributes, and datasets that say where bytes lie.
 * A dataset is contiguous and allocated at once, so its bytes are a run of the file that
 * anyone may fill after h5_finish(); or it is external (runs of other files); or it is
 * virtual (external datasets side by side). Reading answers with such places too, and
 * never touches tensor bytes.
 *
 * Writing is sticky: after the first failure every further call does nothing, and
 * h5_finish() tells what went wrong. Objects are numbers; H5_TOP is the root group.
 *
 * HDF5 1.10 trusts what has no checksum. So what we write keeps to metadata that has
 * (superblock 3, version-2 object headers, fixed-length strings), and for the heaps that
 * have not, the file ends with a seal (hdf5_seal.h) that is checked before the library
 * sees the file. Hence only files made here can be opened.
 * Threads: the library has one global state; one thread at a time in the whole process.
 */
#ifndef SHARDKIT_FORMAT_HDF5_H
#define SHARDKIT_FORMAT_HDF5_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

#define H5_MAX_DIM TENSOR_MAX_DIM
#define H5_TOP 0
/* Datasets of this many bytes begin at a multiple of it; smaller ones lie anywhere. */
#define H5_ALIGN 4096
/* An external file list is one object header message of 64 KiB at most: 24 bytes a run. */
#define H5_MAX_SEGMENTS 2700

/* A run of another file; path is relative to the folder of the .h5 or absolute. */
struct h5_segment {
    const char *path;
    uint64_t at, len;           /* bytes */
};

/* ---- writing ---- */

struct h5_out;
/* Make `path`, replacing it. Never NULL: a failure shows at h5_finish(). */
struct h5_out *h5_create(const char *path);
/* Write the tables, seal, close and free; nothing is synced. -1 when this or any call before it failed. */
MUST_CHECK int h5_finish(struct h5_out *h, struct err *e);
void h5_abandon(struct h5_out *h);              /* close and free without success; NULL is fine */

/* A dataset that is to be: in which group, called what, of which shape. */
struct h5_new {
    int64_t in;
    const char *name;
    int ndim;
    const int64_t *shape;
};
/* New objects inside group `in`; -1 after a failure. Each wants an h5_done(). */
int64_t h5_new_group(struct h5_out *h, int64_t in, const char *name);
/* Little-endian f32 elements, contiguous, allocated, never filled by the library. */
int64_t h5_new_dataset(struct h5_out *h, const struct h5_new *d);
/* Its bytes are the n segments end to end; n <= H5_MAX_SEGMENTS. */
int64_t h5_new_external(struct h5_out *h, const struct h5_new *d, const struct h5_segment *segment, int n);
/* Dimension 1 is cut into n columns; column i is all of dataset source[i] of this file, width[i] wide. */
int64_t h5_new_columns(struct h5_out *h, const struct h5_new *d, const char *const *source, const int64_t *width,
                       int n);
void h5_done(struct h5_out *h, int64_t object);
/* A one-dimensional table column, written at once. */
void h5_put_strings(struct h5_out *h, int64_t in, const char *name, const char *const *v, int n);
void h5_put_u64s(struct h5_out *h, int64_t in, const char *name, const uint64_t *v, int n);
/* `name` in the root group stands for the root group of another file, path relative to this one. */
void h5_put_link(struct h5_out *h, const char *name, const char *file);

void h5_set_str(struct h5_out *h, int64_t object, const char *name, const char *v);
void h5_set_int(struct h5_out *h, int64_t object, const char *name, int64_t v);
void h5_set_double(struct h5_out *h, int64_t object, const char *name, double v);

/* ---- reading ---- */

struct h5_in;
/*
 * Open read-only. NULL and *e:
 *   ERR_SYS   it cannot be read
 *   ERR_DATA  no HDF5 file, cut short, a superblock older than version 2, no seal (not
 *             ours), or damaged
 */
MUST_CHECK struct h5_in *h5_open(const char *path, struct err *e);
void h5_close(struct h5_in *h);                 /* NULL is fine */
const char *h5_path(const struct h5_in *h);

/* Names in a group, dot names left out, in the order of strcmp. Returns their number or -1. */
MUST_CHECK int h5_list(struct h5_in *h, const char *group, struct arena *a, const char ***names,
                       struct err *e);
bool h5_has(struct h5_in *h, const char *path);
/* The file behind an external link of the root group into buf, which must fit; false: it is none. */
bool h5_link_file(struct h5_in *h, const char *name, char *buf, size_t size);

enum h5_storage { H5_CONTIGUOUS, H5_EXTERNAL, H5_COLUMNS };
struct h5_dataset {
    enum h5_storage storage;
    int ndim;                           /* 1 .. H5_MAX_DIM */
    int64_t shape[H5_MAX_DIM];
    uint64_t len;                       /* bytes: the product of the shape times 4 */
    uint64_t at;                        /* CONTIGUOUS: first byte; inside the file */
    int n_segments;                     /* EXTERNAL: their lengths add up to len */
    struct h5_segment *segment;
    int n_columns;                      /* COLUMNS: datasets of this file, left to right */
    const char **column;
};
/* Look at an f32 dataset; tables go to the arena. -1 and ERR_DATA when it is not of our kinds. */
MUST_CHECK int h5_look(struct h5_in *h, const char *path, struct arena *a, struct h5_dataset *d,
                       struct err *e);

/* Columns of a table; they go to the arena. Return the length, or -1. */
MUST_CHECK int h5_get_strings(struct h5_in *h, const char *path, struct arena *a, const char ***v,
                              struct err *e);
MUST_CHECK int h5_get_u64s(struct h5_in *h, const char *path, struct arena *a, uint64_t **v, struct err *e);

/* Attributes; false when there is none of that name and type (or the string does not fit). */
bool h5_get_str(struct h5_in *h, const char *object, const char *name, char *buf, size_t size);
bool h5_get_int(struct h5_in *h, const char *object, const char *name, int64_t *v);
bool h5_get_double(struct h5_in *h, const char *object, const char *name, double *v);

#endif
