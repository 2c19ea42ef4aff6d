/*
 * pt_kind.h - classify the values of a .pt file's tree that contain a tensor
 *
 * Used by pt.c. These functions inspect trees only and read no storage. torch pickles a tensor as a call of a
 * function that rebuilds it. Calls that amount to a view of one storage are read. Every other such call is
 * described by pt_kind_name(), so that no tensor is skipped silently.
 */
#ifndef SHARDKIT_FORMAT_PT_KIND_H
#define SHARDKIT_FORMAT_PT_KIND_H

#include "libcommon/format/pickle/pickle.h"

/*
 * A call of one of three functions: _rebuild_tensor(storage, offset, size, stride), _rebuild_tensor_v2(...,
 * requires_grad, hooks[, metadata]) with a storage of elements, or _rebuild_tensor_v3(..., requires_grad, hooks,
 * dtype[, metadata]) with a storage of bytes. Offset and strides count elements.
 */
struct pt_call {
    const struct pk *args;              /* NULL: the value is not such a call */
    int version;                        /* 1 to 3 */
    uint32_t n_least;                   /* number of arguments without the metadata */
};
/*
 * Parse v as such a call. The call may be wrapped in _rebuild_from_type_v2, which torch uses for tensors with
 * attributes, as ZeRO-3's master weights have.
 */
struct pt_call pt_kind_call(const struct pk *v);
/*
 * Return the reason why the tensor's values are not simply those of its storage (conjugate and negative bits, too
 * many dimensions), or NULL. c->args must not be NULL.
 */
const char *pt_kind_flaw(const struct pt_call *c);
/*
 * Return the tensor that v wraps: that of a Parameter, of a device without storages, or of a DTensor which this
 * file holds as a whole. Returns v itself if it wraps nothing.
 */
const struct pk *pt_kind_unwrap(const struct pk *v);
/*
 * Describe a value that contains or represents a tensor and that, after pt_kind_unwrap(), is not a call without
 * flaw. Appends a text such as "a sparse tensor (torch._utils._rebuild_sparse_tensor)". Returns false if the value
 * contains no tensor.
 */
bool pt_kind_name(const struct pk *v, struct strbuf *what);

#endif
