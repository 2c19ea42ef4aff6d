/*
 * checkpoint_rendezvous.c - the writers exchange their progress, and rank 0 publishes; remains of saves are removed
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/write/replace.h"
#include "libcommon/write/staging.h"
#include "tools/train/checkpoint/checkpoint_engine.h"
#include "tools/train/checkpoint/checkpoint_steps.h"

enum { WAIT_FIRST_US = 500, WAIT_MOST_US = 50000, ORPHAN_WAIT_S = 20, POSTED_MAX = 64 << 20 };

void save_rendezvous_open(struct save_rendezvous *m, const struct save_order *o, struct topology topo, int rank,
                          bool (*gone)(void *ctx), void *ctx)
{
    *m = (struct save_rendezvous){ .o = o, .rank = rank, .topo = topo, .gone = gone, .ctx = ctx };
    m->part = path_join(o->dir, o->part);
    m->job = str_fmt("%s.job", m->part);
}

void save_rendezvous_close(struct save_rendezvous *m)
{
    free(m->part);
    free(m->job);
}

static char *posted_text_path(const struct save_rendezvous *m, const char *word, int rank)
{
    return str_fmt("%s/%s.%d", m->job, word, rank);
}

/* Publish a text atomically, like file_replace(). No process reads the text after a crash, so nothing is synced. */
int save_rendezvous_post(const struct save_rendezvous *m, const char *word, const void *text, size_t n, struct err *e)
{
    /* If this process is killed here, replace.c recognizes the name as that of an unfinished file. */
    char *path = posted_text_path(m, word, m->rank), *tmp = str_fmt("%s.%ld.part", path, (long)getpid());
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), rc = -1;

    if (fd >= 0 && write_all_at(fd, text, n, 0) == 0 && rename(tmp, path) == 0)
        rc = 0;
    else
        err_sys(e, path, "cannot write");
    if (fd >= 0)
        close(fd);
    if (rc < 0)
        unlink(tmp);
    free(tmp);
    free(path);
    return rc;
}

