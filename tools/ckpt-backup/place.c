/*
 * place.c - from a path to a kind of place
 */
#include "tools/ckpt-backup/place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

struct place *place_open(const char *path, const struct place_opts *o, bool create, struct err *e)
{
    bool remote = rules_is_remote(path);
    struct place *p;
    struct stat st;
    size_t n = strlen(path);

    /* Not its parents: a disk that is not mounted is not made up for. */
    if (!remote && create && mkdir(path, 0777) < 0 && errno != EEXIST) {
        err_sys(e, path, "cannot create the folder");
        return NULL;
    }
    if (!remote && (stat(path, &st) < 0 || (!S_ISDIR(st.st_mode) && (errno = ENOTDIR)))) {
        err_sys(e, path, "no place of backups");
        return NULL;
    }
    while (n > 1 && path[n - 1] == '/')
        n--;
    p = xcalloc(1, sizeof *p);
    p->ops = remote ? &place_rclone_ops : &place_local_ops;
    p->path = str_fmt("%.*s", (int)n, path);
    p->o = *o;
    p->lock_fd = -1;
    return p;
}

void place_close(struct place *p)
{
    if (!p)
        return;
    if (p->lock_fd >= 0)
        close(p->lock_fd);
    free(p->path);
    free(p);
}

int place_lock(struct place *p, struct err *e)
{
    return p->lock_fd >= 0 ? 0 : p->ops->lock(p, e);
}

static int by_name(const void *a, const void *b)
{
    return str_natural_cmp((*(struct receipt *const *)a)->name, (*(struct receipt *const *)b)->name);
}

int place_list(struct place *p, struct place_receipts *out, struct report *r, struct err *e)
{
    *out = (struct place_receipts){0};
    if (p->ops->receipts(p, out, r, e) < 0) {
        place_receipts_free(out);
        return -1;
    }
    if (out->n)
        qsort(out->receipt, (size_t)out->n, sizeof *out->receipt, by_name);
    return 0;
}

int place_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out, struct err *e)
{
    *out = (struct place_put){0};
    return place_lock(p, e) < 0 ? -1 : p->ops->put(p, c, form, out, e);
}

int place_check(struct place *p, const struct receipt *rec, struct report *r, struct err *e)
{
    return p->ops->check(p, rec, r, e);
}

int place_note(struct place *p, const struct receipt *rec, struct err *e)
{
    return place_lock(p, e) < 0 ? -1 : p->ops->note(p, rec, e);
}

int place_get(struct place *p, const struct receipt *rec, const char *out, struct err *e)
{
    return p->ops->get(p, rec, out, e);
}

int place_remove(struct place *p, const struct receipt *rec, struct err *e)
{
    return place_lock(p, e) < 0 ? -1 : p->ops->remove(p, rec, e);
}
