/* checkpoint_steps.c - list the checkpoints in a folder of --save, and set aside those that conflict with a run */
#include "tools/train/checkpoint/checkpoint_steps.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/layouts.h"

#define ASIDE "set-aside-"

/* ---- names ---- */

char *checkpoint_pointer(const char *dir, const char *name, struct err *e)
{
    char *path = path_join(dir, name), *text = NULL, *tag = NULL;
    struct stat st;
    uint64_t len;

    if (stat(path, &st) < 0 && errno == ENOENT)
        goto out;
    text = file_slurp(path, 4096, &len, e);
    if (text) {
        size_t skip = strspn(text, " \t\r\n"), n = strcspn(text + skip, "\n");

        while (n && isspace((unsigned char)text[skip + n - 1]))
            n--;
        tag = str_fmt("%.*s", (int)n, text + skip);
        if (n == 0 || strchr(tag, '/') || !strcmp(tag, ".") || !strcmp(tag, "..")) {
            err_data(e, path, ERR_NO_BYTE, "'%.60s' is not the name of a checkpoint folder next to it", tag);
            free(tag);
            tag = NULL;
        }
    }
out:
    free(text);
    free(path);
    return tag;
}

bool checkpoint_is_tag(const char *path)
{
    DIR *d = opendir(path);
    const struct dirent *ent;
    bool yes = false;

    if (!d)
        return false;
    while (!yes && (ent = readdir(d)))
        yes = str_starts(ent->d_name, "mp_rank_") || str_starts(ent->d_name, "layer_") ||
              strstr(ent->d_name, "zero_pp_rank_") || !strcmp(ent->d_name, "zero") ||
              !strcmp(ent->d_name, "index.h5") || str_ends(ent->d_name, ".safetensors") ||
              str_starts(ent->d_name, "pytorch_model") || layout_marks_entry(ent->d_name);
    closedir(d);
    return yes;
}

size_t checkpoint_tag_length(const char *name)
{
    size_t n = str_starts(name, "global_step") ? strlen("global_step") : 0;
    size_t digits = n ? strspn(name + n, "0123456789") : 0;

    return digits ? n + digits : 0;
}

int64_t checkpoint_tag_number(const char *name)
{
    const char *p = name;

    while (*p && !isdigit((unsigned char)*p))
        p++;
    return *p ? strtoll(p, NULL, 10) : -1;
}

/*
 * Returns true if `name` is that of a checkpoint, "global_step20", or of its converted form, "global_step20_universal".
 */
static bool is_step_name(const char *name)
{
    const size_t n = checkpoint_tag_length(name);

    return n && name[n] != '.';
}

static bool is_step_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Returns true if the entry `name` of the folder is a checkpoint, no matter which program wrote it. */
static bool is_checkpoint(const char *dir, const char *name)
{
    char *path;
    bool yes;

    if (name[0] == '.' || str_starts(name, ASIDE) || str_ends(name, ".part") || str_ends(name, ".part.job"))
        return false;
    path = path_join(dir, name);
    yes = is_step_folder(path) && (is_step_name(name) || checkpoint_is_tag(path));
    free(path);
    return yes;
}

/* ---- listing ---- */

static void add_checkpoint_step(struct checkpoint_steps *s, const char *name)
{
    if (!s->n++ || checkpoint_tag_number(name) > checkpoint_tag_number(s->name))
        snprintf(s->name, sizeof s->name, "%s", name);
    if (is_step_name(name) && checkpoint_tag_number(name) > s->newest)
        s->newest = checkpoint_tag_number(name);
}

/*
 * Count a checkpoint that a pointer file names and that is not in this folder. The checkpoint may be elsewhere, and a
 * save must not overwrite the pointer.
 */
static int add_pointer(const char *dir, const char *pointer, struct checkpoint_steps *s, struct err *e)
{
    char *tag = checkpoint_pointer(dir, pointer, e), *path = tag ? path_join(dir, tag) : NULL;

    if (path && !is_step_folder(path))
        add_checkpoint_step(s, tag);
    free(path);
    free(tag);
    return e->kind == ERR_NONE ? 0 : -1;
}

