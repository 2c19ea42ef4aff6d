/*
 * other_kinds.h - identify folders whose layout is not supported by the names of their files
 */
#ifndef SHARDKIT_LAYOUT_OTHER_KINDS_H
#define SHARDKIT_LAYOUT_OTHER_KINDS_H

#include <stdbool.h>

/*
 * Returns a description of a folder that contains these n names of files or folders, for the end of a message. The
 * text also names the user's next step: "a PEFT adapter: ...". Names are relative to the folder. If `sure` is true,
 * only names that no other kind of folder has are considered. Returns NULL if the kind is not known.
 */
const char *other_kind(const char *const *name, int n, bool sure);

/*
 * Returns a description of a single file that is not a checkpoint but whose kind is known; otherwise NULL. The text is
 * meant for the end of a message, like that of other_kind().
 */
const char *other_kind_of_file(const char *path);

#endif
