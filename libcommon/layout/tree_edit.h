/*
 * tree_edit.h - a value of a pickled tree by its path, and JSON that takes the present one's type
 *
 * For what users change in files: a path is "args.lr", keys with dots between them. VALUE is JSON and stays what the
 * present one is: a number, text, a list of the same, an enum's member; text needs no quotes where text stands now.
 */
#ifndef SHARDKIT_LAYOUT_TREE_EDIT_H
#define SHARDKIT_LAYOUT_TREE_EDIT_H

#include "libcommon/format/pickle/pickle.h"

/* The value at "a.b.c" below v, and, unless NULL, what it is a value of; NULL: there is none. */
struct pk *tree_find(const struct pk *v, const char *path, const struct pk **parent);
/* The value that `text` is, with the type of `was` unless any will do; NULL: it has another, or is no JSON. */
struct pk *tree_read(struct arena *a, const char *text, const struct pk *was, bool any_type);
/* What a value like this one is given as, for messages: "a whole number", "true or false". */
const char *tree_type_words(const struct pk *was);
/* Put a value in the place of the one at `path`; nothing where there is none. */
void tree_put(struct arena *a, struct pk *root, const char *path, struct pk *value);

#endif
