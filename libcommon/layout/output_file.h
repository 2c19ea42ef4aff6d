/*
 * output_file.h - check the name of a single file that a command writes: a certificate, a printed tensor, a log
 *
 * Such a file never takes the place of a file that the command reads, of a file of a checkpoint, or of the pointer file
 * that names a run's latest checkpoint. The check comes before the work, so a name that cannot be used costs no time.
 */
#ifndef SHARDKIT_LAYOUT_OUTPUT_FILE_H
#define SHARDKIT_LAYOUT_OUTPUT_FILE_H

#include <stdbool.h>

#include "libcommon/base/err.h"

struct files;
struct inputs;

struct output_file {
    const char *path;           /* name of the file to be written */
    bool replace;               /* an existing file is replaced or extended; false: it is an error */
    bool devices;               /* pipes, devices and links to other files are permitted; false: only regular files
                                 * are */
    const struct files *read;   /* files of the checkpoint that is read; may be NULL */
    const char *in;             /* file or folder that the user names as input; may be NULL */
    const char *opened;         /* tag folder to which `in` led; may be NULL */
    const struct inputs *inputs;        /* other files and folders that the command reads; may be NULL */
    const char *out;            /* folder that the command writes; may be NULL, need not exist */
};

/*
 * Check that the file can be written. Returns -1 with ERR_USAGE in these cases: the file is one of the files that are
 * read or a file of `inputs` (also by a hard link or a symbolic link); it is in a folder that holds a checkpoint, in
 * `opened`, in `out`, or in a folder in which `out` is made; it has the name of a pointer file; it exists and may not
 * be replaced; it is a folder; or its own folder does not exist. Returns -1 with ERR_SYS if no file can be created in
 * its folder.
 */
MUST_CHECK int output_file_check(const struct output_file *o, struct err *e);
/*
 * Check the path of a folder into which files for the user are written. The folder need not exist. Returns -1 with
 * ERR_USAGE if this folder, or the folder that contains it, holds a checkpoint.
 */
MUST_CHECK int output_folder_check(const char *path, struct err *e);

#endif
