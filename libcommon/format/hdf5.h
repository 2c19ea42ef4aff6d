/*
 * hdf5.h - the subset of the HDF5 library that this project uses
 *
 * The writer writes only tables, not tensor bytes: groups, attributes, and datasets that give the location of the
 * bytes. A dataset has one of three kinds of storage. A contiguous dataset is allocated at once, so its bytes are one
 * run of the file, which any program may fill after h5_finish(). An external dataset consists of runs of other files. A
 * virtual dataset joins external datasets along dimension 1. The reader returns the same locations and never reads
 * tensor bytes.
 *
 * Errors of the writer are sticky: after the first failure every further call does nothing, and h5_finish() returns the
 * error. Groups and datasets are identified by numbers; H5_TOP is the root group.
 *
 * HDF5 1.10 does not validate metadata without a checksum. Therefore the writer uses metadata with checksums
 * (superblock 3, version-2 object headers, fixed-length strings). The heaps have no checksum; therefore the file ends
 * with a seal (hdf5_seal.h), which is checked before the library opens the file. As a consequence, only files that were
 * written by this project can be opened.
 *
 * Threads: the library has one global state, so only one thread of the process may use it at a time.
 */
#ifndef SHARDKIT_FORMAT_HDF5_H
#define SHARDKIT_FORMAT_HDF5_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"

#define H5_MAX_DIM TENSOR_MAX_DIM
#define H5_TOP 0
/*
 * A dataset of at least H5_ALIGN bytes begins at an offset that is a multiple of H5_ALIGN. A smaller dataset may begin
 * anywhere.
 */
#define H5_ALIGN 4096
/*
 * Maximum number of segments of an external dataset. The list of segments is one object header message of at most 64
 * KiB, and each segment needs 24 bytes in this message.
 */
#define H5_MAX_SEGMENTS 2700

/* A run of bytes of another file. `path` is absolute, or relative to the folder of the .h5 file. */
struct h5_segment {
    const char *path;
    uint64_t at, len;           /* bytes */
};

/* ---- writing ---- */

struct h5_out;
/* Create the file `path`, and replace it if it exists. Never returns NULL; h5_finish() reports a failure. */
struct h5_out *h5_create(const char *path);
/*
 * Write the tables, add the seal, close the file and free h. Nothing is synced to disk. Returns -1 if this call or
 * any earlier call failed.
 */
MUST_CHECK int h5_finish(struct h5_out *h, struct err *e);
void h5_abandon(struct h5_out *h);              /* close and free without sealing; accepts NULL */

/* Describes a new dataset: its group, its name and its shape. */
struct h5_new {
    int64_t in;
    const char *name;
    int ndim;
    const int64_t *shape;
};
/*
 * Create a group or dataset inside group `in`. This function and the functions below return the number of the new
 * object, or -1 after a failure. The caller closes every object with h5_done().
 */
int64_t h5_new_group(struct h5_out *h, int64_t in, const char *name);
/*
 * Create a contiguous dataset of little-endian f32 elements. Its space in the file is allocated at once, and the
 * library never fills it.
 */
int64_t h5_new_dataset(struct h5_out *h, const struct h5_new *d);
/* Create a dataset that consists of the bytes of n segments, one after the other. n must be at most H5_MAX_SEGMENTS. */
int64_t h5_new_external(struct h5_out *h, const struct h5_new *d, const struct h5_segment *segment, int n);
/*
 * Create a virtual dataset whose dimension 1 is cut into n parts. Part i is width[i] elements wide and consists of the
 * whole dataset source[i] of this file.
 */
int64_t h5_new_columns(struct h5_out *h, const struct h5_new *d, const char *const *source, const int64_t *width,
                       int n);
void h5_done(struct h5_out *h, int64_t object);
/* Write one column of a table, which is a dataset with one dimension. */
void h5_put_strings(struct h5_out *h, int64_t in, const char *name, const char *const *v, int n);
void h5_put_u64s(struct h5_out *h, int64_t in, const char *name, const uint64_t *v, int n);
/*
 * Create an external link: `name` in the root group refers to the root group of another file, whose path is
 * relative to this file.
 */
void h5_put_link(struct h5_out *h, const char *name, const char *file);

void h5_set_str(struct h5_out *h, int64_t object, const char *name, const char *v);
void h5_set_int(struct h5_out *h, int64_t object, const char *name, int64_t v);
void h5_set_double(struct h5_out *h, int64_t object, const char *name, double v);

/* ---- reading ---- */

struct h5_in;
/*
 * Open a file read-only. On failure, returns NULL and sets *e:
 *   ERR_SYS   the file cannot be read
 *   ERR_DATA  it is not an HDF5 file, is truncated, has a superblock older than version 2,
 *             has no seal (another program made it), or is damaged
 */
MUST_CHECK struct h5_in *h5_open(const char *path, struct err *e);
void h5_close(struct h5_in *h);                 /* accepts NULL */
const char *h5_path(const struct h5_in *h);

/*
 * List the names in a group in strcmp() order, except names that begin with a dot. Returns the number of names, or -1.
 */
MUST_CHECK int h5_list(struct h5_in *h, const char *group, struct arena *a, const char ***names,
                       struct err *e);
bool h5_has(struct h5_in *h, const char *path);
/*
 * Copy the file name of an external link in the root group to buf. Returns false if there is no such link, or if buf is
 * too small.
 */
bool h5_link_file(struct h5_in *h, const char *name, char *buf, size_t size);

enum h5_storage { H5_CONTIGUOUS, H5_EXTERNAL, H5_COLUMNS };
struct h5_dataset {
    enum h5_storage storage;
    int ndim;                           /* 1 .. H5_MAX_DIM */
    int64_t shape[H5_MAX_DIM];
    uint64_t len;                       /* length in bytes: the product of the shape, times 4 */
    uint64_t at;                        /* H5_CONTIGUOUS: offset of the first byte; all bytes are inside the file */
    int n_segments;                     /* H5_EXTERNAL: number of segments; their lengths add up to len */
    struct h5_segment *segment;
    int n_columns;                      /* H5_COLUMNS: number of datasets of this file that form the columns, from
                                         * left to right */
    const char **column;
};
/*
 * Describe an f32 dataset in *d. The lists in *d are allocated in the arena. Returns -1 with ERR_DATA if the storage of
 * the dataset is of none of the kinds above.
 */
MUST_CHECK int h5_inspect_dataset(struct h5_in *h, const char *path, struct arena *a, struct h5_dataset *d,
                                  struct err *e);

/*
 * Read a column of a table into memory of the arena. This function and the functions below return the column's length,
 * or -1 on failure.
 */
MUST_CHECK int h5_get_strings(struct h5_in *h, const char *path, struct arena *a, const char ***v,
                              struct err *e);
MUST_CHECK int h5_get_u64s(struct h5_in *h, const char *path, struct arena *a, uint64_t **v, struct err *e);

/*
 * Read an attribute of an object. The functions below return false if there is no attribute of this name and type, or
 * if the string does not fit into buf.
 */
bool h5_get_str(struct h5_in *h, const char *object, const char *name, char *buf, size_t size);
bool h5_get_int(struct h5_in *h, const char *object, const char *name, int64_t *v);
bool h5_get_double(struct h5_in *h, const char *object, const char *name, double *v);

#endif
