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
 * Append a complete header to out: magic, version and dictionary, padded so that the data starts at a multiple of 64.
 * Types that NumPy lacks are declared as unsigned integers that hold the bit patterns. bf16 is declared as '<u2', F8 as
 * '|u1', and complex numbers of 32 bits as '<u4'. bool is '|b1'.
 */
void npy_header(struct strbuf *out, enum dtype dtype, int ndim, const int64_t *shape);

/* Element types of the integer arrays that index caches store. */
enum npy_type { NPY_I32, NPY_U32, NPY_I64 };

struct npy {
    enum npy_type type;
    int ndim;                           /* 1 or 2 */
    int64_t shape[2];                   /* shape[1] is 1 if ndim is 1 */
    const void *data;                   /* in C order, aligned; points into the mapped file */
    struct mapped file;
};

/*
 * Map the file, and check its header and length completely. The values of the array are not checked. The caller must
 * read the data through mapped_use(). Fails with ERR_SYS if the file cannot be opened (e->sys is ENOENT if it does not
 * exist). Fails with ERR_DATA if the header is damaged, if the type is not one of enum npy_type, if the array is not in
 * C order, or if the length of the file does not fit the shape.
 */
MUST_CHECK int npy_open(const char *path, struct npy *a, struct err *e);
void npy_close(struct npy *a);                      /* accepts a zeroed struct */
/*
 * Describes an array of any type and number of dimensions by its header and the location of its elements in the file.
 */
struct npy_array {
    enum dtype dtype;                   /* '<u2' is reported as bf16, because npy_header() declares bf16 as '<u2' */
    int ndim;                           /* 0 .. TENSOR_MAX_DIM */
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t at, bytes;
};
/*
 * Read only the header. Fails with ERR_SYS if the file cannot be read. Fails with ERR_DATA if it is not a .npy file in
 * C order, or if its length does not fit the shape.
 */
MUST_CHECK int npy_inspect(const char *path, struct npy_array *a, struct err *e);
/* Write `path` in the same form as numpy.save(). Readers see either the old file or the new one. */
MUST_CHECK int npy_save(const char *path, enum npy_type type, int ndim, const int64_t *shape, const void *data,
                        struct err *e);

#endif
