/* staging.c - lock OUT.part, handle what earlier runs have left, and rename the finished folder to OUT */
#include "libcommon/write/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/write/replace.h"

enum { FINGERPRINT_MAX = 64 << 20, WAIT_STEP_MS = 50, WAIT_LIMIT_MS = 600000 };

static bool is_staging_path_present(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

static char *job_file(const struct staging *s, const char *name)
{
    return path_join(s->job, name);
}

/*
 * Acquire the lock `name` in the job folder. Returns the descriptor of the lock, or -1. If another process holds the
 * lock, *e is not set.
 */
static int acquire_job_lock(const struct staging *s, const char *name, struct err *e)
{
    char *path = job_file(s, name);
    bool busy;
    int fd = file_lock(path, &busy, e);

    free(path);
    return fd;
}

static bool fingerprint_is(const struct staging *s, const char *fingerprint)
{
    char *path = job_file(s, "fingerprint"), *text;
    struct err ignored = {0};
    uint64_t size;
    bool same;

    text = file_slurp(path, FINGERPRINT_MAX, &size, &ignored);
    same = text && size == strlen(fingerprint) && memcmp(text, fingerprint, size) == 0;
    free(text);
    free(path);
    return same;
}

/*
 * Returns true if the job folder has a fingerprint. Without a fingerprint, its run was killed before it began any work.
 */
static bool has_job_fingerprint(const struct staging *s)
{
    char *path = job_file(s, "fingerprint");
    bool there = is_staging_path_present(path);

    free(path);
    return there;
}

/* Return the inode number that was recorded when OUT.part was created, or 0 if none was recorded. */
static unsigned long long read_part_inode(const struct staging *s)
{
    char *path = job_file(s, "folder"), *text;
    struct err ignored = {0};
    unsigned long long ino = 0;
    uint64_t size;

    text = file_slurp(path, 64, &size, &ignored);
    if (text)
        ino = strtoull(text, NULL, 10);
    free(text);
    free(path);
    return ino;
}

static bool has_inode(const char *path, unsigned long long ino)
{
    struct stat st;

    return ino && lstat(path, &st) == 0 && st.st_ino == ino;
}

static int record_part_inode(const struct staging *s, struct err *e)
{
    char *path = job_file(s, "folder"), text[32];
    struct stat st;
    int rc = lstat(s->part, &st);

    if (rc < 0)
        err_sys(e, s->part, "cannot read the folder");
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)st.st_ino);
    if (rc == 0)
        rc = file_replace(path, text, strlen(text), e);
    free(path);
    return rc;
}

static int sweep_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
    (void)st;
    return type == FTW_F && file_is_half_written(path + place->base) ? unlink(path) : 0;
}

static int remove_job_leftovers(const char *dir, struct err *e)
{
    enum { MAX_OPEN = 16 };

    if (nftw(dir, sweep_entry, MAX_OPEN, FTW_PHYS) == 0)
        return 0;
    err_sys(e, dir, "cannot remove files that an interrupted run left");
    return -1;
}

static int make_folders(struct staging *s, const char *fingerprint, const struct staging_opts *o, struct err *e)
{
    char *path = job_file(s, "fingerprint"), *parent = path_parent(s->out), name[32];
    int rc;

    s->made = dir_missing(parent);
    rc = dir_make(s->job, e);
    free(parent);
    snprintf(name, sizeof name, "lock.%d", o->part);
    if (rc == 0 && (s->lock_fd = acquire_job_lock(s, name, e)) < 0) {
        if (e->kind == ERR_NONE)
            err_data(e, s->part, ERR_NO_BYTE, "another process is writing it");
        rc = -1;
    }
    /*
     * Remove the temporary files of killed processes. Such a file would prevent a process with the same process id from
     * creating its own.
     */
    if (rc == 0)
        rc = remove_job_leftovers(s->job, e);
    if (rc == 0)
        rc = dir_make(s->part, e);
    if (rc == 0 && !has_inode(s->part, read_part_inode(s)))
        rc = record_part_inode(s, e);
    if (rc == 0 && !s->resumed)
        rc = file_replace(path, fingerprint, strlen(fingerprint), e);
    free(path);
    return rc;
}

/*
 * Handle an existing OUT.part or an existing job folder. Returns 0 if the run can go on. If the run continues the old
 * work, s->resumed is set. Otherwise the old folders have been removed.
 */
