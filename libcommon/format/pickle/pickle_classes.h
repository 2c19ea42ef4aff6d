/*
 * pickle_classes.h - the allow-list of globals, which defines the meaning of their names
 *
 * The list holds names only; nothing is ever imported. Both the parser and the code that reads trees use the list.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_CLASSES_H
#define SHARDKIT_FORMAT_PICKLE_CLASSES_H

#include "libcommon/base/dtype.h"
#include "libcommon/format/pickle/pickle.h"

enum pickle_use {               /* how a known global may be used in a tree */
    USE_VALUE = 1,              /* as a value by itself: torch.bfloat16, a class */
    USE_CALL = 2,               /* called by REDUCE */
    USE_OBJ = 4,                /* made by NEWOBJ; BUILD then sets its fields */
    USE_NAMED = 16,             /* made by NEWOBJ with arguments, as a named tuple is */
    USE_ENUM = 8,               /* used as a class of enum members: cls(value) or getattr(cls, 'member') */
};

/* Return the permitted uses of a global, or 0 if it is not on the list or is not a global. */
unsigned pickle_uses(const struct pk *global);
/* Returns true if v is a class, object or call that the allow-list does not permit. v must be complete. */
bool pickle_is_opaque(const struct pk *v);
/*
 * Returns true if the global is the builtin `name`. The module is "__builtin__" in Python 2 and "builtins" in
 * Python 3.
 */
bool pickle_is_builtin(const struct pk *global, const char *name);
/* If v is a call getattr(class, 'member'), return the class; otherwise return NULL. */
const struct pk *pickle_getattr_class(const struct pk *v);
/*
 * Get the dtype of a storage class such as torch.FloatStorage. The elements of an UntypedStorage are bytes; for this
 * class *raw is set to true. Returns false if the global is not a storage class.
 */
bool pickle_storage_dtype(const struct pk *global, enum dtype *dtype, bool *raw);
const char *pickle_storage_class(enum dtype dtype);     /* such as "FloatStorage"; NULL for a dtype that needs an
                                                         * UntypedStorage */
/* Get the dtype that a global such as torch.bfloat16 names. Returns false if the global does not name a dtype. */
bool pickle_dtype(const struct pk *global, enum dtype *dtype);

#endif
