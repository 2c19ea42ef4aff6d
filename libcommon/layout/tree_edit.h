/*
 * tree_edit.h - find a value of a pickled tree by its path, and convert JSON to the type of the present value
 *
 * This is for changes that users make to files. A path is a sequence of keys with dots between them, such as
 * "args.lr". VALUE is JSON and must have the type of the present value: a number, text, a list of the same, an
 * enum's member. Text needs no quotes if the present value is text.
 */
#ifndef SHARDKIT_LAYOUT_TREE_EDIT_H
#define SHARDKIT_LAYOUT_TREE_EDIT_H

#include "libcommon/format/pickle/pickle.h"

/* Returns the value at "a.b.c" below v, or NULL. *parent, unless NULL, receives the object that contains it. */
struct pk *tree_find(const struct pk *v, const char *path, const struct pk **parent);
/*
 * Parse `text` to a value with the type of `was`, or of any type with any_type. Returns NULL if it has another type
 * or is not JSON.
 */
struct pk *tree_read(struct arena *a, const char *text, const struct pk *was, bool any_type);
/* Returns a description of the values that are accepted in place of this one: "a whole number", "true or false". */
const char *tree_type_words(const struct pk *was);
/* Replace the value at `path`. Does nothing if there is none. */
void tree_put(struct arena *a, struct pk *root, const char *path, struct pk *value);

#endif
