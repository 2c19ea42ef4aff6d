/*
 * content.h - list the files of a checkpoint that is to be backed up, after checking that it looks whole
 *
 * A tag that is still being written, or whose tables are inconsistent, is refused here: every file is opened as a
 * converter would open it, and the containers' own bytes are compared with what their writer puts there. A step newer
 * than the one that `latest` names may be an unfinished save: it is accepted as a checkpoint only if verify finds no
 * error in it (content_finished()). The contents of the files are checked while they are copied and read back
 * (transfer.h, verdict.h).
 */
#ifndef SHARDKIT_CKPT_BACKUP_CONTENT_H
#define SHARDKIT_CKPT_BACKUP_CONTENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"
#include "tools/ckpt-backup/rules/rules.h"

struct content_file {
    char *name;                 /* path inside the tag folder; the array is sorted by it */
    uint64_t size_bytes;
    int64_t mtime_ns;
    dev_t dev;
    ino_t inode;
    unsigned mode;              /* permission bits */
};

struct content {
    char *path, *tag;           /* path: of the tag folder; tag: the last component of the path */
    int64_t step;               /* -1 if the tag's name gives no step number */
    int n_files;
    struct content_file *file;
    uint64_t size_bytes;
    bool newer;                 /* the step is newer than the one that `latest` in the run's folder names */
    char *warning;              /* set if the path was a run's folder that has steps newer than this one; else NULL */
};

/*
 * Open `path`, a tag folder or a folder with `latest`, and list its files for a form: FORM_WEIGHTS leaves out the
 * optimizer's files. For FORM_ANY `path` is a folder of any files, which are listed and not opened. Returns -1 with
 * ERR_DATA if a file is missing or damaged, or with ERR_USAGE if the checkpoint cannot be backed up at all (an archive,
 * an index that points elsewhere).
 */
MUST_CHECK int content_open(struct content *c, const char *path, enum backup_form form, int threads, struct err *e);
/* List all files of the tag folder, for any form, without opening a file. */
MUST_CHECK int content_list(struct content *c, const char *tag_folder, struct err *e);
void content_free(struct content *c);
/*
 * Check that the files still have the size, inode and time that they had when they were opened. ERR_DATA names the
 * first file that differs.
 */
MUST_CHECK int content_unchanged(const struct content *c, struct err *e);
/*
 * Check that the step was not being written while it was copied. Returns -1 with ERR_DATA if the content is `newer` and
 * verify found an error in it (rec->unsound).
 */
struct receipt;
MUST_CHECK int content_finished(const struct content *c, const struct receipt *rec, struct err *e);
/* Return the step that `latest` in the folder names, or -1 if there is none. */
int64_t content_latest(const char *run_folder);

#endif
