/*
 * pt_kind.h - classify the values of a .pt file's tree that contain a tensor
 *
 * pt.c uses these functions. They only inspect trees and do not read storages. torch pickles a tensor as a call of the
 * function that rebuilds it. If the call makes a view of one storage, the tensor can be read. pt_kind_name() describes
 * all other calls, so that no tensor is skipped silently.
 */
#ifndef SHARDKIT_FORMAT_PT_KIND_H
#define SHARDKIT_FORMAT_PT_KIND_H

#include "libcommon/format/pickle/pickle.h"

/*
 * A call that makes a view of a storage. There are three versions: _rebuild_tensor(storage, offset, size, stride),
 * _rebuild_tensor_v2(..., requires_grad, hooks[, metadata]) with a storage of elements, and _rebuild_tensor_v3(...,
 * requires_grad, hooks, dtype[, metadata]) with a storage of bytes. Offset and strides count elements.
 */
struct pt_call {
    const struct pk *args;              /* NULL: the value is not such a call */
    int version;                        /* version of the function, 1 to 3 */
    uint32_t n_least;                   /* number of arguments without the metadata */
};
/*
 * Parse v as a call that rebuilds a tensor. If the tensor has attributes, as ZeRO-3's fp32 master weights do, torch
 * wraps the call in _rebuild_from_type_v2. This form is accepted, too.
 */
struct pt_call pt_kind_call(const struct pk *v);
/*
 * Return the reason why the values of the tensor differ from those in its storage: conjugate or negative bits, or too
 * many dimensions. Returns NULL if they do not differ. c->args must not be NULL.
 */
const char *pt_kind_flaw(const struct pt_call *c);
/*
 * Return the tensor that v wraps if v is a Parameter, a tensor of a device without storages, or a DTensor whose whole
 * tensor is in this file. Otherwise return v itself.
 */
const struct pk *pt_kind_unwrap(const struct pk *v);
/*
 * Get the parts of a pickled DTensor: the size of the whole tensor, this rank's tensor (NULL if it is missing), and the
 * DTensorSpec. Returns false if v is no DTensor.
 */
bool pt_kind_dtensor(const struct pk *v, const struct pk **size, const struct pk **local, const struct pk **spec);
/*
 * Return an attribute of an object, or NULL if there is none. The object's state may be passed instead of the object.
 */
const struct pk *pt_kind_attribute(const struct pk *state, const char *key);
/*
 * Describe a value that contains or represents a tensor that cannot be read. v must not be a call for which
 * pt_kind_flaw() returns NULL after pt_kind_unwrap(). Appends a text such as "a sparse tensor
 * (torch._utils._rebuild_sparse_tensor)". Returns false if v contains no tensor.
 */
bool pt_kind_name(const struct pk *v, struct strbuf *what);

#endif
