/*
 * checkpoint_rendezvous.c - files by which the writers of all ranks report their progress; publishing by rank 0;
 * removal of unfinished saves
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

/*
 * Publish a text atomically, like file_replace(). Nothing is synced to disk, because after a crash the text is not
 * read.
 */
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

/* Returns true and sets *e if another rank has published a failure, or if the folders of the save have been removed. */
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
     * If another rank abandons the save, it removes files that this rank is using. The removal can cause an error here,
     * which is not the original reason and is not published.
     */
    if (!m->echo && recv_posted_failure(m, &posted))
        return;
    /* On a full disk there is usually still space for an empty file. */
    if (!m->echo && save_rendezvous_post(m, "failed", why->msg, strlen(why->msg), &ignored) < 0 &&
        save_rendezvous_post(m, "failed", "", 0, &ignored) < 0)
        save_rendezvous_discard(m);
}

char *save_rendezvous_wait_for(struct save_rendezvous *m, const char *word, int rank, struct err *e)
{
    char *path = posted_text_path(m, word, rank), *text = NULL;
    useconds_t step = WAIT_FIRST_US;
    /* time at which this process noticed that the trainer had ended; negative: the trainer is running */
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
 * Write the file latest.next. If this process is killed afterwards, the next run uses this file to detect whether the
 * folder has been renamed.
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
    /* If the folder still has its unfinished name, nothing was published, and latest.next can be removed. */
    if (rc == 0 || is_path_existing(m->part))
        unlink(next);
    free(s.kept);                       /* discarded, because the trainer has reported it */
    free(s.out);
    free(next);
    free(latest);
    return rc;
}

/*
 * Returns the name that a folder gets before it is removed. Writers never use this name, so a folder that is partly
 * removed cannot be published. The caller frees the name.
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
        /* If a writer has already renamed the folder, it is now a published checkpoint. ENOENT is then no error. */
        if (strcmp(path, gone) != 0 && rename(path, gone) < 0 && errno != ENOENT) {
            err_sys(e, gone, "cannot rename from %s", path);
            return -1;
        }
    }
    return is_path_existing(gone) ? replace_remove(gone, what, e) : 0;
}

/*
 * Remove a folder that another process may still be using. A process that has not noticed the end of the save may
 * create a file in the folder, or rename the folder to its final name. The removal is therefore tried again for two
 * seconds. A .part folder is first renamed to .gone.part, so it is either published completely or not at all. It is no
 * error if the folder does not exist. A folder that contains foreign files is kept.
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

    /* If a folder cannot be removed, the next save recognises it by its name and removes it. */
    if (remove_save_folder(m->job, REPLACE_JOB, &ignored) == 0)
        (void)!remove_save_folder(m->part, REPLACE_PART, &ignored);
}

/* ---- remains of saves that were killed ---- */

/*
 * Returns true if `name` is that of a folder of an unfinished save: "global_step20.0badcafe.part", or the same with
 * ".job" appended. The unfinished folders of converters have other names.
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

/* Process one entry of the folder of --save. An unfinished folder that contains foreign files is kept. */
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
