/*
 * pickle_classes.h - the allow-list: the meaning of a global's name
 *
 * The list holds names only; nothing is ever imported. The parser and the readers of trees share it.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_CLASSES_H
#define SHARDKIT_FORMAT_PICKLE_CLASSES_H

#include "libcommon/base/dtype.h"
#include "libcommon/format/pickle/pickle.h"

enum pickle_use {               /* how a known global may be used in a tree */
    USE_VALUE = 1,              /* by itself: torch.bfloat16, a class */
    USE_CALL = 2,               /* REDUCE */
    USE_OBJ = 4,                /* NEWOBJ, then BUILD with its fields */
    USE_ENUM = 8,               /* cls(value) or getattr(cls, 'member') */
};

/* Return the permitted uses of a global, or 0 if it is not on the list or is not a global. */
unsigned pickle_uses(const struct pk *global);
/* Returns true if a finished node is a class, object or call that the list does not permit. */
bool pickle_is_opaque(const struct pk *v);
/*
 * Returns true if the global is the builtin `name`. The module is "__builtin__" in Python 2 and "builtins" in
 * Python 3.
 */
bool pickle_is_builtin(const struct pk *global, const char *name);
/* Return the class in a call getattr(class, 'member'), or NULL for any other value. */
const struct pk *pickle_getattr_class(const struct pk *v);
/*
 * Get the dtype of a storage class such as torch.FloatStorage. For UntypedStorage, whose elements are bytes, sets
 * *raw. Returns false if the global is not a storage class.
 */
bool pickle_storage_dtype(const struct pk *global, enum dtype *dtype, bool *raw);
const char *pickle_storage_class(enum dtype dtype);     /* "FloatStorage"; NULL: UntypedStorage */
/* Get the dtype named by a global such as torch.bfloat16. Returns false if it names none. */
bool pickle_dtype(const struct pk *global, enum dtype *dtype);

#endif
