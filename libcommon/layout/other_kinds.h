/*
 * other_kinds.h - folders that are no checkpoint of a layout here, by the names in them
 */
#ifndef SHARDKIT_LAYOUT_OTHER_KINDS_H
#define SHARDKIT_LAYOUT_OTHER_KINDS_H

#include <stdbool.h>

/*
 * What a folder with these n names is, and the next step, for the end of a message: "a PEFT adapter: ...". Names are
 * relative, of files or folders. sure: by names that no other kind has. NULL: none of them is known.
 */
const char *other_kind(const char *const *name, int n, bool sure);

#endif
