/* inputs.c - compare the output of a command with everything that the command reads */
#include "libcommon/write/inputs.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/write/out_path.h"

enum { MAX_OUT_FOLDERS = 4 };

/* The existing folders of OUT: OUT itself, and the folders that a run removes or renames while it replaces OUT. */
struct out_folders {
    int n;
    char *path[MAX_OUT_FOLDERS];
    struct stat st[MAX_OUT_FOLDERS];
};

void inputs_add(struct inputs *l, const char *name, const char *path)
{
    if (!path)
        return;
    ARRAY_ROOM(l->at, l->cap, l->n + 1);
    l->at[l->n++] = (struct input_path){ name, xstrdup(path) };
}

void inputs_free(struct inputs *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->at[i].path);
    free(l->at);
    *l = (struct inputs){0};
}

/* ---- folders of OUT ---- */

static void find_out_folders(const char *out, struct out_folders *o)
{
    static const char *const suffixes[MAX_OUT_FOLDERS] = { "", ".part", ".old.part", ".gone.part" };
    char *whole = convert_resolve_path(out);    /* without slashes at the end */

    o->n = 0;
    for (int i = 0; i < MAX_OUT_FOLDERS; i++) {
        char *path = str_fmt("%s%s", whole, suffixes[i]);

        if (stat(path, &o->st[o->n]) == 0)
            o->path[o->n++] = path;
        else
            free(path);
    }
    free(whole);
}

static void free_out_folders(struct out_folders *o)
{
    for (int i = 0; i < o->n; i++)
        free(o->path[i]);
}

static bool has_inode_of(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/*
 * Returns the number of the folder of OUT that is, or contains, `path`. Links are resolved. Returns -1 if there is
 * none.
 */
static int find_folder_over(const struct out_folders *o, const char *path)
{
    char *at = o->n ? realpath(path, NULL) : NULL, *up;
    int found = -1;

    while (at && found < 0) {
        struct stat st;

        for (int i = 0; i < o->n && found < 0; i++)
            if (stat(at, &st) == 0 && has_inode_of(&st, &o->st[i]))
                found = i;
        up = strcmp(at, "/") == 0 ? NULL : path_parent(at);
        free(at);
        at = up;
    }
    free(at);
    return found;
}

/* ---- inputs by path ---- */

/* Returns the path of a link in the folder `dir` that leads into a folder of OUT; NULL if there is none. */
static char *find_link_into(const struct out_folders *o, const char *dir)
{
    DIR *d = o->n ? opendir(dir) : NULL;
    struct dirent *ent;
    char *found = NULL;

    while (d && !found && (ent = readdir(d))) {
        char *path = path_join(dir, ent->d_name);
        struct stat st;

        if (strcmp(ent->d_name, ".") != 0 && strcmp(ent->d_name, "..") != 0 && lstat(path, &st) == 0 &&
            S_ISLNK(st.st_mode) && find_folder_over(o, path) >= 0)
            found = path;
        else
            free(path);
    }
    if (d)
        closedir(d);
    return found;
}

static int check_input_outside(const struct out_folders *o, const struct input_path *in, const char *out,
                               struct err *e)
{
    const int over = find_folder_over(o, in->path);
    char *link = over < 0 ? find_link_into(o, in->path) : NULL;

    if (over >= 0 && path_same(out, in->path))
        err_usage(e, "%s: is the input %s (%s); give another OUT", out, in->path, in->name);
    else if (over >= 0 && path_same(o->path[over], in->path))
        err_usage(e, "%s: is inside the input %s (%s); give another OUT", out, in->path, in->name);
    else if (over >= 0 || link)
        err_usage(e, "%s: contains the input %s (%s); give another OUT", out, link ? link : in->path, in->name);
    free(link);
    return e->kind == ERR_NONE ? 0 : -1;
}

int inputs_check_out(const struct inputs *l, const char *out, struct err *e)
{
    struct out_folders o;
    int rc = 0;

    find_out_folders(out, &o);
    for (int i = 0; i < l->n && rc == 0; i++)
        rc = check_input_outside(&o, &l->at[i], out, e);
    free_out_folders(&o);
    return rc;
}

/* ---- checkpoints ---- */

/*
 * Check that no file of the source lies in OUT. In each folder of the source, the first file and the links are
 * examined.
 */
static int check_files_outside(const struct out_folders *o, const struct source *s, const char *out, struct err *e)
{
    char *checked = NULL;
    int rc = 0;

    for (int i = 0; o->n && i < files_count(source_files(s)) && rc == 0; i++) {
        const char *path = files_path(source_files(s), i, NULL);
        char *dir = path ? path_parent(path) : NULL;
        struct stat st;

        if (path && (!checked || strcmp(dir, checked) != 0 || (lstat(path, &st) == 0 && S_ISLNK(st.st_mode))) &&
            find_folder_over(o, path) >= 0) {
            err_usage(e, "%s: contains %s, which the input %s uses; give another OUT", out, path, source_path(s));
            rc = -1;
        }
        if (dir) {
            free(checked);
            checked = dir;
        }
    }
    free(checked);
    return rc;
}

int inputs_check_source(const char *name, const struct source *s, const char *out, struct err *e)
{
    char *in = convert_resolve_path(source_path(s)), *to = convert_resolve_path(out);
    char *of = name ? str_fmt(" (%s)", name) : xstrdup("");
    struct out_folders o;
    int rc = -1;

    find_out_folders(out, &o);
    if (strcmp(in, to) == 0)
        err_usage(e, "%s: is the input itself%s", out, of);
    else if (convert_path_lies_in(to, in))
        err_usage(e, "%s: is inside the input %s%s", out, source_path(s), of);
    else if (convert_path_lies_in(in, to) || find_folder_over(&o, source_path(s)) >= 0)
        err_usage(e, "%s: contains the input %s%s", out, source_path(s), of);
    else
        rc = check_files_outside(&o, s, out, e);
    free_out_folders(&o);
    free(of);
    free(in);
    free(to);
    return rc;
}

/* ---- single files ---- */

/* Returns true if the file with the inode in *st lies directly in the folder `path`. */
static bool is_file_in(const struct stat *st, const char *path)
{
    struct stat in;
    struct dirent *ent;
    bool same = false;
    DIR *d = opendir(path);

    while (d && !same && (ent = readdir(d))) {
        char *file = path_join(path, ent->d_name);

        same = stat(file, &in) == 0 && S_ISREG(in.st_mode) && has_inode_of(st, &in);
        free(file);
    }
    if (d)
        closedir(d);
    return same;
}

int inputs_check_file(const struct inputs *l, const char *file, struct err *e)
{
    struct stat st;

    if (stat(file, &st) < 0)
        return 0;
    for (int i = 0; i < l->n && e->kind == ERR_NONE; i++) {
        const struct input_path *in = &l->at[i];

        if (path_same(file, in->path))
            err_usage(e, "%s: is the input %s (%s); give another name", file, in->path, in->name);
        else if (is_file_in(&st, in->path))
            err_usage(e, "%s: is a file of the input %s (%s); give another name", file, in->path, in->name);
    }
    return e->kind == ERR_NONE ? 0 : -1;
}