static int handle_leftovers(struct staging *s, const char *fingerprint, const struct staging_opts *o, struct err *e)
{
    bool same = fingerprint_is(s, fingerprint), begun = has_job_fingerprint(s);

    if (!is_staging_path_present(s->part) && !is_staging_path_present(s->job))
        return 0;
    if (!is_staging_path_present(s->job)) {              /* a conversion creates the job folder first and removes it
                                                          * last, so no conversion made this OUT.part */
        err_usage(e, "%s: exists and is not what a conversion left; move it to another folder", s->part);
        return -1;
    }
    if ((o->resume || o->n_parts > 1) && same &&
        (!is_staging_path_present(s->part) || has_inode(s->part, read_part_inode(s)))) {
        s->resumed = is_staging_path_present(s->part);
        return 0;
    }
    s->lock_fd = acquire_job_lock(s, "lock.0", e);
    if (s->lock_fd < 0) {
        err_data(e, s->part, ERR_NO_BYTE, "another process is writing it");
        return -1;
    }
    if (begun && !o->force) {
        err_usage(e, "%s: holds the unfinished result of an interrupted run%s", s->part,
                  same && !o->resume ? "; --resume continues it, --force starts from the beginning"
                                     : ", from another input or with other options; --force starts from the beginning");
        return -1;
    }
    /* Check both folders before removing either of them. */
    if ((is_staging_path_present(s->part) && replace_check(s->part, REPLACE_PART, e) < 0) ||
        replace_check(s->job, REPLACE_JOB, e) < 0 ||
        (is_staging_path_present(s->part) && dir_remove(s->part, e) < 0) || dir_remove(s->job, e) < 0)
        return -1;
    close(s->lock_fd);
    s->lock_fd = -1;
    return 0;
}

/* ---- replaced outputs ---- */

static char *strip_trailing_slashes(const char *out)
{
    int n = (int)strlen(out);

    while (n > 1 && out[n - 1] == '/')
        n--;
    return str_fmt("%.*s", n, out);
}

/*
 * Keep the old OUT, which is now at `path`, because something appeared in it while it was being replaced. Renames it to
 * OUT.kept and sets s->kept.
 */
static int keep_aside(struct staging *s, const char *path, struct err *e)
{
    char *to = str_fmt("%s.kept", s->out);

    for (int i = 2; is_staging_path_present(to); i++) {
        free(to);
        to = str_fmt("%s.kept-%d", s->out, i);
    }
    free(s->kept);
    s->kept = to;
    if (rename(path, to) == 0)
        return 0;
    err_sys(e, to, "cannot rename from %s", path);
    return -1;
}

/*
 * Remove the old OUT, which is now at `path`. It is renamed first, so that a partly removed folder never has the name
 * OUT.
 */
static int remove_old(struct staging *s, const char *path, enum replace_what what, struct err *e)
{
    char *gone = str_fmt("%s.gone.part", s->out);
    struct err foreign = {0};
    int rc = 0;

    if (replace_check(path, what, &foreign) < 0) {
        rc = keep_aside(s, path, e);
    } else if (strcmp(path, gone) != 0) {
        if (is_staging_path_present(gone))
            rc = remove_old(s, gone, REPLACE_PART, e);
        if (rc == 0 && rename(path, gone) < 0) {
            err_sys(e, gone, "cannot rename from %s", path);
            rc = -1;
        }
    }
    if (rc == 0 && is_staging_path_present(gone))
        rc = dir_remove(gone, e);
    free(gone);
    return rc;
}

/* Remove the folders next to OUT that earlier runs have left. Those runs were killed while they replaced OUT. */
static int remove_replaced(struct staging *s, struct err *e)
{
    char *old = str_fmt("%s.old.part", s->out), *gone = str_fmt("%s.gone.part", s->out);
    int rc = 0;

    if (is_staging_path_present(old))
        rc = remove_old(s, old, REPLACE_OUT, e);
    if (rc == 0 && is_staging_path_present(gone))
        rc = remove_old(s, gone, REPLACE_PART, e);
    free(gone);
    free(old);
    return rc;
}

/*
 * Remove the job folder after OUT has been published. The fingerprint is removed first. If the run is then killed, the
 * remaining files either identify the folder that became OUT, or there are none. In neither case does the folder look
 * like a job with unfinished work.
 */
static int remove_notes(struct staging *s, struct err *e)
{
    char *path = job_file(s, "fingerprint");
    int rc = unlink(path) < 0 && errno != ENOENT ? -1 : 0;

    if (rc < 0)
        err_sys(e, path, "cannot remove it");
    free(path);
    return rc < 0 ? -1 : dir_remove(s->job, e);
}

