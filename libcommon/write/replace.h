/*
 * replace.h - check what a run may remove: folders that hold a checkpoint's files and nothing else
 *
 * --force replaces a tag, a universal form, a model folder of Transformers, or an empty folder. Folders are
 * recognized by their entries, which are all compared with the one table in replace.c. If there is an unknown file or
 * folder, a symbolic link, or a mount point, the whole folder is kept. Files with common names (a README) count as
 * ours if manifest.json lists them and they are unchanged since they were written.
 */
#ifndef SHARDKIT_WRITE_REPLACE_H
#define SHARDKIT_WRITE_REPLACE_H

#include "libcommon/base/err.h"

enum replace_what {
    REPLACE_OUT,                /* a finished output: it must also have one of the known forms */
    REPLACE_PART,               /* OUT.part, and the remains of a replaced OUT: may be incomplete */
    REPLACE_JOB,                /* OUT.part.job */
};

/*
 * Check whether the folder at `path` may be removed. Returns -1 with ERR_USAGE, which names the first entry, in the
 * order of names, that is not ours, or reports that the path is not a folder; or with ERR_SYS if it cannot be
 * inspected.
 */
MUST_CHECK int replace_check(const char *path, enum replace_what what, struct err *e);
/*
 * Check whether the output folder at `path` may be removed, like replace_check() with REPLACE_OUT. Entries that exist
 * in the same form in the folder `twin`, which is kept, may be removed as well.
 */
MUST_CHECK int replace_check_sibling(const char *path, const char *twin, struct err *e);
/* Check the folder, then remove it with all its contents. */
MUST_CHECK int replace_remove(const char *path, enum replace_what what, struct err *e);

#endif