static bool is_path_existing(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

/* Returns true and sets *e if another rank has published a failure, or the folders of the save have been removed. */
static bool recv_posted_failure(struct save_rendezvous *m, struct err *e)
{
    DIR *d = opendir(m->job);
    const struct dirent *ent;

    while (d && !m->echo && (ent = readdir(d)))
        if (str_starts(ent->d_name, "failed.") && !str_ends(ent->d_name, ".part") &&
            atoi(ent->d_name + strlen("failed.")) != m->rank) {
            char *path = path_join(m->job, ent->d_name), *text;
            struct err ignored = {0};
            uint64_t n = 0;

            text = file_slurp(path, 4096, &n, &ignored);
            err_data(e, m->part, ERR_NO_BYTE, "rank %s could not write its part: %s", ent->d_name + strlen("failed."),
                     text && n ? text : "(it could not write why)");
            m->echo = true;
            free(text);
            free(path);
        }
    if (d)
        closedir(d);
    if (!m->echo && (!d || !is_path_existing(m->part))) {
        err_data(e, m->part, ERR_NO_BYTE, "the save was given up by another rank, or removed by another run");
        m->echo = true;
    }
    return m->echo;
}

void save_rendezvous_fail(struct save_rendezvous *m, const struct err *why)
{
    struct err posted = {0}, ignored = {0};

    /*
     * Another rank that abandons the save removes files that this rank is using. An error caused by that is not an
     * original reason.
     */
    if (!m->echo && recv_posted_failure(m, &posted))
        return;
    /* A full disk usually still has space for an empty file. */
    if (!m->echo && save_rendezvous_post(m, "failed", why->msg, strlen(why->msg), &ignored) < 0 &&
        save_rendezvous_post(m, "failed", "", 0, &ignored) < 0)
        save_rendezvous_discard(m);
}

char *save_rendezvous_wait_for(struct save_rendezvous *m, const char *word, int rank, struct err *e)
{
    char *path = posted_text_path(m, word, rank), *text = NULL;
    useconds_t step = WAIT_FIRST_US;
    /* time at which the end of the trainer was noticed; negative: the trainer is running */
    double orphan_s = -1;
    uint64_t n;

    while (!is_path_existing(path)) {
        if (recv_posted_failure(m, e))
            goto out;
        if (orphan_s < 0 && m->gone(m->ctx))
            orphan_s = clock_s();
        if (orphan_s >= 0 && clock_s() - orphan_s > ORPHAN_WAIT_S) {
            m->echo = true;
            err_data(e, m->part, ERR_NO_BYTE, "training has ended, and rank %d's part does not come", rank);
            goto out;
        }
        usleep(step);
        step = step < WAIT_MOST_US ? step * 2 : WAIT_MOST_US;
    }
    text = file_slurp(path, POSTED_MAX, &n, e);
out:
    free(path);
    return text;
}

/*
 * Write the file latest.next. A run that starts after this process was killed detects by it whether the rename of the
 * folder has happened.
 */
static int announce(const struct save_rendezvous *m, const char *next, struct err *e)
{
    char *text = str_fmt("%s\n%s", m->o->tag, m->o->part);
    int rc = file_replace(next, text, strlen(text), e);

    free(text);
    return rc;
}

int save_rendezvous_publish(const struct save_rendezvous *m, struct err *e)
{
    char *next = path_join(m->o->dir, "latest.next"), *latest = path_join(m->o->dir, "latest");
    struct staging s = { .out = path_join(m->o->dir, m->o->tag), .part = m->part, .job = m->job, .lock_fd = -1,
                         .publish_fd = -1 };
    int rc = announce(m, next, e);

    if (rc == 0)
        rc = staging_publish(&s, e);
    if (rc == 0)
        rc = file_replace(latest, m->o->tag, strlen(m->o->tag), e);
    /* If the folder still has its old name, nothing was published, and latest.next can be removed. */
    if (rc == 0 || is_path_existing(m->part))
        unlink(next);
    free(s.kept);                       /* the trainer has reported it */
    free(s.out);
    free(next);
    free(latest);
    return rc;
}

/*
 * Returns the name that a folder receives before it is removed. No writer uses that name, so a partly removed folder
 * cannot be published. The caller frees it.
 */
static char *gone_name(const char *path)
{
    const size_t n = strlen(path) - strlen(".part");

    return str_ends(path, ".part") && !str_ends(path, ".gone.part") ? str_fmt("%.*s.gone.part", (int)n, path)
                                                                    : xstrdup(path);
}

static int remove_once(const char *path, const char *gone, enum replace_what what, struct err *e)
{
    if (is_path_existing(path)) {
        if (replace_check(path, what, e) < 0)
            return -1;
        /* If a writer has already renamed the folder, it is a published checkpoint, and ENOENT is no error. */
        if (strcmp(path, gone) != 0 && rename(path, gone) < 0 && errno != ENOENT) {
            err_sys(e, gone, "cannot rename from %s", path);
            return -1;
        }
    }
    return is_path_existing(gone) ? replace_remove(gone, what, e) : 0;
}

/*
 * Remove a folder in which another process that has not noticed the end yet may be creating a file, or which it may
 * be renaming to its final name. Retries for two seconds. A .part folder is renamed to .gone.part first, so it is
 * either published completely or not at all. A folder that does not exist is fine; one that contains foreign files is
 * kept.
 */
static int remove_save_folder(const char *path, enum replace_what what, struct err *e)
{
    const struct timespec pause = { .tv_nsec = 20 * 1000 * 1000 };
    struct err why = {0};
    char *gone = gone_name(path);
    int rc = -1;

    for (int i = 0; i < 100 && rc < 0; i++) {
        err_clear(&why);
        rc = remove_once(path, gone, what, &why);
        if (rc < 0 && why.kind == ERR_USAGE)
            rc = 0;
        else if (rc < 0)
            nanosleep(&pause, NULL);
    }
    if (rc < 0)
        *e = why;
    free(gone);
    return rc;
}

void save_rendezvous_discard(const struct save_rendezvous *m)
{
    struct err ignored = {0};

    /* Folders that cannot be removed keep names by which the next save finds and removes them. */
    if (remove_save_folder(m->job, REPLACE_JOB, &ignored) == 0)
        (void)!remove_save_folder(m->part, REPLACE_PART, &ignored);
}

/* ---- remains of saves that were killed ---- */

/*
 * Returns true for "global_step20.0badcafe.part" and its .job, the folders of a save. The folders of a converter that
 * writes here have other names.
 */
static bool is_leftover(const char *name, enum replace_what *what)
{
    size_t n = checkpoint_tag_length(name);
    const char *end = name + n;

    *what = REPLACE_PART;
    if (n == 0 || *end != '.')
        return false;
    if (strcmp(end, ".gone.part") == 0)
        return true;
    if (strspn(end + 1, "0123456789abcdef") != 8)
        return false;
    *what = strcmp(end + 9, ".part.job") == 0 ? REPLACE_JOB : REPLACE_PART;
    return *what == REPLACE_JOB || strcmp(end + 9, ".part") == 0 || strcmp(end + 9, ".gone.part") == 0;
}

/* Process one entry of the folder. Unfinished folders with foreign files are kept. */
static int clean_entry(const char *dir, const char *name, struct err *e)
{
    char *path = path_join(dir, name);
    enum replace_what what;
    int rc = 0;

    if (is_leftover(name, &what)) {
        rc = remove_save_folder(path, what, e);
    } else if (checkpoint_tag_length(name) && strcmp(name + checkpoint_tag_length(name), ".old.part") == 0) {
        path[strlen(path) - strlen(".old.part")] = '\0';
        rc = staging_recover(path, e);
    }
    free(path);
    return rc;
}

int checkpoint_clean(const char *dir, struct err *e)
{
    DIR *d = opendir(dir);
    const struct dirent *ent;
    int rc = 0;

    if (!d) {
        if (errno == ENOENT)
            return 0;
        err_sys(e, dir, "cannot list");
        return -1;
    }
    while (rc == 0 && (ent = readdir(d)))
        rc = clean_entry(dir, ent->d_name, e);
    closedir(d);
    return rc;
}
