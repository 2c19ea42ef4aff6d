/* place_parts.c - functions that all kinds of places use: the lock, new receipts, comparison with a checkpoint */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/ckpt-backup/place/place.h"

/*
 * Open and lock the file at `path`. The process writes its name to the file, for the messages of other processes. The
 * file is never removed, because another process might open it just before.
 */
int place_acquire_lock(struct place *p, const char *path, struct err *e)
{
    char who[128] = "", host[64] = "";
    ssize_t n;
    int fd = file_lock(path, &p->busy, e);

    if (p->busy) {
        struct err ignored = {0};
        uint64_t size;
        char *holder = file_slurp(path, sizeof who - 1, &size, &ignored);

        if (holder)
            err_clean(holder);
        err_data(e, p->path, ERR_NO_BYTE,
                 "another ckpt-backup%s%s is running in this place; start the command again when that one has ended",
                 holder && *holder ? ", " : "", holder ? holder : "");
        free(holder);
    }
    if (fd < 0)
        return -1;
    gethostname(host, sizeof host - 1);
    n = snprintf(who, sizeof who, "process %ld on %s", (long)getpid(), host);
    if (ftruncate(fd, 0) < 0 || write_all_at(fd, who, (size_t)n, 0) < 0)
        (void)errno;                    /* if the disk is full, the lock works without this text */
    p->lock_fd = fd;
    return 0;
}

void place_add_receipt(struct place_receipts *l, struct receipt *rec)
{
    ARRAY_ROOM(l->receipt, l->cap, l->n + 1);
    l->receipt[l->n++] = rec;
}

void place_receipts_free(struct place_receipts *l)
{
    for (int i = 0; i < l->n; i++)
        receipt_free(l->receipt[i]);
    free(l->receipt);
    *l = (struct place_receipts){0};
}

struct receipt *place_new_receipt(const struct content *c, enum backup_form form)
{
    struct receipt *r = xcalloc(1, sizeof *r);
    char *whole = realpath(c->path, NULL);

    r->name = receipt_name(c->tag, form);
    r->tag = xstrdup(c->tag);
    r->source = whole ? whole : xstrdup(c->path);
    r->step = c->step;
    r->form = form;
    r->copied_s = (int64_t)clock_wall_s();
    r->size_bytes = c->size_bytes;
    r->n_files = c->n_files;
    r->file = xcalloc((size_t)c->n_files + 1, sizeof *r->file);
    for (int i = 0; i < c->n_files; i++)
        r->file[i] = (struct receipt_file){ .name = xstrdup(c->file[i].name), .size_bytes = c->file[i].size_bytes,
                                           .mtime_ns = c->file[i].mtime_ns, .mode = c->file[i].mode };
    return r;
}

static bool has_content_files(const struct receipt *rec, const struct content *c, bool times)
{
    if (rec->n_files != c->n_files)
        return false;
    for (int i = 0; i < c->n_files; i++)
        if (strcmp(rec->file[i].name, c->file[i].name) != 0 || rec->file[i].size_bytes != c->file[i].size_bytes ||
            (times && rec->file[i].mtime_ns != c->file[i].mtime_ns))
            return false;
    return true;
}

bool place_same_sizes(const struct receipt *rec, const struct content *c)
{
    return has_content_files(rec, c, false);
}

bool place_same_files(const struct receipt *rec, const struct content *c)
{
    return has_content_files(rec, c, true);
}

struct transfer_opts place_transfer(const struct place_opts *o, const char *what, struct report *report)
{
    return (struct transfer_opts){ .threads = o->threads, .mem_bytes = o->mem_bytes, .progress = o->progress,
                                   .what = what, .stopped = o->stopped, .report = report };
}

int place_same_bytes(const struct place *p, const struct receipt *rec, const struct content *c, struct err *e)
{
    struct transfer_opts o = place_transfer(&p->o, "compare", NULL);
    struct transfer t = {0};
    int rc;

    if (has_content_files(rec, c, true))
        return 1;
    if (!has_content_files(rec, c, false))
        return 0;
    for (int i = 0; i < rec->n_files; i++) {
        struct transfer_run *r = transfer_add(&t, path_join(c->path, rec->file[i].name), NULL,
                                              rec->file[i].size_bytes);

        r->has_crc = true;
        r->crc = rec->file[i].crc;
    }
    rc = transfer_do(&t, &o, NULL, e);
    transfer_free(&t);
    if (rc == 0)
        return 1;
    if (e->kind != ERR_DATA)
        return -1;
    err_clear(e);
    return 0;
}

void place_refuse_other(const struct place *p, const struct receipt *rec, struct err *e)
{
    err_usage(e, "%s: holds a different backup named %s (copied from %s), which is kept; move it to another folder, or "
                 "give another place", p->path,
              rec->name, rec->source);
}

void place_copy_mtimes(struct receipt *rec, const struct content *c)
{
    for (int i = 0; i < rec->n_files; i++)
        rec->file[i].mtime_ns = c->file[i].mtime_ns;
}

bool place_is_copy_of(const struct receipt *rec, const struct content *listed)
{
    int k = 0, n = 0;

    for (int i = 0; i < rec->n_files; i++, n++) {
        while (k < listed->n_files && strcmp(listed->file[k].name, rec->file[i].name) != 0)
            k++;                        /* both lists are sorted */
        if (k == listed->n_files || listed->file[k].size_bytes != rec->file[i].size_bytes ||
            listed->file[k].mtime_ns != rec->file[i].mtime_ns)
            return false;
    }
    return rec->form == FORM_WEIGHTS || n == listed->n_files;
}
