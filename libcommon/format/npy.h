/*
 * npy.h - NumPy .npy files (format 1.0): headers, and whole arrays of integers
 *
 *   0  6  "\x93NUMPY"    6  2  version    8  2  length of the dictionary    10  dictionary
 *
 * The dictionary is text: {'descr': '<i4', 'fortran_order': False, 'shape': (949,), }, padded with blanks and
 * ended by a newline so that the data starts at a multiple of 64.
 */
#ifndef SHARDKIT_FORMAT_NPY_H
#define SHARDKIT_FORMAT_NPY_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/mapped.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/tensor.h"

/*
 * Append a complete header to out: magic, version and dictionary, padded so that the data starts at a multiple of
 * 64. Types that NumPy lacks are declared as unsigned integers that hold the bit patterns: bf16 as '<u2', F8 as
 * '|u1', complex numbers of 32 bits as '<u4'. bool is '|b1'.
 */
void npy_header(struct strbuf *out, enum dtype dtype, int ndim, const int64_t *shape);

/* Element types of the integer arrays in index caches. */
enum npy_type { NPY_I32, NPY_U32, NPY_I64 };

struct npy {
    enum npy_type type;
    int ndim;                           /* 1 or 2 */
    int64_t shape[2];                   /* shape[1] is 1 if ndim is 1 */
    const void *data;                   /* in C order, aligned; points into the mapped file */
    struct mapped file;
};

/*
 * Map the file and check its header and length completely. The caller interprets the numbers, and reads data
 * through mapped_use(). Fails with ERR_SYS if the file cannot be opened (e->sys is ENOENT if it does not exist).
 * Fails with ERR_DATA if the type or order is another one, if the header is damaged, or if the file's length
 * differs from what the shape requires.
 */
MUST_CHECK int npy_open(const char *path, struct npy *a, struct err *e);
void npy_close(struct npy *a);                      /* accepts a zeroed struct */
/* An array of any type and number of dimensions: its header, and the location of its elements in the file. */
struct npy_array {
    enum dtype dtype;                   /* '<u2' is reported as bf16, the form in which npy_header() writes bf16 */
    int ndim;                           /* 0 .. TENSOR_MAX_DIM */
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t at, bytes;
};
/*
 * Read the header only. Fails with ERR_SYS, or with ERR_DATA if the file is not a .npy in C order or its length
 * differs from what the shape requires.
 */
MUST_CHECK int npy_inspect(const char *path, struct npy_array *a, struct err *e);
/* Write `path` in the form that numpy.save() writes. Readers see the old file or the new one. */
MUST_CHECK int npy_save(const char *path, enum npy_type type, int ndim, const int64_t *shape, const void *data,
                        struct err *e);

#endif
