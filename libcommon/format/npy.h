/*
 * npy.h - NumPy .npy files (format 1.0): headers, and whole arrays of integers
 *
 *   0  6  "\x93NUMPY"    6  2  version    8  2  length of the dictionary    10  dictionary
 * The dictionary is text: {'descr': '<i4', 'fortran_order': False, 'shape': (949,), },
 * padded with blanks and ended by a newline so that data starts at a multiple of 64.
 */
#ifndef SHARDKIT_FORMAT_NPY_H
#define SHARDKIT_FORMAT_NPY_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/err.h"
#include "libcommon/base/mapped.h"
#include "libcommon/base/mem.h"

/*
 * Magic, version, dictionary, padded so that data starts at a multiple of 64.
 * bf16 has no NumPy type: it is declared '<u2' (the bit patterns); so are other types that NumPy lacks, F8 as '|u1',
 * complex numbers of 32 bits as '<u4'; bool is '|b1'.
 */
void npy_header(struct strbuf *out, enum dtype dtype, int ndim, const int64_t *shape);

/* The integer arrays that index caches hold. */
enum npy_type { NPY_I32, NPY_U32, NPY_I64 };

struct npy {
    enum npy_type type;
    int ndim;                           /* 1 or 2 */
    int64_t shape[2];                   /* shape[1] is 1 when ndim is 1 */
    const void *data;                   /* C order, aligned; belongs to the npy */
    struct mapped file;
};

/*
 * Map the file. Header and length are checked completely; what the numbers mean is the
 * caller's; reads of data belong into mapped_use(). ERR_SYS: cannot be opened (e->sys is ENOENT when it is not there).
 * ERR_DATA: another type or order, damaged, or the file is not as long as the shape says.
 */
MUST_CHECK int npy_open(const char *path, struct npy *a, struct err *e);
void npy_close(struct npy *a);                      /* a zeroed one is fine */
/* An array of any type and number of dimensions: where its elements lie in the file. */
struct npy_array {
    enum dtype dtype;                   /* '<u2' is bf16, as npy_header() writes it */
    int ndim;                           /* 0 .. TENSOR_MAX_DIM */
    int64_t shape[TENSOR_MAX_DIM];
    uint64_t at, bytes;
};
/* ERR_SYS, ERR_DATA: no .npy in C order, or not as long as its shape says. */
MUST_CHECK int npy_look(const char *path, struct npy_array *a, struct err *e);
/* Write `path` as numpy.save would; readers see the old file or the new one. */
MUST_CHECK int npy_save(const char *path, enum npy_type type, int ndim, const int64_t *shape, const void *data,
                        struct err *e);

#endif
