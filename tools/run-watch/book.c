/*
 * book.c - the file of stored data, and its lock
 */
#include "tools/run-watch/book.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"

/*
 * The longest time in seconds that this process waits for the lock. The process that holds the lock may be sending
 * alarms, and each takes up to half a minute.
 */
enum { LOCK_WAIT_S = 120 };
static const uint64_t book_max_bytes = 64 << 20;

char *book_path(const char *path, struct err *e)
{
    const char *xdg = getenv("XDG_STATE_HOME"), *home = getenv("HOME");

    if (path)
        return xstrdup(path);
    if (xdg && *xdg == '/')
        return path_join(xdg, "run-watch.json");
    if (home && *home == '/')
        return path_join(home, ".local/state/run-watch.json");
    err_data(e, "HOME", ERR_NO_BYTE, "is not set, so there is no place to remember anything; give --state FILE");
    return NULL;
}

/*
 * Create the folder of the book, but only if the user named no path: the folder of a path that the user named must
 * already exist.
 */
static int make_book_folder(const struct book *b, const char *named, struct err *e)
{
    char *dir = path_parent(b->path);
    int rc = named ? 0 : dir_make(dir, e);

    free(dir);
    return rc;
}

static int acquire_book_lock(struct book *b, struct err *e)
{
    char *path = str_fmt("%s.lock", b->path);
    const double begun = clock_s();
    struct timespec nap = { 0, 20000000 };
    int rc = -1;

    b->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (b->lock < 0) {
        err_sys(e, path, "cannot open");
        goto out;
    }
    while (flock(b->lock, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            err_sys(e, path, "cannot lock");
            goto out;
        }
        if (clock_s() - begun > LOCK_WAIT_S) {
            err_data(e, path, ERR_NO_BYTE, "another run-watch has locked it for %d s; it may be stopped (fuser prints "
                                           "the process)",
                     LOCK_WAIT_S);
            goto out;
        }
        nanosleep(&nap, NULL);
    }
    rc = 0;
out:
    free(path);
    return rc;
}

/* Rename a book that cannot be parsed. Its records are lost, but the check of the run continues. */
static int rename_damaged_book(const struct book *b, struct err *e)
{
    char *aside = str_fmt("%s.damaged", b->path);
    int rc = rename(b->path, aside);

    if (rc < 0)
        err_sys(e, b->path, "is damaged, and cannot be renamed to %s", aside);
    free(aside);
    return rc;
}

int book_open(struct book *b, const char *path, bool *damaged, struct err *e)
{
    uint64_t size;
    char *text;

    *b = (struct book){ .lock = -1 };
    *damaged = false;
    b->path = book_path(path, e);
    if (!b->path || make_book_folder(b, path, e) < 0 || acquire_book_lock(b, e) < 0)
        return -1;
    if (access(b->path, F_OK) == 0) {
        text = file_slurp(b->path, book_max_bytes, &size, e);
        if (!text)
            return -1;
        b->all = json_loadb(text, size, 0, NULL);
        free(text);
        if (!json_is_object(b->all)) {
            *damaged = true;
            json_decref(b->all);
            b->all = NULL;
            if (rename_damaged_book(b, e) < 0)
                return -1;
        }
    }
    if (!b->all)
        b->all = json_object();
    return 0;
}

json_t *book_part(struct book *b, const char *name)
{
    json_t *part = json_object_get(b->all, name);

    if (!json_is_object(part)) {
        part = json_object();
        json_object_set_new(b->all, name, part);
    }
    return part;
}

int book_save(struct book *b, struct err *e)
{
    char *text = text_dump(b->all, JSON_INDENT(1) | JSON_SORT_KEYS);
    char *left = str_fmt("%s.%ld.part", b->path, (long)getpid());
    int rc;

    /*
     * Remove the temporary file of a killed process that had the same pid. No other process can be using it, because
     * the book is locked.
     */
    unlink(left);
    rc = file_replace(b->path, text, strlen(text), e);
    free(left);
    free(text);
    return rc;
}

void book_close(struct book *b)
{
    if (b->lock >= 0)
        close(b->lock);
    json_decref(b->all);
    free(b->path);
    *b = (struct book){ .lock = -1 };
}

double book_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}
