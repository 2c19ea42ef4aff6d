/*
 * safetensors.h - find the tensors of a .safetensors file, and compute the layout of a new one
 *
 *   u64 N, little-endian | N bytes of JSON, padded with blanks | data to the end of the file
 *
 * The JSON maps the name of each tensor to its dtype, its shape, and its location in the data. The optional key
 * __metadata__ holds strings. The tensors fill the data without gaps and without overlaps. The parser accepts what the
 * reference implementation accepts, except for forms that no writer produces: duplicate or empty names, names with a
 * NUL, blanks before the '{', tensors as arrays, more than SAFETENSORS_MAX_DIM dimensions.
 *
 * Threads: an open file never changes. Opening a file adds nothing to struct files.
 */
#ifndef SHARDKIT_FORMAT_SAFETENSORS_H
#define SHARDKIT_FORMAT_SAFETENSORS_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { SAFETENSORS_MAX_DIM = 64 };              /* the same limit as in torch */
#define SAFETENSORS_MAX_HEADER 100000000u       /* the limit of the reference implementation; the limit of the hub is
                                                 * 25000000 */

struct safetensors_tensor {
    const char *name;                   /* UTF-8; valid until safetensors_close() */
    const char *spelling;               /* name of the dtype in the file, such as "BF16" */
    /* DTYPE_N if the type is F4 or F6 and the last dimension does not consist of whole bytes */
    enum dtype dtype;
    int ndim;                           /* for F4 and F6, the last dimension is counted in bytes, as in torch for F4 */
    const int64_t *shape;               /* in elements, outermost first */
    uint64_t at;                        /* offset of the first byte from the start of the file */
    uint64_t len;                       /* length in bytes */
};

struct safetensors;
/*
 * Open file number `file`. Returns NULL with ERR_SYS if it cannot be read. Returns NULL with ERR_DATA and the offset if
 * it has no valid header, or if the header contradicts itself or the length of the file. The memory is at most a small
 * multiple of the header's size.
 */
MUST_CHECK struct safetensors *safetensors_open(struct files *f, int file, struct err *e);
/*
 * Open a file like safetensors_open(), but accept a file that ends before its tensors end. *cut is set to true for such
 * a file, and *e is then the error that safetensors_open() would return. The caller must check each tensor against the
 * length of the file.
 */
MUST_CHECK struct safetensors *safetensors_open_cut(struct files *f, int file, bool *cut, struct err *e);
void safetensors_close(struct safetensors *st);                 /* accepts NULL */
int safetensors_n(const struct safetensors *st);
/* Return tensor i. Tensors are sorted by offset. */
const struct safetensors_tensor *safetensors_tensor(const struct safetensors *st, int i);
/* Return the tensor with this name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
const char *safetensors_meta(const struct safetensors *st, const char *key);    /* from __metadata__; NULL: no such
                                                                                 * key */
uint64_t safetensors_header_bytes(const struct safetensors *st);                /* the N of the format above */

/* ---- writing ---- */

struct safetensors_out {
    const char *name;                   /* UTF-8 */
    enum dtype dtype;                   /* must be a type for which safetensors_has() returns true */
    int ndim;
    const int64_t *shape;
    uint64_t at, len;                   /* output: offset in the file, and number of bytes */
    int number;                         /* not used by this library; it lets the caller find the tensor after sorting */
};
/* A key and its value in __metadata__. */
struct safetensors_text {
    const char *key, *value;            /* UTF-8 */
};
/* Returns true if the format has type t. The format lacks C128, C32, the quantised types and BITS*. */
bool safetensors_has(enum dtype t);
/*
 * Sort n tensors by dtype and then by name, as the reference implementation does, and place them without gaps. Append
 * everything that precedes the data to *header. The metadata is {"format":"pt"}, because Transformers 4 does not load a
 * file without it. The result does not depend on the order of the tensors in t. *size is set to the length of the file.
 * Fails with ERR_DATA if two tensors have the same name, if a type is not supported, or if the header is longer than
 * the reference implementation allows.
 */
MUST_CHECK int safetensors_layout(struct safetensors_out *t, int n, const char *path, struct strbuf *header,
                                  uint64_t *size, struct err *e);
/* safetensors_layout_more() also adds further pairs to the metadata, after the first one. */
struct safetensors_file {
    int n, n_more;
    struct safetensors_out *tensor;     /* [n] */
    const struct safetensors_text *more;        /* [n_more] */
};
MUST_CHECK int safetensors_layout_more(const struct safetensors_file *f, const char *path, struct strbuf *header,
                                       uint64_t *size, struct err *e);

#endif
