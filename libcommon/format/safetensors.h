/*
 * safetensors.h - find the tensors of a .safetensors file, and lay out such a file
 *
 *   u64 N, little-endian | N bytes of JSON, padded with blanks | data to the end of the file
 *
 * The JSON gives the dtype, the shape and the location in the data of every tensor, by name. The optional key
 * __metadata__ holds strings. The tensors fill the data without gap or overlap, so the header alone determines
 * the use of every byte. The parser accepts what the reference implementation accepts, except for forms that no
 * writer produces: duplicate or empty names, names with a NUL, blanks before the '{', tensors as arrays, more
 * than SAFETENSORS_MAX_DIM dimensions.
 *
 * Threads: an open file never changes. Opening one adds nothing to struct files.
 */
#ifndef SHARDKIT_FORMAT_SAFETENSORS_H
#define SHARDKIT_FORMAT_SAFETENSORS_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { SAFETENSORS_MAX_DIM = 64 };              /* limit of torch */
#define SAFETENSORS_MAX_HEADER 100000000u       /* limit of the reference implementation; the hub's limit is 25000000 */

struct safetensors_tensor {
    const char *name;                   /* UTF-8; valid until safetensors_close() */
    const char *spelling;               /* name of the dtype in the file: "BF16" */
    /* DTYPE_N for F4 and F6 without a last dimension of whole bytes */
    enum dtype dtype;
    int ndim;                           /* the last dimension of F4 and F6 is in bytes, as torch has it for F4 */
    const int64_t *shape;               /* in elements, outermost first */
    uint64_t at;                        /* offset of the first byte from the start of the file */
    uint64_t len;                       /* bytes */
};

struct safetensors;
/*
 * Open file number `file`. Returns NULL with ERR_SYS if it cannot be read, or with ERR_DATA and the offset if it
 * has no valid header, or if the header contradicts itself or the length of the file. Memory: at most a small
 * multiple of the header's size.
 */
MUST_CHECK struct safetensors *safetensors_open(struct files *f, int file, struct err *e);
void safetensors_close(struct safetensors *st);                 /* accepts NULL */
int safetensors_n(const struct safetensors *st);
/* Return tensor i, in the order of the offsets. */
const struct safetensors_tensor *safetensors_tensor(const struct safetensors *st, int i);
/* Return the tensor with this name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
const char *safetensors_meta(const struct safetensors *st, const char *key);    /* NULL if there is none */
uint64_t safetensors_header_bytes(const struct safetensors *st);                /* N */

/* ---- writing ---- */

struct safetensors_out {
    const char *name;                   /* UTF-8 */
    enum dtype dtype;                   /* must satisfy safetensors_has() */
    int ndim;
    const int64_t *shape;
    uint64_t at, len;                   /* output: offset in the file; number of bytes */
    int number;                         /* the caller's own, to find the tensor after it was sorted */
};
/* A pair of __metadata__. */
struct safetensors_text {
    const char *key, *value;            /* UTF-8 */
};
/* Returns true if the format has that type. It lacks C128, C32, the quantized types and BITS*. */
bool safetensors_has(enum dtype t);
/*
 * Sort and place n tensors as the reference implementation does (by dtype, then by name, without gaps), and append
 * everything before the data to *header. The metadata is {"format":"pt"}, because Transformers 4 does not load a
 * file without it. The result does not depend on the order of the tensors in t. *size becomes the length of the
 * file. Fails with ERR_DATA if two tensors have the same name, a type is not supported, or the header exceeds the
 * reference's limit.
 */
MUST_CHECK int safetensors_layout(struct safetensors_out *t, int n, const char *path, struct strbuf *header,
                                  uint64_t *size, struct err *e);
/* safetensors_layout_more() does what safetensors_layout() does, with further pairs of metadata after the first. */
struct safetensors_file {
    int n, n_more;
    struct safetensors_out *tensor;     /* [n] */
    const struct safetensors_text *more;        /* [n_more] */
};
MUST_CHECK int safetensors_layout_more(const struct safetensors_file *f, const char *path, struct strbuf *header,
                                       uint64_t *size, struct err *e);

#endif
