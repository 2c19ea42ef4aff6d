/* out_path.c - the path of an output: where it lies, and the free space there */
#include "libcommon/write/out_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/write/kept.h"
#include "libcommon/write/sink.h"

int convert_free_space(const char *out, uint64_t *bytes, struct err *e)
{
    char *dir = path_parent(out), *up;
    struct statvfs v;
    int rc;

    /* The folder for OUT may not exist yet. Use its nearest existing ancestor. */
    while ((rc = statvfs(dir, &v)) < 0 && errno == ENOENT && strcmp(dir, ".") != 0 && strcmp(dir, "/") != 0) {
        up = path_parent(dir);
        free(dir);
        dir = up;
    }
    if (rc < 0)
        err_sys(e, dir, "cannot determine the free space");
    else
        *bytes = (uint64_t)v.f_bavail * v.f_frsize;
    free(dir);
    return rc;
}

char *convert_resolve_path(const char *path)
{
    char *real = realpath(path, NULL), *parent, *base, *up;

    if (real)
        return real;
    parent = path_parent(path);
    base = path_base(path);
    up = strcmp(parent, path) == 0 ? xstrdup(parent) : convert_resolve_path(parent);
    real = path_join(up, base);
    free(up);
    free(parent);
    free(base);
    return real;
}

bool convert_path_lies_in(const char *inner, const char *outer)
{
    size_t n = strlen(outer);

    return strncmp(inner, outer, n) == 0 && (inner[n] == '/' || inner[n] == '\0');
}

uint64_t convert_required_space(const struct source *s, const struct sink *k)
{
    return k->ops->estimate(k, s) + kept_copy_bytes(k, s);
}