/* Clean up after a run that was killed after it had given OUT its name. The old OUT and the job folder are removed. */
static int clear_after_publish(struct staging *s, struct err *e)
{
    if ((is_staging_path_present(s->part) && remove_old(s, s->part, REPLACE_OUT, e) < 0) || remove_replaced(s, e) < 0)
        return -1;
    if (!is_staging_path_present(s->job))
        return 0;
    return replace_check(s->job, REPLACE_JOB, e) < 0 ? -1 : remove_notes(s, e);
}

/*
 * Returns true if OUT exists and no job has recorded any work. In this case there is no job folder, or the run of the
 * job had only just begun, or it was already removing the job folder.
 */
static bool is_out_without_job(const struct staging *s)
{
    return is_staging_path_present(s->out) && !is_staging_path_present(s->part) && !has_job_fingerprint(s) &&
           read_part_inode(s) == 0;
}

int staging_recover(const char *out, struct err *e)
{
    char *bare = strip_trailing_slashes(out), *old = str_fmt("%s.old.part", bare);
    int rc = 0;

    if (!is_staging_path_present(bare) && is_staging_path_present(old)) {
        rc = rename(old, bare);
        if (rc < 0)
            err_sys(e, bare, "cannot rename from %s", old);
    }
    free(old);
    free(bare);
    return rc;
}

/* ---- opening ---- */

/* Returns true if the path ends in a name that can be renamed. Returns false for ".", "x/.." and "/". */
static bool has_own_name(const char *out)
{
    char *base = path_base(out);
    bool yes = strcmp(base, ".") != 0 && strcmp(base, "..") != 0 && strcmp(base, "/") != 0 && *base;

    free(base);
    return yes;
}

/* Check that OUT does not exist or is a folder. The contents of the folder do not matter here. */
static int check_out_is_folder(const char *out, struct err *e)
{
    struct stat st;

    if (!has_own_name(out))
        err_usage(e, "%s: must end with the name of the new folder", out);
    else if (lstat(out, &st) < 0)
        return 0;
    else if (S_ISLNK(st.st_mode))
        err_usage(e, "%s: is a symbolic link, which is never replaced; give the folder that it points to", out);
    else if (!S_ISDIR(st.st_mode))
        err_usage(e, "%s: exists already and is not a folder; move it to another folder, or give another name", out);
    else
        return 0;
    return -1;
}

int staging_check_out(const char *out, bool force, struct err *e)
{
    char *bare = strip_trailing_slashes(out);
    int rc = check_out_is_folder(bare, e);

    if (rc == 0 && is_staging_path_present(bare))
        rc = replace_check(bare, REPLACE_OUT, e);
    if (rc == 0 && is_staging_path_present(bare) && !force) {
        err_usage(e, "%s: exists already; --force replaces it", bare);
        rc = -1;
    }
    free(bare);
    return rc;
}

int staging_open(struct staging *s, const char *out, const char *fingerprint, const struct staging_opts *o,
                 struct err *e)
{
    int rc;

    memset(s, 0, sizeof *s);
    s->lock_fd = s->publish_fd = -1;
    s->out = strip_trailing_slashes(out);
    s->part = str_fmt("%s.part", s->out);
    s->job = str_fmt("%s.part.job", s->out);
    if (check_out_is_folder(s->out, e) < 0 || (o->part == 0 && staging_recover(s->out, e) < 0))
        return -1;
    if (o->part == 0 && o->resume && has_inode(s->out, read_part_inode(s)) &&
        (!has_job_fingerprint(s) || fingerprint_is(s, fingerprint))) {
        s->complete = true;
        s->recorded = has_job_fingerprint(s);
        return clear_after_publish(s, e);
    }
    if (o->resume && !o->force && is_out_without_job(s)) {
        s->complete = true;
        return o->part == 0 ? clear_after_publish(s, e) : 0;
    }
    rc = staging_check_out(s->out, o->force, e);
    if (rc == 0 && o->part == 0) {
        rc = handle_leftovers(s, fingerprint, o, e);
        if (rc == 0)
            rc = make_folders(s, fingerprint, o, e);
    }
    return rc;
}

int staging_ready(struct staging *s, struct err *e)
{
    char *path = job_file(s, "ready");
    int rc = is_staging_path_present(path) ? 0 : file_replace(path, "", 0, e);

    free(path);
    return rc;
}

