/*
 * npy.h - the header of a NumPy .npy file (format 1.0), for `ckpt-inspect cat`
 */
#ifndef SHARDKIT_FORMAT_NPY_H
#define SHARDKIT_FORMAT_NPY_H

#include "libcommon/base/dtype.h"
#include "libcommon/base/mem.h"

/*
 * Magic, version, dictionary, padded so that data starts at a multiple of 64.
 * bf16 has no NumPy type: it is declared '<u2' (the bit patterns); bool is '|b1'.
 */
void npy_header(struct strbuf *out, enum dtype dtype, int ndim, const int64_t *shape);

#endif
