/*
 * safetensors.h - find the tensors of a .safetensors file, and lay such a file out
 *
 *   u64 N, little-endian | N bytes of JSON, padded with blanks | data to the end of the file
 *
 * The JSON names every tensor with its dtype, its shape and its place in the data; the
 * optional key __metadata__ holds strings. Tensors fill the data without gap or overlap,
 * so reading the header is enough to know every byte. Accepted is what the reference
 * accepts, less what no writer makes: duplicate, empty or NUL-bearing names, blanks before
 * the '{', tensors as arrays, more than SAFETENSORS_MAX_DIM dimensions.
 * Threads: an open file never changes; opening adds nothing to the files.
 */
#ifndef SHARDKIT_FORMAT_SAFETENSORS_H
#define SHARDKIT_FORMAT_SAFETENSORS_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { SAFETENSORS_MAX_DIM = 16 };
#define SAFETENSORS_MAX_HEADER 100000000u       /* the reference's limit; the hub's is 25000000 */

struct safetensors_tensor {
    const char *name;                   /* UTF-8; belongs to the file */
    const char *spelling;               /* of the dtype: "BF16" */
    enum dtype dtype;                   /* DTYPE_N of F6_*, and of F4 with an odd last dimension: torch has no such */
    int ndim;                           /* of F4 the shape in bytes, as torch has it: the last dimension is halved */
    const int64_t *shape;               /* elements, outermost first */
    uint64_t at;                        /* first byte, from the start of the file */
    uint64_t len;                       /* bytes */
};

struct safetensors;
/*
 * Open file number `file`. NULL and *e: ERR_SYS when it cannot be read, ERR_DATA with the
 * byte when the header is none or contradicts itself or the file's length. Memory: at most
 * some times the header.
 */
MUST_CHECK struct safetensors *safetensors_open(struct files *f, int file, struct err *e);
void safetensors_close(struct safetensors *st);                 /* NULL is fine */
int safetensors_n(const struct safetensors *st);
const struct safetensors_tensor *safetensors_tensor(const struct safetensors *st, int i);  /* by offset */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);  /* NULL: none */
const char *safetensors_meta(const struct safetensors *st, const char *key);    /* NULL: none */
uint64_t safetensors_header_bytes(const struct safetensors *st);                /* N */

/* ---- writing ---- */

struct safetensors_out {
    const char *name;                   /* UTF-8 */
    enum dtype dtype;                   /* one that safetensors_has() */
    int ndim;
    const int64_t *shape;
    uint64_t at, len;                   /* filled in: place in the file, bytes */
};
/* Do safetensors have that type? They lack C128, C32, the quantized types and BITS*. */
bool safetensors_has(enum dtype t);
/*
 * Place n tensors as the reference does (by dtype, then by name, without gaps) and append
 * everything before the data to *header, with {"format":"pt"} as metadata, without which
 * Transformers 4 does not load. Same tensors in any order: same bytes. *size is the file's
 * length. ERR_DATA when two have one name or the header passes the reference's limit.
 */
MUST_CHECK int safetensors_layout(struct safetensors_out *t, int n, const char *path, struct strbuf *header,
                                  uint64_t *size, struct err *e);

#endif
