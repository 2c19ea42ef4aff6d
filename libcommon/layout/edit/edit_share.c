/*
 * edit_share.c - reflinks, and hard links on request
 *
 * A reflink is a separate file that shares blocks until one of the two is written to. A hard link is the same file
 * under another name, so a program that writes into OUT changes IN. Hard links are therefore made only on request,
 * and without reflinks the bytes are copied.
 */
#include "libcommon/layout/edit/edit_share.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/ckpt/manifest.h"

/*
 * Returns true for an error that means the file system, or the pair of file systems, cannot share. Any other error
 * is a failure.
 */
static bool is_refusal(int error)
{
    return error == EXDEV || error == EPERM || error == EMLINK || error == EOPNOTSUPP || error == EINVAL ||
           error == ENOTTY || error == ENOSYS || error == EBADF || error == ETXTBSY;
}

/* Returns -1 with errno set on error. An existing file keeps its bytes if the file system refuses. */
static int clone_file(const char *from, const char *to)
{
    int in = open(from, O_RDONLY | O_CLOEXEC), rc = -1, error;
    int out = in < 0 ? -1 : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    const bool made = out >= 0;

    if (in >= 0 && out < 0 && errno == EEXIST)
        out = open(to, O_WRONLY | O_CLOEXEC);
    if (out >= 0)
        rc = ioctl(out, FICLONE, in);
    error = errno;
    if (rc < 0 && made)
        unlink(to);
    if (out >= 0)
        close(out);
    if (in >= 0)
        close(in);
    errno = error;
    return rc;
}

/*
 * Returns -1 with errno set on error. A symbolic link is followed, because the link itself could lead elsewhere from
 * the new folder.
 */
static int link_file(const char *from, const char *to)
{
    int rc = linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW);

    if (rc == 0 || errno != EEXIST)
        return rc;
    rc = path_same(from, to) ? 0 : -1;          /* an earlier run's link, or the copy that it began */
    errno = EXDEV;
    return rc;
}

int edit_share(const struct files *f, int file, enum edit_way way, const char *to, struct err *e)
{
    uint64_t base;
    const char *from = files_path(f, file, &base);

    if (way == EDIT_COPY)
        return 0;
    if ((way == EDIT_REFLINK ? clone_file : link_file)(from, to) == 0)
        return 1;
    if (is_refusal(errno))
        return 0;
    err_sys(e, to, "cannot share the bytes of %s", from);
    return -1;
}

int edit_make_parent(const char *path, struct err *e)
{
    char *dir = path_parent(path);
    int rc = dir_make(dir, e);

    free(dir);
    return rc;
}

static int make_hole(const char *path, uint64_t size, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666), rc = 0;

    if (fd < 0 || ftruncate(fd, (off_t)size) < 0) {
        err_sys(e, path, "cannot create");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

int edit_share_or_copy(struct edit *x, const struct edit_file *f, const char *dir, bool rehearsal, struct err *e)
{
    char *path = path_join(dir, f->name);
    int rc = edit_make_parent(path, e);

    if (rc == 0 && rehearsal)
        rc = make_hole(path, files_size(x->s->files, f->file), e) < 0 ? -1 : 1;
    if (rc == 0)
        rc = edit_share(x->s->files, f->file, f->way, path, e);
    if (rc == 0)
        rc = files_copy(x->s->files, f->file, path, e);
    free(path);
    return rc < 0 ? -1 : 0;
}

/* ---- capabilities of the result's file system ---- */

/*
 * Returns true if FICLONE works from this file to a file in `dir` or its nearest existing ancestor. The test file
 * has no name.
 */
static bool can_clone(const char *from, const char *dir)
{
    struct err ignored = {0};
    int in = open(from, O_RDONLY | O_CLOEXEC), out = in < 0 ? -1 : file_spool(dir, 0, &ignored);
    const bool can = out >= 0 && ioctl(out, FICLONE, in) == 0;

    if (out >= 0)
        close(out);
    if (in >= 0)
        close(in);
    return can;
}

/* Result for a device. Files of the source may be on several devices, because folders may contain links. */
struct device {
    dev_t dev;
    bool can;
};

static bool device_can_clone(struct device **list, int *n, int *cap, const char *from, const char *dir)
{
    struct stat st;

    if (stat(from, &st) < 0 || st.st_size == 0)
        return false;
    for (int i = 0; i < *n; i++)
        if ((*list)[i].dev == st.st_dev)
            return (*list)[i].can;
    ARRAY_ROOM(*list, *cap, *n + 1);
    (*list)[*n] = (struct device){ st.st_dev, can_clone(from, dir) };
    return (*list)[(*n)++].can;
}

void edit_place(struct edit *x, const struct edit_place *p)
{
    char *dir = path_parent(p->out);
    struct device *list = NULL;
    int n = 0, cap = 0;

    x->place = *p;
    for (int i = 0; i < x->n_files; i++) {
        struct edit_file *f = &x->file[i];
        uint64_t base;
        const char *from = f->file < 0 ? NULL : files_path(x->s->files, f->file, &base);

        f->way = EDIT_COPY;
        if (!from || edit_changes(f) || f->drop || strcmp(f->name, MANIFEST_NAME) == 0)
            continue;
        if (p->hard_links)
            f->way = EDIT_HARD_LINK;
        else if (device_can_clone(&list, &n, &cap, from, dir))
            f->way = EDIT_REFLINK;
    }
    free(list);
    free(dir);
}
