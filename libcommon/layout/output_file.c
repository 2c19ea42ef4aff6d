/* output_file.c - check the name of a single file that a command writes */
#include "libcommon/layout/output_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/inputs.h"
#include "libcommon/write/out_path.h"

/* Returns true if the file is one of those that are read. */
static bool is_read(const struct output_file *o)
{
    struct stat st, in;
    bool same = o->in && path_same(o->path, o->in);

    if (stat(o->path, &st) < 0)
        return false;
    for (int i = 0; o->read && i < files_count(o->read) && !same; i++) {
        const char *path = files_path(o->read, i, NULL);

        same = path && stat(path, &in) == 0 && in.st_dev == st.st_dev && in.st_ino == st.st_ino;
    }
    return same;
}

/* Returns true if the file is a link to a pointer file in the folder `run`. */
static bool is_pointer_of(const char *path, const char *run)
{
    struct stat st;
    const char *name;
    bool same = false;

    for (int i = 0; stat(path, &st) == 0 && (name = layout_pointer_name(i)) && !same; i++) {
        char *pointer = path_join(run, name);

        same = path_same(path, pointer);
        free(pointer);
    }
    return same;
}

static bool is_pointer(const struct output_file *o)
{
    char *base = path_base(o->path), *run = o->opened ? path_parent(o->opened) : NULL;
    const char *name;
    bool pointer = (o->in && is_pointer_of(o->path, o->in)) || (run && is_pointer_of(o->path, run));

    for (int i = 0; (name = layout_pointer_name(i)) && !pointer; i++)
        pointer = strcmp(base, name) == 0;
    free(run);
    free(base);
    return pointer;
}

static bool lies_in_folder(const char *path, const char *folder, const char *suffix)
{
    char *outer = str_fmt("%s%s", folder, suffix), *in = convert_resolve_path(path);
    char *dir = convert_resolve_path(outer);
    bool inside = convert_path_lies_in(in, dir);

    free(dir);
    free(in);
    free(outer);
    return inside;
}

static int check_outside(const struct output_file *o, struct err *e)
{
    static const char *const made_in[] = { "", ".part", ".part.job", ".old.part", ".gone.part", ".kept" };
    struct stat st;
    char *out = o->out ? convert_resolve_path(o->out) : NULL;   /* without slashes at the end */
    int rc = 0;

    for (size_t i = 0; out && rc == 0 && i < sizeof made_in / sizeof *made_in; i++)
        if (lies_in_folder(o->path, out, made_in[i])) {
            err_usage(e, "%s: is inside the output %s%s; give a file in another folder", o->path, o->out, made_in[i]);
            rc = -1;
        }
    if (rc == 0 && o->opened && stat(o->opened, &st) == 0 && S_ISDIR(st.st_mode) &&
        lies_in_folder(o->path, o->opened, "")) {
        err_usage(e, "%s: is inside the checkpoint %s; give a file in another folder", o->path, o->opened);
        rc = -1;
    }
    free(out);
    return rc;
}

static int check_parent(const struct output_file *o, struct err *e)
{
    char *dir = path_parent(o->path);
    struct stat st;
    int rc = -1;

    if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
        err_usage(e, "%s: the folder %s does not exist; create it first", o->path, dir);
    else if (layout_of_folder(dir))
        err_usage(e, "%s: %s is the folder of a checkpoint; give a file in another folder", o->path, dir);
    else if (access(dir, W_OK | X_OK) < 0)
        err_sys(e, o->path, "cannot create a file in %s", dir);
    else
        rc = 0;
    free(dir);
    return rc;
}

int output_folder_check(const char *path, struct err *e)
{
    char *parent = path_parent(path);
    const char *held = layout_of_folder(path) ? path : layout_of_folder(parent) ? parent : NULL;

    if (held)
        err_usage(e, "%s: %s is the folder of a checkpoint; give another folder", path, held);
    free(parent);
    return held ? -1 : 0;
}

int output_file_check(const struct output_file *o, struct err *e)
{
    struct stat st, link;
    bool there = lstat(o->path, &link) == 0, followed = stat(o->path, &st) == 0;

    if (followed && S_ISDIR(st.st_mode)) {
        err_usage(e, "%s: is a folder, but must be the name of a file", o->path);
        return -1;
    }
    if (followed && !S_ISREG(st.st_mode) && o->devices)
        return 0;
    if (is_read(o)) {
        err_usage(e, "%s: is a file of the checkpoint itself", o->path);
        return -1;
    }
    if (is_pointer(o)) {
        err_usage(e, "%s: is the file that names the latest checkpoint of a run; give another name", o->path);
        return -1;
    }
    if (o->inputs && inputs_check_file(o->inputs, o->path, e) < 0)
        return -1;
    if (there && !S_ISREG(link.st_mode) && !o->devices) {
        err_usage(e, "%s: is not a regular file; give another name", o->path);
        return -1;
    }
    if (check_outside(o, e) < 0 || check_parent(o, e) < 0)
        return -1;
    if (there && !o->replace) {
        err_usage(e, "%s: exists already; --force replaces it", o->path);
        return -1;
    }
    return 0;
}
