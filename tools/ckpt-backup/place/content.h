/*
 * content.h - list the files of a checkpoint that is to be backed up, and check that it seems complete
 *
 * A checkpoint that is still being written, or whose tables are inconsistent, is refused: every file is opened as by a
 * converter, and the bytes around the tensors are compared with those that the writer of the file puts there. A step
 * that is newer than the one that the file `latest` names may be an unfinished save. It is accepted only if verify
 * finds no error in it (content_finished()). The contents of the files are checked while they are copied and read back
 * (transfer.h, backup_verdict.h).
 */
#ifndef SHARDKIT_CKPT_BACKUP_CONTENT_H
#define SHARDKIT_CKPT_BACKUP_CONTENT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"
#include "tools/ckpt-backup/rules/rules.h"

struct content_file {
    char *name;                 /* path inside the checkpoint folder, by which the array is sorted */
    uint64_t size_bytes;
    int64_t mtime_ns, ctime_ns;
    dev_t dev;
    ino_t inode;
    unsigned mode;              /* permission bits */
};

struct content {
    char *path, *tag;           /* path: of the checkpoint folder; tag: its last component, e.g. "global_step1000" */
    int64_t step;               /* -1 if `tag` contains no step number */
    int n_files;
    struct content_file *file;
    uint64_t size_bytes;
    bool newer;                 /* the step is newer than the one that the file `latest` in the run's folder names */
    char *warning;              /* if `path` was the folder of a run that has steps newer than this one, a warning
                                 * about that; else NULL */
};

/*
 * Open `path`, which is the folder of a checkpoint, or a run's folder with a file `latest`, and list the files that a
 * backup of this form contains. FORM_WEIGHTS does not contain the optimizer's files. With FORM_ANY, `path` may be any
 * folder; its files are listed but not opened. Returns -1 with ERR_DATA if a file is missing or damaged, or with
 * ERR_USAGE if the checkpoint cannot be backed up at all, because it is an archive, or an index that refers to files
 * elsewhere.
 */
MUST_CHECK int content_open(struct content *c, const char *path, enum backup_form form, int threads, struct err *e);
/* List all files of the checkpoint folder, regardless of the form, without opening them. */
MUST_CHECK int content_list(struct content *c, const char *tag_folder, struct err *e);
void content_free(struct content *c);
/*
 * Check that the files still have the size, inode and time that they had when the content was opened. Returns -1 with
 * ERR_DATA, which names the first file that differs.
 */
MUST_CHECK int content_unchanged(const struct content *c, struct err *e);
/*
 * Check that the step was not still being written while it was copied. If the content is `newer` and verify has found
 * an error in it (rec->unsound), returns -1 with ERR_DATA.
 */
struct receipt;
MUST_CHECK int content_finished(const struct content *c, const struct receipt *rec, struct err *e);
/*
 * Return the name of the newest step of a run that is known to be complete: the one that the file `latest` or another
 * pointer file names, or the folder *-last of NeMo. In a run without any, whose trainer writes none, it is the newest
 * folder with a file that is written last: trainer_state.json of Transformers, or .metadata of torch.distributed.
 * Returns NULL if there is none. The caller frees it. The folder need not exist.
 */
char *content_latest_tag(const char *run_folder);
/* Return the number of the step that content_latest_tag() returns, or -1. */
int64_t content_latest(const char *run_folder);
/* Return the step that the file `latest` in a place names, or -1 if there is none. */
int64_t content_named_latest(const char *place_folder);

#endif
