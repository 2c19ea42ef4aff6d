/* place.c - open a place by its path, and call the functions of its kind */
#include "tools/ckpt-backup/place/place.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

/*
 * Check that the folder of a place exists. If `create` is true, it need not exist, but its parent must. The parent is
 * never created, because a new parent would hide that a disk is not mounted.
 */
static int check_folder(const char *path, bool create, struct err *e)
{
    char *parent = path_parent(path);
    struct stat st;
    int rc = stat(path, &st);

    if (rc < 0 && errno == ENOENT && create)
        rc = stat(parent, &st);
    if (rc == 0 && !S_ISDIR(st.st_mode)) {
        errno = ENOTDIR;
        rc = -1;
    }
    if (rc < 0)
        err_sys(e, path, "cannot be used as a folder of backups");
    free(parent);
    return rc;
}

struct place *place_open(const char *path, const struct place_opts *o, bool create, struct err *e)
{
    bool remote = rules_is_remote(path);
    struct place *p;
    size_t n = strlen(path);

    if (!remote && check_folder(path, create, e) < 0)
        return NULL;
    while (n > 1 && path[n - 1] == '/')
        n--;
    p = xcalloc(1, sizeof *p);
    p->ops = remote ? &place_rclone_ops : &place_local_ops;
    p->path = str_fmt("%.*s", (int)n, path);
    p->o = *o;
    p->lock_fd = -1;
    return p;
}

int place_check_made(const char *path, struct err *e)
{
    char *folder = path_join(path, RECEIPT_FOLDER);
    int rc = rules_is_remote(path) || access(folder, F_OK) == 0 ? 0 : -1;

    if (rc < 0)
        err_sys(e, path, "is not a folder of backups yet, or its disk is not mounted; mkdir -p '%s' makes it one",
                folder);
    free(folder);
    return rc;
}

static void unlock(struct place *p)
{
    if (p->lock_fd >= 0)
        close(p->lock_fd);
    p->lock_fd = -1;
}

void place_close(struct place *p)
{
    if (!p)
        return;
    unlock(p);
    free(p->path);
    free(p);
}

int place_lock(struct place *p, struct err *e)
{
    return p->lock_fd >= 0 ? 0 : p->ops->lock(p, e);
}

/*
 * Call place_lock() until no other process holds the lock. Returns -1 if it fails otherwise, or if p->o.stopped()
 * returns true.
 */
static int wait_lock(struct place *p, struct err *e)
{
    while (place_lock(p, e) < 0) {
        if (!p->busy || (p->o.stopped && p->o.stopped()))
            return -1;
        err_clear(e);
        sleep(1);
    }
    return 0;
}

static int by_receipt_name(const void *a, const void *b)
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
        qsort(out->receipt, (size_t)out->n, sizeof *out->receipt, by_receipt_name);
    return 0;
}

/*
 * Return the absolute path with all links resolved. The last component need not exist. Returns NULL on failure. The
 * caller frees it.
 */
static char *whole_path(const char *path)
{
    char *whole = realpath(path, NULL), *parent = path_parent(path), *base = path_base(path), *above = NULL;

    if (!whole && (above = realpath(parent, NULL)))
        whole = path_join(above, base);
    free(above);
    free(parent);
    free(base);
    return whole;
}

int place_check_outside(const char *path, const char *tag_folder, struct err *e)
{
    char *place = whole_path(path), *source = whole_path(tag_folder);
    size_t n = source ? strlen(source) : 0;
    bool inside = place && source && strncmp(place, source, n) == 0 && (place[n] == '/' || place[n] == '\0');

    if (inside)
        err_usage(e, "%s: is inside the folder %s that is to be backed up; give a place outside of it",
                  path, tag_folder);
    free(place);
    free(source);
    return inside ? -1 : 0;
}

int place_put(struct place *p, const struct content *c, enum backup_form form, struct place_put *out, struct err *e)
{
    *out = (struct place_put){0};
    if (!rules_is_remote(p->path) && place_check_outside(p->path, c->path, e) < 0)
        return -1;
    return place_lock(p, e) < 0 ? -1 : p->ops->put(p, c, form, out, e);
}

/* A delta is only read from a folder. Refuse one that was moved to a remote. */
static int check_delta_is_local(const struct place *p, const struct receipt *rec, struct err *e)
{
    if (rec->form != FORM_DELTA || !rules_is_remote(p->path))
        return 0;
    err_usage(e, "%s/%s: a delta can only be read in a folder; copy it and its base %s to a folder of backups, with "
                 "their files in %s", p->path, rec->name, rec->base, RECEIPT_FOLDER);
    return -1;
}

int place_check(struct place *p, struct receipt *rec, struct report *r, struct err *e)
{
    if (check_delta_is_local(p, rec, e) < 0)
        return -1;
    return p->ops->check(p, rec, r, e);
}

int place_write_receipt(struct place *p, const struct receipt *rec, struct err *e)
{
    return place_lock(p, e) < 0 ? -1 : p->ops->note(p, rec, e);
}

/*
 * Returns true if the error means that the place cannot be written, such as a snapshot, a read-only mount, or a folder
 * of another user.
 */
static bool is_read_only(const struct err *e)
{
    return e->kind == ERR_SYS && (e->sys == EROFS || e->sys == EACCES || e->sys == EPERM);
}

int place_record_result(struct place *p, struct receipt *rec, bool intact, struct err *e)
{
    struct place_receipts now = {0};
    struct report *ignored = report_new();
    struct err listing = {0};
    int rc = wait_lock(p, e) == 0 ? 1 : is_read_only(e) ? 2 : -1;

    if (rc > 0 && place_list(p, &now, ignored, &listing) < 0) {
        *e = listing;
        rc = -1;
    }
    for (int i = 0; i < now.n && rc > 0; i++)
        if (strcmp(now.receipt[i]->name, rec->name) == 0 && now.receipt[i]->copied_s == rec->copied_s) {
            rec->intact = intact;
            if (intact)
                rec->verified_s = (int64_t)clock_wall_s();
            if (rc == 1)
                rc = p->ops->note(p, rec, e) == 0 ? 0 : is_read_only(e) ? 2 : -1;
            goto out;
        }
    if (rc > 0)
        rc = 1;
out:
    unlock(p);
    place_receipts_free(&now);
    report_free(ignored);
    return rc;
}

int place_get(struct place *p, const struct receipt *rec, const char *out, struct err *e)
{
    return check_delta_is_local(p, rec, e) < 0 ? -1 : p->ops->get(p, rec, out, e);
}

int place_remove(struct place *p, const struct receipt *rec, struct err *e)
{
    return place_lock(p, e) < 0 ? -1 : p->ops->remove(p, rec, e);
}
