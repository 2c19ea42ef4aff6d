/*
 * retain.c - --keep-last: remove old checkpoints while a run saves
 */
#include "tools/train/guard/retain.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/ckpt/source_open.h"
#include "libcommon/ckpt/source_parts.h"
#include "libcommon/layout/layouts.h"
#include "libcommon/write/replace.h"

#define TAG     "global_step"
#define REMOVED ".removed."             /* prefix that a checkpoint's name gets while it is being removed */
/*
 * A checkpoint TAG is kept if there is a file keep-TAG. "keep-" is a prefix and not a suffix, because people list
 * checkpoints with global_step*.
 */
#define KEEP    "keep-"

struct retain {
    struct retain_opts o;
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    bool running, ending;
    int64_t newest;                     /* the iteration that was last passed to retain_after_save(); -1: none */
    int64_t foreign;                    /* the iteration for which a foreign file was last reported; -1: none */
};

/* ---- selecting the checkpoints to remove ---- */

/* Returns the iteration in the name of a checkpoint such as "global_step120". Returns -1 for other names. */
static int64_t iteration_of(const char *name)
{
    const char *digits = name + strlen(TAG);
    char *end;
    long long i;

    if (!str_starts(name, TAG) || *digits < '0' || *digits > '9')
        return -1;
    errno = 0;
    i = strtoll(digits, &end, 10);
    return *end || errno ? -1 : i;
}

static char *tag_path(const struct retain *r, int64_t iteration, const char *before)
{
    return str_fmt("%s/%s" TAG "%lld", r->o.dir, before, (long long)iteration);
}

static bool has_retained_path(char *path)
{
    struct stat st;
    const bool there = lstat(path, &st) == 0;

    free(path);
    return there;
}

static bool is_retained_folder(char *path)
{
    struct stat st;
    const bool is = lstat(path, &st) == 0 && S_ISDIR(st.st_mode);

    free(path);
    return is;
}

/* Returns true if the tables of the checkpoint show that it is complete. Frees `path`. */
static bool is_checkpoint_complete(char *path)
{
    const struct source_opts o = { .threads = 1 };
    struct err e = {0};
    struct source *s = source_open(path, &o, NULL, &e);

    source_close(s);
    free(path);
    return s != NULL;
}

/* Returns true if a file in the checkpoint does not belong to it. The first such file is reported once. */
static bool has_foreign_file(struct retain *r, int64_t iteration)
{
    char *path = tag_path(r, iteration, "");
    struct err e = {0};
    const bool foreign = replace_check(path, REPLACE_OUT, &e) < 0;

    if (foreign && r->foreign != iteration)
        r->o.print_line(r->o.arg, e.msg);
    if (foreign)
        r->foreign = iteration;
    free(path);
    return foreign;
}

static bool may_go(struct retain *r, int64_t iteration)
{
    const bool listed = save_schedule_lists(r->o.schedule, iteration) && save_schedule_due(r->o.schedule, iteration);

    return !listed && iteration >= r->o.first && !has_retained_path(tag_path(r, iteration, KEEP)) &&
           is_checkpoint_complete(tag_path(r, iteration, "")) && !has_foreign_file(r, iteration);
}

static int descending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? 1 : x > y ? -1 : 0;
}

/*
 * List the iterations of all checkpoints up to `newest`, in descending order. Also removes what is left of removals
 * that were interrupted.
 */
static int list_retained_iterations(const struct retain *r, int64_t newest, int64_t **found, struct err *e)
{
    DIR *d = opendir(r->o.dir);
    const struct dirent *ent;
    int n = 0, room = 0;

    *found = NULL;
    if (!d) {
        err_sys(e, r->o.dir, "cannot be read");
        return -1;
    }
    while ((ent = readdir(d))) {
        const int64_t i = iteration_of(ent->d_name);

        if (str_starts(ent->d_name, REMOVED TAG)) {
            char *path = path_join(r->o.dir, ent->d_name);

            if (dir_remove(path, e) < 0)
                r->o.print_line(r->o.arg, e->msg);
            err_clear(e);
            free(path);
        }
        if (i < 0 || i > newest || !is_retained_folder(tag_path(r, i, "")))
            continue;
        if (n == room)
            *found = xrealloc(*found, (size_t)(room = 2 * room + 16) * sizeof **found);
        (*found)[n++] = i;
    }
    closedir(d);
    if (n)
        qsort(*found, (size_t)n, sizeof **found, descending);
    return n;
}

static int remove_one(const struct retain *r, int64_t iteration, struct err *e)
{
    char *path = tag_path(r, iteration, ""), *out = tag_path(r, iteration, REMOVED);
    int rc = 0;

    if (rename(path, out) < 0) {
        err_sys(e, path, "cannot be removed");
        rc = -1;
    } else if (dir_remove(out, e) < 0) {
        rc = -1;
    }
    free(path);
    free(out);
    return rc;
}

static void remove_old_checkpoints(struct retain *r, int64_t newest)
{
    int64_t *found;
    struct err e = {0};
    const int n = list_retained_iterations(r, newest, &found, &e);

    if (n < 0)
        r->o.print_line(r->o.arg, e.msg);
    /* Remove nothing if the newest checkpoint, which `latest` names, is missing. */
    for (int i = (int)r->o.last; i < n && found[0] == newest; i++)
        if (may_go(r, found[i]) && remove_one(r, found[i], &e) < 0) {
            r->o.print_line(r->o.arg, e.msg);
            err_clear(&e);
        }
    free(found);
}

/* ---- the thread ---- */

static void *run_retain_thread(void *retain)
{
    struct retain *r = retain;

    pthread_mutex_lock(&r->lock);
    for (;;) {
        const int64_t newest = r->newest;

        r->newest = -1;
        if (newest < 0 && r->ending)
            break;
        if (newest < 0) {
            pthread_cond_wait(&r->more, &r->lock);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        remove_old_checkpoints(r, newest);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

struct retain *retain_new(const struct retain_opts *o)
{
    struct retain *r = xcalloc(1, sizeof *r);
    sigset_t all, before;

    r->o = *o;
    r->newest = r->foreign = -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->more, NULL);
    /* Block all signals in this thread, so that the main thread handles them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r->running = pthread_create(&r->thread, NULL, run_retain_thread, r) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!r->running)
        o->print_line(o->arg, "no thread for --keep-last: nothing is removed");
    return r;
}

void retain_free(struct retain *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->lock);
    if (r->running)
        pthread_join(r->thread, NULL);
    pthread_cond_destroy(&r->more);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void retain_after_save(struct retain *r, int64_t iteration)
{
    pthread_mutex_lock(&r->lock);
    r->newest = iteration;
    pthread_cond_signal(&r->more);
    pthread_mutex_unlock(&r->lock);
}

int retain_mark(const char *dir, const char *tag, const char *why, struct err *e)
{
    char *path = str_fmt("%s/" KEEP "%s", dir, tag), *line = str_fmt("%s\n", why);
    const int rc = file_replace(path, line, strlen(line), e);

    free(path);
    free(line);
    return rc;
}
