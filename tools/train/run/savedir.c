/*
 * savedir.c - will the folder of --save take a checkpoint?
 *
 * Asked before the first step, for it is known only hours later else: bytes and inodes that are free, and on every
 * host, by doing it, all that a save does: make a folder, a file in it, write, sync, rename both, remove them.
 */
#include "tools/train/run/savedir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/progress.h"
#include "tools/train/run/agree.h"
#include "tools/train/run/trainer.h"

/* ---- room ---- */

/* The folder may be yet to be made: then its nearest parent that is there. False: nobody knows. */
static bool look_at_fs(const char *path, struct statvfs *fs)
{
    char *dir = xstrdup(path);
    bool known;

    while (!(known = statvfs(dir, fs) == 0)) {
        char *up = path_parent(dir);
        bool top = !strcmp(up, dir);

        free(dir);
        dir = up;
        if (top)
            break;
    }
    free(dir);
    return known;
}

/* Layer files of every tensor rank, shards of every rank, the mp_rank files; the folders and pointers beside them. */
static uint64_t files_of_a_save(const struct trainer *t)
{
    const uint64_t mp = (uint64_t)t->topo.tp * (uint64_t)t->topo.pp;

    return (uint64_t)(t->model_config.n_layers + 4) * (uint64_t)t->topo.tp + mp * (uint64_t)t->topo.dp + mp + 8;
}

static int check_room(const struct trainer *t, struct err *e)
{
    const uint64_t need = schedule_checkpoint_bytes((uint64_t)model_n_params(&t->model_config));
    const uint64_t n = files_of_a_save(t);
    struct statvfs fs;
    char a[16], b[16];

    if (!look_at_fs(t->o.save, &fs))
        return 0;
    if ((uint64_t)fs.f_bavail * fs.f_frsize < need) {
        err_usage(e, "%s: %s free, a checkpoint takes %s", t->o.save,
                  bytes_text((uint64_t)fs.f_bavail * fs.f_frsize, a), bytes_text(need, b));
        return -1;
    }
    /* Some file systems have no inodes to count. */
    if (fs.f_files && fs.f_favail < n) {
        err_usage(e, "%s: %llu inodes free, a checkpoint has %llu files", t->o.save, (unsigned long long)fs.f_favail,
                  (unsigned long long)n);
        return -1;
    }
    return 0;
}

/* ---- by doing it ---- */

static int write_block(const char *path, struct err *e)
{
    static const char block[4096];
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = -1;

    if (fd < 0)
        err_sys(e, path, "cannot create");
    else if (write_all_at(fd, block, sizeof block, 0) < 0)
        err_sys(e, path, "cannot write");
    else if (fsync(fd) < 0)
        err_sys(e, path, "cannot sync");
    else
        rc = 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

static int try_rename(const char *from, const char *to, struct err *e)
{
    if (rename(from, to) == 0)
        return 0;
    err_sys(e, to, "cannot rename from %s", from);
    return -1;
}

/* Names are those of a save that was cut off: should we be, the next run removes them. */
static int try_out(const struct trainer *t, struct err *e)
{
    char *was = str_fmt("%s/global_step0.%08x.part", t->o.save, (unsigned)t->place->rank);
    char *is = str_fmt("%s/global_step0.f%07x.part", t->o.save, (unsigned)t->place->rank);
    char *file = path_join(was, "mp_rank_00_model_states.pt"), *moved = path_join(was, "mp_rank_01_model_states.pt");
    struct err ignored = {0};
    int rc = dir_make(was, e);

    if (rc == 0)
        rc = write_block(file, e);
    if (rc == 0)
        rc = try_rename(file, moved, e);
    if (rc == 0)
        rc = try_rename(was, is, e);
    if (rc == 0)
        rc = dir_sync(is, e);
    if (rc == 0)
        rc = dir_remove(is, e);
    else if (dir_remove(was, &ignored) < 0)
        (void)!dir_remove(is, &ignored);
    free(moved);
    free(file);
    free(is);
    free(was);
    return rc;
}

int savedir_check(struct trainer *t, struct err *e)
{
    struct err why = {0};
    int rc;

    if (!t->o.save)
        return 0;
    rc = check_room(t, e);
    if (rc == 0 && !t->o.dry_run && t->place->local_rank == 0 && try_out(t, &why) < 0) {
        err_data(e, "--save", ERR_NO_BYTE, "no checkpoint can be saved from host %s: %s", t->place->host, why.msg);
        rc = -1;
    }
    return agree_all_well(t, rc, e);
}
