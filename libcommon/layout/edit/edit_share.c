/*
 * edit_share.c - reflinks and hard links
 */
#include "libcommon/layout/edit/edit_share.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "libcommon/base/mem.h"

static int clone_file(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = out < 0 ? -1 : ioctl(out, FICLONE, in);

    if (out >= 0) {
        close(out);
        if (rc < 0)
            unlink(to);
    }
    if (in >= 0)
        close(in);
    return rc;
}

int edit_share(const struct files *f, int file, const char *to, struct err *e)
{
    uint64_t base;
    const char *from = files_path(f, file, &base);

    if (unlink(to) < 0 && errno != ENOENT) {            /* what a run before this one left */
        err_sys(e, to, "cannot remove");
        return -1;
    }
    /* What a symbolic link leads to: the link itself would lead elsewhere from there. */
    if (clone_file(from, to) == 0 || linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0)
        return 1;
    if (errno == EXDEV || errno == EPERM || errno == EMLINK || errno == EOPNOTSUPP)
        return 0;
    err_sys(e, to, "cannot link to %s", from);
    return -1;
}

int edit_make_parent(const char *path, struct err *e)
{
    char *dir = path_parent(path);
    int rc = dir_make(dir, e);

    free(dir);
    return rc;
}

int edit_share_or_copy(struct files *f, int file, const char *dir, const char *name, struct err *e)
{
    char *path = path_join(dir, name);
    int rc = edit_make_parent(path, e) < 0 ? -1 : edit_share(f, file, path, e);

    if (rc == 0)
        rc = files_copy(f, file, path, e);
    free(path);
    return rc < 0 ? -1 : 0;
}
