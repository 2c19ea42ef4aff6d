/*
 * tree_edit.h - find a value of a pickled tree by its path, and convert JSON to the type of the present value
 *
 * This is for changes that users make to values in files. A path is a sequence of keys with dots between them, such as
 * "args.lr". The new value is JSON and must have the type of the present value: a number, text, the name of an enum
 * member, or a list of these. Text needs no quotes if the present value is text.
 */
#ifndef SHARDKIT_LAYOUT_TREE_EDIT_H
#define SHARDKIT_LAYOUT_TREE_EDIT_H

#include "libcommon/format/pickle/pickle.h"

/*
 * Returns the value at the path below v, or NULL if there is none. If `parent` is not NULL, *parent is set to the
 * object that contains the value.
 */
struct pk *tree_find(const struct pk *v, const char *path, const struct pk **parent);
/*
 * Convert `text` to a value of the type of `was`, or of any type if any_type is true. Returns NULL if the text is not
 * JSON, or if its value has another type.
 */
struct pk *tree_read(struct arena *a, const char *text, const struct pk *was, bool any_type);
/* Returns a description of the values that can replace `was`, such as "a whole number" or "true or false". */
const char *tree_type_words(const struct pk *was);
/* Replace the value at the path below `root`. Does nothing if that path has no value. */
void tree_put(struct arena *a, struct pk *root, const char *path, struct pk *value);

#endif
