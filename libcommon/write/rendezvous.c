/* rendezvous.c - let the tasks of a launch find each other through small files next to OUT */
#include "libcommon/write/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

enum { STEP_MS = 50, PRINT_AFTER_MS = 2000, LIMIT_S = 60, LIMIT_ALL_S = 600, KEY_PART_MAX = 64 };

/*
 * Return a name for this launch that distinguishes it from other launches. The name contains Slurm's step number or the
 * job name of another launcher. If there is neither, launches are distinguished only by the age of the files. The
 * caller frees the name.
 */
static char *launch_key(void)
{
    static const char *const vars[] = { "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
                                        "PMI_JOBID", "PMI_PORT" };
    struct strbuf sb = {0};
    char *key;

    strbuf_addf(&sb, "launch");
    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++)
        if (getenv(vars[i]))
            strbuf_addf(&sb, ".%.*s", KEY_PART_MAX, getenv(vars[i]));
    for (char *p = sb.buf; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *p))
            *p = '-';
    key = str_fmt("%.200s", sb.buf);
    strbuf_free(&sb);
    return key;
}

static int limit_s(bool all)
{
    const char *given = getenv("SHARDKIT_MEET_SECONDS");
    int n;
    char end;

    if (given && sscanf(given, "%d%c", &n, &end) == 1 && n >= 0 && n <= 86400)
        return n;
    return all ? LIMIT_ALL_S : LIMIT_S;
}

/*
 * Returns true if the file at `path` and this task's own file were modified at most `limit` seconds apart. Both times
 * come from the file system, which is the same for all tasks.
 */
static bool same_time(const char *path, const struct stat *mine, int limit)
{
    struct stat st;

    return stat(path, &st) == 0 && llabs((long long)st.st_mtime - (long long)mine->st_mtime) <= 2LL * limit + 2;
}

static bool is_task_file_present(const struct rendezvous *m, const char *name, const struct stat *mine, int limit)
{
    char *path = path_join(m->dir, name);
    bool there = same_time(path, mine, limit);

    free(path);
    return there;
}

/*
 * Return the number of tasks that have created their files. If the file "all" exists, all tasks have done so, although
 * some may already have removed their files again.
 */
static int count_present(const struct rendezvous *m, int limit)
{
    struct stat mine;
    int n = 0;

    if (stat(m->mine, &mine) < 0)
        return 0;
    if (is_task_file_present(m, "all", &mine, limit))
        return m->n_tasks;
    for (int i = 0; i < m->n_tasks; i++) {
        char name[32];

        snprintf(name, sizeof name, "task.%d", i);
        n += is_task_file_present(m, name, &mine, limit);
    }
    return n;
}

static int touch_task_file(const char *path, int flags)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666), rc = fd < 0 ? -1 : futimens(fd, NULL);

    if (fd >= 0)
        close(fd);
    return rc;
}

static int record_all_present(const struct rendezvous *m, struct err *e)
{
    char *path = path_join(m->dir, "all");
    int rc = touch_task_file(path, 0);

    if (rc < 0)
        err_sys(e, path, "cannot signal to the other tasks that all have started");
    free(path);
    return rc;
}

static char *alone_path(const struct rendezvous *m)
{
    return path_join(m->dir, "alone");
}

/* Returns true, with ERR_DATA, if another task of this launch has begun to convert everything alone. */
static bool is_started_alone(const struct rendezvous *m, int limit, struct err *e)
{
    char *path = alone_path(m), *text;
    struct err ignored = {0};
    struct stat mine;
    uint64_t size;
    bool taken = stat(m->mine, &mine) == 0 && same_time(path, &mine, limit);

    if (taken) {
        text = file_slurp(path, KEY_PART_MAX, &size, &ignored);
        err_data(e, m->dir, ERR_NO_BYTE, "task %s converts everything, because not all tasks started in time",
                 text ? text : "?");
        free(text);
    }
    free(path);
    return taken;
}

/*
 * Try to become the task that converts everything alone. This is the task that creates the file first. Returns 0 if
 * this task has created it. Otherwise returns -1 with *e filled.
 */
static int go_alone(const struct rendezvous *m, int task, int limit, struct err *e)
{
    char *path = alone_path(m), text[16];
    int rc = 0;

    if (is_started_alone(m, limit, e)) {
        free(path);
        return -1;
    }
    unlink(path);                       /* this file was left by an earlier launch */
    if (touch_task_file(path, O_EXCL) < 0) {
        if (errno != EEXIST || !is_started_alone(m, limit, e))
            err_sys(e, path, "cannot reserve this conversion for the tasks of this launch");
        rc = -1;
    }
    snprintf(text, sizeof text, "%d", task);
    if (rc == 0)
        rc = file_replace(path, text, strlen(text), e);
    free(path);
    return rc;
}

