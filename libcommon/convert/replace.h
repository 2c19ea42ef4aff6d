/*
 * replace.h - what a run may remove: folders that hold a checkpoint's files and nothing else
 *
 * --force replaces a tag, a universal form, a model folder of Transformers, or an empty folder.
 * Folders are told by what lies in them, each entry against the one table in replace.c: a file
 * that it does not know, a folder more, a symbolic link, something mounted there, and the whole
 * folder stays. Files whose names anybody might use (a README) count as ours when manifest.json
 * lists them and they are still what was written.
 */
#ifndef SHARDKIT_CONVERT_REPLACE_H
#define SHARDKIT_CONVERT_REPLACE_H

#include "libcommon/base/err.h"

enum replace_what {
    REPLACE_OUT,                /* a finished output: it must also be one of the known forms */
    REPLACE_PART,               /* OUT.part and what is left of a replaced OUT: as much as there is */
    REPLACE_JOB,                /* OUT.part.job */
};

/*
 * May the folder at `path` be removed? ERR_USAGE names the first entry, in the order of names,
 * that is not ours, or says that the path is no folder; ERR_SYS when it cannot be looked at.
 */
MUST_CHECK int replace_check(const char *path, enum replace_what what, struct err *e);
/* The same, of an output; whatever is the same in the folder `twin`, which stays, may go from this one. */
MUST_CHECK int replace_check_beside(const char *path, const char *twin, struct err *e);
/* Check, then remove it all. */
MUST_CHECK int replace_remove(const char *path, enum replace_what what, struct err *e);

#endif
