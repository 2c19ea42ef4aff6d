/* kept.c - share unchanged files with the source by reflinks or hard links, or plan their copies */
#include "libcommon/write/kept.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/names.h"
#include "libcommon/ckpt/manifest.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/write/file_cover.h"
#include "libcommon/write/folder_file.h"

/* ---- capabilities of the result's file system ---- */

/*
 * Returns true if FICLONE works from the file `from` to a file in `dir` or in its nearest existing ancestor. The test
 * uses a file without a name.
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

/*
 * A device, and whether files on it can be cloned. The source's files may be on several devices, because its folders
 * may contain links.
 */
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

void kept_choose_ways(struct kept_file *const *list, int n, struct files *f, const char *out, bool hard_links)
{
    char *dir = path_parent(out);
    struct device *known = NULL;
    int n_known = 0, cap = 0;

    for (int i = 0; i < n; i++) {
        uint64_t base;

        list[i]->way = hard_links ? KEPT_HARD_LINK
                     : device_can_clone(&known, &n_known, &cap, files_path(f, list[i]->file, &base), dir) ? KEPT_REFLINK
                     : KEPT_COPY;
    }
    free(known);
    free(dir);
}

uint64_t kept_copy_bytes(const struct sink *k, const struct source *s)
{
    uint64_t bytes = 0;

    for (int i = 0; i < k->n_kept; i++)
        if (k->kept[i]->way == KEPT_COPY)
            bytes += files_size(source_files(s), k->kept[i]->file);
    return bytes;
}

/* ---- one file ---- */

/*
 * Returns true if the error means that the file system, or the pair of file systems, cannot share files. Any other
 * error is a failure.
 */
static bool is_refusal(int error)
{
    return error == EXDEV || error == EPERM || error == EMLINK || error == EOPNOTSUPP || error == EINVAL ||
           error == ENOTTY || error == ENOSYS || error == EBADF || error == ETXTBSY;
}

/*
 * Make `to` a reflink of `from`. If the file system refuses, and the file `to` already exists, the bytes of `to` are
 * kept. Returns -1 with errno set on error.
 */
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
 * Make `to` a hard link to `from`. If `from` is a symbolic link, the file to which it refers is linked, because a
 * relative symbolic link could refer to another file from the new folder. Returns -1 with errno set on error.
 */
static int link_file(const char *from, const char *to)
{
    int rc = linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW);

    if (rc == 0 || errno != EEXIST)
        return rc;
    rc = path_same(from, to) ? 0 : -1;          /* `to` exists; it is a link that an earlier run made, or a copy that an
                                                 * earlier run began */
    errno = EXDEV;
    return rc;
}

/*
 * Try to give `to` the bytes of a source file by a reflink or a hard link. Returns 1 on success. Returns 0 if the file
 * system refuses, so that the bytes must be copied. If an earlier run began a copy at `to`, the copy is kept.
 */
static int share_kept_file(struct files *f, const struct kept_file *kept, const char *to, struct err *e)
{
    uint64_t base;
    const char *from = files_path(f, kept->file, &base);

    if (kept->way == KEPT_COPY)
        return 0;
    if ((kept->way == KEPT_REFLINK ? clone_file : link_file)(from, to) == 0)
        return 1;
    if (is_refusal(errno))
        return 0;
    err_sys(e, to, "cannot share the bytes of %s", from);
    return -1;
}

/* The list of kept files while they are planned. */
struct kept_planning {
    const struct sink *k;
    struct plan *p;
    struct file_cover *cover;           /* NULL until a file is copied */
};

/* Plan the copy of a file. Its bytes are compared with the CRCs of the records that the file contains. */
static void plan_kept_copy(struct kept_planning *x, struct kept_file *kept, const char *path)
{
    struct plan *p = x->p;
    struct files *f = plan_files(p);
    const struct record rec = { .file = kept->file, .len = files_size(f, kept->file), .name = kept->name };
    struct tmap_slice s = {0};
    int cap = 0;

    if (!x->cover)
        x->cover = file_cover_new(f);
    file_cover_add(x->cover, files_add_record(f, &rec), 0, rec.len, &s, &cap);
    kept->slice = s;
    kept->slice.extent = arena_alloc(x->k->kept_arena, (size_t)s.n_extents * sizeof *s.extent);
    memcpy(kept->slice.extent, s.extent, (size_t)s.n_extents * sizeof *s.extent);
    free(s.extent);
    kept->map = (struct tmap){ .op = TMAP_CONCAT, .dtype = DTYPE_U8, .len = rec.len, .n_slices = 1,
                               .slice = &kept->slice };
    kept->item = plan_add(p, &(struct plan_range){ .map = &kept->map, .len = rec.len, .policy = REPLICAS_FIRST,
                                                   .name = kept->name }, plan_add_sized(p, path, rec.len), 0);
}

static int plan_kept_file(struct kept_planning *x, struct kept_file *kept, struct err *e)
{
    const struct sink *k = x->k;
    struct files *f = plan_files(x->p);
    char *path = path_join(k->dir, kept->name), *dir = path_parent(path);
    int rc = dir_make(dir, e);

    if (rc == 0)
        rc = k->o.rehearsal ? (folder_make_hollow(path, files_size(f, kept->file), e) < 0 ? -1 : 1)
                            : share_kept_file(f, kept, path, e);
    if (rc == 0) {
        kept->way = KEPT_COPY;
        if (files_size(f, kept->file))
            plan_kept_copy(x, kept, path);
        else                            /* an empty file must be created here, because a plan does not create it */
            rc = files_copy(f, kept->file, path, e);
    }
    free(dir);
    free(path);
    return rc < 0 ? -1 : 0;
}

/* ---- the list ---- */

int kept_plan(struct sink *k, struct plan *p, struct err *e)
{
    struct arena *a = arena_new(0);
    struct names *written = names_new(a);
    struct kept_planning x = { .k = k, .p = p };
    const size_t skip = strlen(k->dir) + 1;
    int rc = 0;

    for (int i = 0; i < plan_n_dst(p); i++)
        names_add(written, plan_dst(p, i)->path + skip, i);
    for (int i = 0; i < k->n_kept && rc == 0; i++) {
        k->kept[i]->item = -1;
        if (names_find(written, k->kept[i]->name) >= 0)
            k->kept[i]->has_crc = false;
        else
            rc = plan_kept_file(&x, k->kept[i], e);
    }
    file_cover_free(x.cover);
    arena_free(a);
    return rc;
}

int kept_check(const struct sink *k, struct plan *p, struct err *e)
{
    for (int i = 0; i < k->n_kept; i++) {
        const struct kept_file *kept = k->kept[i];
        const uint32_t crc = kept->item < 0 ? kept->crc : plan_item(p, kept->item)->crc.acc;

        if (!kept->has_crc || !kept->must_match || crc == kept->crc)
            continue;
        err_data(e, files_name(plan_files(p), kept->file), ERR_NO_BYTE,
                 "has crc %08x, " MANIFEST_NAME " lists %08x: the file was changed or exchanged; --accept-mismatch "
                                                "prints a warning instead and continues", crc, kept->crc);
        return -1;
    }
    return 0;
}

bool kept_crc(const struct sink *k, const char *name, uint32_t *crc)
{
    for (int i = 0; i < k->n_kept; i++)
        if (k->kept[i]->has_crc && strcmp(k->kept[i]->name, name) == 0) {
            *crc = k->kept[i]->crc;
            return true;
        }
    return false;
}
