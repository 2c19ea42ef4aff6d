/*
 * pickle_classes.h - the allow-list: what a global's name means to us
 *
 * Only names; nothing is ever imported. Shared by the parser and the readers of trees.
 */
#ifndef SHARDKIT_FORMAT_PICKLE_CLASSES_H
#define SHARDKIT_FORMAT_PICKLE_CLASSES_H

#include "libcommon/base/dtype.h"
#include "libcommon/format/pickle/pickle.h"

enum pickle_use {               /* how a known global may stand in a tree */
    USE_VALUE = 1,              /* by itself: torch.bfloat16, a class */
    USE_CALL = 2,               /* REDUCE */
    USE_OBJ = 4,                /* NEWOBJ, then BUILD with its fields */
    USE_ENUM = 8,               /* cls(value) or getattr(cls, 'member') */
};

/* The uses of a global, 0 when it is not on the list (or no global). */
unsigned pickle_uses(const struct pk *global);
/* Is this finished node a class, object or call outside the list? */
bool pickle_is_opaque(const struct pk *v);
/* "__builtin__" and "builtins" name one module, in a file's Python 2 and Python 3 spelling. */
bool pickle_is_builtin(const struct pk *global, const char *name);
/* getattr(class, 'member'): the class, else NULL. */
const struct pk *pickle_getattr_class(const struct pk *v);
/* torch.FloatStorage and so on: its dtype; *raw: UntypedStorage, which counts bytes. */
bool pickle_storage_dtype(const struct pk *global, enum dtype *dtype, bool *raw);
const char *pickle_storage_class(enum dtype dtype);     /* "FloatStorage"; NULL: UntypedStorage */
/* torch.bfloat16 and so on. */
bool pickle_dtype(const struct pk *global, enum dtype *dtype);

#endif