int staging_wait(struct staging *s, const char *fingerprint, const struct staging_opts *o, struct err *e)
{
    char *path = job_file(s, "ready"), name[32];
    int rc = -1;

    for (int ms = 0; ms < WAIT_LIMIT_MS && rc < 0 && !(o->stopped && o->stopped()); ms += WAIT_STEP_MS) {
        if (is_staging_path_present(path) && fingerprint_is(s, fingerprint))
            rc = 0;
        else
            usleep(WAIT_STEP_MS * 1000);
    }
    free(path);
    if (o->stopped && o->stopped()) {
        err_stop(e);
        return -1;
    }
    if (rc < 0) {
        if (has_job_fingerprint(s))
            err_data(e, s->job, ERR_NO_BYTE, "part 0 prepared another conversion, and waiting %d s did not change it: "
                     "its options differ, or files of IN were changed or linked since", WAIT_LIMIT_MS / 1000);
        else
            err_data(e, s->job, ERR_NO_BYTE, "part 0 did not prepare this conversion within %d s",
                     WAIT_LIMIT_MS / 1000);
        return -1;
    }
    s->resumed = true;
    snprintf(name, sizeof name, "lock.%d", o->part);
    s->lock_fd = acquire_job_lock(s, name, e);
    if (s->lock_fd < 0)
        err_data(e, s->part, ERR_NO_BYTE, "another process is writing part %d", o->part);
    return s->lock_fd < 0 ? -1 : 0;
}

int staging_claim(struct staging *s, struct err *e)
{
    if (!is_staging_path_present(s->job))
        return 0;
    s->publish_fd = acquire_job_lock(s, "publish", e);
    if (s->publish_fd < 0)
        return e->kind == ERR_NONE ? 0 : -1;
    return is_staging_path_present(s->part) ? 1 : 0;
}

int staging_sweep(struct staging *s, struct err *e)
{
    return remove_job_leftovers(s->part, e);
}

/* A single syncfs() is used, because there may be thousands of files and folders. */
static int sync_all(const char *dir, struct err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;

    if (fd < 0 || syncfs(fd) < 0) {
        err_sys(e, dir, "cannot sync the output");
        rc = -1;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/*
 * Rename OUT.part to OUT. *old is set to the new path of the old OUT, or to NULL if there was none. The caller frees
 * *old.
 */
static int swap_in(struct staging *s, char **old, struct err *e)
{
    char *aside;
    int rc = 0;

    *old = NULL;
    if (is_staging_path_present(s->out) && renameat2(AT_FDCWD, s->part, AT_FDCWD, s->out, RENAME_EXCHANGE) == 0) {
        *old = xstrdup(s->part);
        return 0;
    }
    aside = str_fmt("%s.old.part", s->out);
    if (is_staging_path_present(s->out)) {
        rc = rename(s->out, aside);
        if (rc == 0)
            *old = xstrdup(aside);
    }
    if (rc == 0)
        rc = rename(s->part, s->out);
    if (rc < 0) {
        err_sys(e, s->out, "cannot rename from %s", s->part);
        if (*old && rename(aside, s->out) < 0)
            err_sys(e, s->out, "cannot rename from %s", aside);
    }
    free(aside);
    return rc;
}

int staging_publish(struct staging *s, struct err *e)
{
    struct err foreign = {0};
    char *old = NULL;
    int rc = -1;

    /* Readers see either the old OUT or the new one. The old OUT is removed only after the renaming is on disk. */
    if (sync_all(s->part, e) < 0 || staging_recover(s->out, e) < 0 || remove_replaced(s, e) < 0 ||
        swap_in(s, &old, e) < 0 || dir_sync(s->out, e) < 0)
        goto out;
    if (old && remove_old(s, old, REPLACE_OUT, e) < 0)
        goto out;
    /* If the job folder contains a foreign file, it is kept. OUT is published nevertheless. */
    rc = replace_check(s->job, REPLACE_JOB, &foreign) < 0 ? 0 : remove_notes(s, e);
out:
    free(old);
    return rc;
}

void staging_discard(struct staging *s)
{
    struct err ignored = {0};

    if (replace_remove(s->part, REPLACE_PART, &ignored) < 0 || replace_remove(s->job, REPLACE_JOB, &ignored) < 0)
        return;                         /* the files that remain are recognizable by name */
}

void staging_close(struct staging *s)
{
    if (s->lock_fd >= 0)
        close(s->lock_fd);
    if (s->publish_fd >= 0)
        close(s->publish_fd);
    if (s->made) {
        char *parent = path_parent(s->out);

        dir_remove_empty(parent, s->made);
        free(parent);
    }
    free(s->made);
    free(s->out);
    free(s->part);
    free(s->job);
    free(s->kept);
    memset(s, 0, sizeof *s);
    s->lock_fd = s->publish_fd = -1;
}
