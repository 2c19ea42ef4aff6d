/*
 * content.h - the files of a checkpoint that is to be backed up, once it looks whole
 *
 * A tag that is still being written, or whose tables do not hold, is refused here: everything is opened as a converter
 * would, and the containers' own bytes are compared with what their writer puts there. A step newer than the one that
 * `latest` names may be a save that is not finished: it is a checkpoint only if verify finds no error in it
 * (content_finished()). What the files hold is checked as it is copied and read back (transfer.h, verdict.h).
 */
#ifndef SHARDKIT_CKPT_BACKUP_CONTENT_H
#define SHARDKIT_CKPT_BACKUP_CONTENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"
#include "tools/ckpt-backup/rules/rules.h"

struct content_file {
    char *name;                 /* inside the tag folder, sorted */
    uint64_t size_bytes;
    int64_t mtime_ns;
    dev_t dev;
    ino_t inode;
    unsigned mode;              /* permission bits */
};

struct content {
    char *path, *tag;           /* the tag folder */
    int64_t step;               /* -1: its name tells none */
    int n_files;
    struct content_file *file;
    uint64_t size_bytes;
    bool newer;                 /* than what `latest` in the run's folder names */
    char *warning;              /* the run's folder was named, and has newer steps than this one; NULL: no */
};

/*
 * Open `path`, a tag folder or one with `latest`, for a form: FORM_WEIGHTS leaves out the optimizer's files. ERR_DATA
 * says what is not whole; ERR_USAGE what cannot be backed up at all (an archive, an index that points elsewhere).
 */
MUST_CHECK int content_open(struct content *c, const char *path, enum backup_form form, int threads, struct err *e);
/* The tag folder's files alone, nothing opened; no form leaves any out. */
MUST_CHECK int content_list(struct content *c, const char *tag_folder, struct err *e);
void content_free(struct content *c);
/* Are the files what they were when it was opened? ERR_DATA names the first that is not. */
MUST_CHECK int content_unchanged(const struct content *c, struct err *e);
/* Of one that is `newer`: ERR_DATA where verify found an error in it (rec->unsound). */
struct receipt;
MUST_CHECK int content_finished(const struct content *c, const struct receipt *rec, struct err *e);
/* The step that `latest` in the folder names; -1: none. */
int64_t content_latest(const char *run_folder);

#endif
