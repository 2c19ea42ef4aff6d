/*
 * other_kinds.h - identify folders that have no supported layout by the names in them
 */
#ifndef SHARDKIT_LAYOUT_OTHER_KINDS_H
#define SHARDKIT_LAYOUT_OTHER_KINDS_H

#include <stdbool.h>

/*
 * Returns a description of a folder with these n names, and the next step, for the end of a message: "a PEFT
 * adapter: ...". Names are relative, of files or folders. With `sure` only names that no other kind has are
 * considered. Returns NULL if none is known.
 */
const char *other_kind(const char *const *name, int n, bool sure);

#endif
