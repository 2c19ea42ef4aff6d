/*
 * pt_kind.h - what a value of a .pt file's tree is, as far as it bears a tensor
 *
 * For pt.c: trees alone, no storage is touched. torch pickles a tensor as the call of a function of its own that makes
 * it again. Calls that come down to a view of one storage are read; every other one is named, so that no tensor is
 * passed over without a word.
 */
#ifndef SHARDKIT_FORMAT_PT_KIND_H
#define SHARDKIT_FORMAT_PT_KIND_H

#include "libcommon/format/pickle/pickle.h"

/*
 * _rebuild_tensor(storage, offset, size, stride), _v2(..., requires_grad, hooks[, metadata]) of a storage of elements,
 * or _v3(..., requires_grad, hooks, dtype[, metadata]) of a storage of bytes. Offset and strides count elements.
 */
struct pt_call {
    const struct pk *args;              /* NULL: v is no such call */
    int version;                        /* 1 to 3 */
    uint32_t n_least;                   /* arguments without the metadata */
};
/* v itself as such a call; with attributes, as ZeRO-3's masters have, it is inside _rebuild_from_type_v2. */
struct pt_call pt_kind_call(const struct pk *v);
/* Why the tensor is not just what its storage holds (conjugate and negative bits, too many dimensions), or NULL. */
const char *pt_kind_flaw(const struct pt_call *c);
/*
 * What v wraps: the tensor of a Parameter, of a device without storages, of a DTensor that has all of itself in this
 * file. v itself where it wraps nothing.
 */
const struct pk *pt_kind_unwrap(const struct pk *v);
/*
 * Of a value that bears a tensor or stands for one, and is no call without flaw after pt_kind_unwrap(): what it is, as
 * "a sparse tensor (torch._utils._rebuild_sparse_tensor)". false: it bears none.
 */
bool pt_kind_name(const struct pk *v, struct strbuf *what);

#endif