static void PRINTF_LIKE(2, 3) rendezvous_logf(const struct rendezvous_opts *o, const char *fmt, ...)
{
    char *text;
    va_list ap;

    va_start(ap, fmt);
    if (o->say && vasprintf(&text, fmt, ap) >= 0) {
        o->say(o->ctx, text);
        free(text);
    }
    va_end(ap);
}

/*
 * Make a network file system check for new names. The file system may remember for up to a minute that a name does not
 * exist. Creating and removing a file changes the folder, which ends this.
 */
static void refresh_dir_cache(const struct rendezvous *m)
{
    char *path = str_fmt("%s.look", m->mine);

    if (touch_task_file(path, 0) == 0)
        unlink(path);
    free(path);
}

/* Returns 1 if all tasks have come, 0 if the time is over, or -1 on error. */
static int wait_for_all(const struct rendezvous *m, const struct rendezvous_opts *o, int limit, struct err *e)
{
    double start = clock_s(), looked = start;
    bool reported = false;

    for (;;) {
        int n = count_present(m, limit);
        double waited = clock_s() - start;

        if (n == o->n_tasks)
            return record_all_present(m, e) < 0 ? -1 : 1;
        if (is_started_alone(m, limit, e))
            return -1;
        if (o->stopped && o->stopped()) {
            err_stop(e);
            return -1;
        }
        if (waited >= limit)
            return 0;
        if (!reported && waited * 1000 > PRINT_AFTER_MS) {
            rendezvous_logf(
                o,
                "%d of the %d tasks of this launch have started; waiting up to %d s for the others (--part 0/1: all "
                "of it in this task, at once)",
                n, o->n_tasks, limit);
            reported = true;
        }
        if (clock_s() - looked >= 1) {
            refresh_dir_cache(m);
            looked = clock_s();
        }
        /* With thousands of tasks, the check is made less often, to limit the load on the file server. */
        usleep((useconds_t)(STEP_MS + o->n_tasks) * 1000);
    }
}

int rendezvous_join(struct rendezvous *m, const char *out, const struct rendezvous_opts *o, struct err *e)
{
    int limit = limit_s(o->all), n = (int)strlen(out), rc;
    char *key = launch_key();

    while (n > 1 && out[n - 1] == '/')
        n--;
    m->dir = str_fmt("%.*s.part.meet.%s", n, out, key);
    m->mine = str_fmt("%s/task.%d", m->dir, o->task);
    m->n_tasks = o->n_tasks;
    free(key);
    m->made = dir_missing(m->dir);
    if (dir_make(m->dir, e) < 0)
        return -1;
    if (touch_task_file(m->mine, 0) < 0) {
        err_sys(e, m->mine, "cannot signal to the other tasks that this one has started");
        return -1;
    }
    rc = wait_for_all(m, o, limit, e);
    if (rc != 0)
        return rc;
    if (o->all) {
        err_data(e, m->dir, ERR_NO_BYTE, "only %d of %d tasks have started within %d s", count_present(m, limit),
                 o->n_tasks, limit);
        return -1;
    }
    if (go_alone(m, o->task, limit, e) < 0)
        return -1;
    m->alone = true;
    rendezvous_logf(o, "only %d of the %d tasks of this launch have started within %d s: task %d does all of it",
                    count_present(m, limit), o->n_tasks, limit, o->task);
    return 0;
}

static bool is_empty(const struct rendezvous *m)
{
    bool empty = true;

    for (int i = 0; i < m->n_tasks && empty; i++) {
        char *path = str_fmt("%s/task.%d", m->dir, i);

        empty = access(path, F_OK) < 0;
        free(path);
    }
    return empty;
}

void rendezvous_close(struct rendezvous *m)
{
    struct err ignored = {0};

    if (m->mine)
        unlink(m->mine);
    /* Files that remain are recognisable by name, and are too old to be counted by the next launch. */
    if (m->dir && (m->alone || is_empty(m)) && dir_remove(m->dir, &ignored) < 0)
        rmdir(m->dir);
    if (m->made)
        dir_remove_empty(m->dir, m->made);
    free(m->made);
    free(m->dir);
    free(m->mine);
    m->dir = m->mine = m->made = NULL;
}
