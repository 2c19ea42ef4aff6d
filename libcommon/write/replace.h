/*
 * replace.h - check which folders a run may remove: those that hold the files of a checkpoint and nothing else
 *
 * --force replaces a tag, a universal form, a model folder of Transformers, or an empty folder. A folder is recognized
 * by its entries, all of which must be in the table in replace.c. If it has an unknown file or folder, a symbolic link,
 * or a mount point, the whole folder is kept. A file with a common name, such as a README, may be removed if
 * manifest.json lists it and it has not changed since it was written.
 */
#ifndef SHARDKIT_WRITE_REPLACE_H
#define SHARDKIT_WRITE_REPLACE_H

#include "libcommon/base/err.h"

enum replace_what {
    REPLACE_OUT,                /* a finished output; the folder must also have one of the known forms */
    REPLACE_PART,               /* OUT.part, or the rest of a replaced OUT; may be incomplete */
    REPLACE_JOB,                /* OUT.part.job */
};

/*
 * Check whether the folder at `path` may be removed. Returns -1 with ERR_USAGE if `path` is not a folder, or if an
 * entry does not belong to the folder. The message names the first such entry in the order of names. Returns -1 with
 * ERR_SYS if the folder cannot be inspected.
 */
MUST_CHECK int replace_check(const char *path, enum replace_what what, struct err *e);
/*
 * Check the folder like replace_check() with REPLACE_OUT. In addition, an entry may be removed if the folder `twin`,
 * which is kept, has the same entry.
 */
MUST_CHECK int replace_check_sibling(const char *path, const char *twin, struct err *e);
/* Check the folder with replace_check(). If it may be removed, remove it with all its contents. */
MUST_CHECK int replace_remove(const char *path, enum replace_what what, struct err *e);

#endif