int checkpoint_steps_find(const char *dir, struct checkpoint_steps *s, struct err *e)
{
    DIR *d = opendir(dir);
    const struct dirent *ent;

    *s = (struct checkpoint_steps){ .newest = -1 };
    /*
     * If `dir` is a file and not a folder, nothing is found here. Creating the folder will later fail with a message.
     */
    if (!d && (errno == ENOENT || errno == ENOTDIR))
        return 0;
    if (!d) {
        err_sys(e, dir, "cannot list");
        return -1;
    }
    while ((ent = readdir(d)))
        if (is_checkpoint(dir, ent->d_name))
            add_checkpoint_step(s, ent->d_name);
    closedir(d);
    s->itself = checkpoint_is_tag(dir);
    return add_pointer(dir, "latest", s, e);
}

/* ---- setting checkpoints aside ---- */

struct aside {
    const char *dir;
    int64_t after;
    /* path of the folder to which checkpoints are moved; NULL until something has been moved */
    char *to;
};

static bool is_moved(const struct aside *a, const char *name)
{
    const char *kept = str_starts(name, "keep-") ? name + strlen("keep-") : name;

    if (a->after < 0)
        return is_checkpoint(a->dir, name) || (kept != name && is_step_name(kept));
    return is_step_name(kept) && checkpoint_tag_number(kept) > a->after &&
           (kept != name || is_checkpoint(a->dir, name));
}

static int make_aside(struct aside *a, struct err *e)
{
    const time_t now = time(NULL);
    struct tm tm;
    char text[32];

    strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", gmtime_r(&now, &tm));
    for (int i = 1; i < 1000; i++) {
        free(a->to);
        a->to = i == 1 ? str_fmt("%s/" ASIDE "%s", a->dir, text) : str_fmt("%s/" ASIDE "%s-%d", a->dir, text, i);
        if (mkdir(a->to, 0777) == 0)
            return 0;
        if (errno != EEXIST)
            break;
    }
    err_sys(e, a->to, "cannot create");
    return -1;
}

static int move(struct aside *a, const char *name, struct err *e)
{
    char *from = path_join(a->dir, name), *to = NULL;
    struct stat st;
    int rc = 0;

    if (lstat(from, &st) == 0 && (rc = a->to ? 0 : make_aside(a, e)) == 0) {
        to = path_join(a->to, name);
        rc = rename(from, to);
        if (rc < 0)
            err_sys(e, to, "cannot rename from %s", from);
    }
    free(from);
    free(to);
    return rc;
}

/*
 * Move the pointer files to the new folder, or set `latest` to `tag`. This is done before any checkpoint is moved. If
 * the move is interrupted, a restarted run then finds no pointer and stops, or begins with `tag`.
 */
static int move_pointers(struct aside *a, const char *tag, struct err *e)
{
    static const char *const names[] = { "latest.next", "latest", "latest_universal", LATEST_ITERATION };
    int rc = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++) {
        struct err ignored = {0};
        char *named = a->after < 0 ? NULL : checkpoint_pointer(a->dir, names[i], &ignored);
        const bool moves = named && is_step_name(named) && checkpoint_tag_number(named) > a->after;

        if (moves && !strcmp(names[i], "latest")) {
            char *path = path_join(a->dir, "latest");

            rc = file_replace(path, tag, strlen(tag), e);
            free(path);
        } else if (moves || a->after < 0) {
            rc = move(a, names[i], e);
        }
        free(named);
    }
    return rc;
}

/* List all names before renaming anything, because a folder that changes while it is read may return an entry twice. */
static int list_moved(const struct aside *a, char ***names, int *n, struct err *e)
{
    DIR *d = opendir(a->dir);
    const struct dirent *ent;

    if (!d) {
        err_sys(e, a->dir, "cannot list");
        return -1;
    }
    while ((ent = readdir(d)))
        if (is_moved(a, ent->d_name)) {
            *names = xrealloc(*names, (size_t)(*n + 1) * sizeof **names);
            (*names)[(*n)++] = xstrdup(ent->d_name);
        }
    closedir(d);
    return 0;
}

int checkpoint_steps_set_aside(const char *dir, int64_t after, const char *tag, char *where, size_t size, struct err *e)
{
    struct aside a = { .dir = dir, .after = after };
    char **names = NULL;
    int n = 0, rc = list_moved(&a, &names, &n, e);

    *where = '\0';
    if (rc == 0)
        rc = move_pointers(&a, tag, e);
    for (int i = 0; i < n && rc == 0; i++)
        rc = move(&a, names[i], e);
    if (a.to)
        snprintf(where, size, "%s", a.to);
    if (rc == 0 && a.to) {
        char *inside = path_join(a.to, "latest");

        rc = dir_sync(inside, e) < 0 ? -1 : dir_sync(a.to, e);
        free(inside);
    }
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
    free(a.to);
    return rc;
}
