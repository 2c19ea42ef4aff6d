/* savelock.c - the lock file that shows which job saves into a folder (savelock.h) */
#include "tools/train/checkpoint/savelock.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/train/log/status.h"

enum { BEAT_S = 10, STALE_S = 60, STALE_MOST_S = 3600, LOOK_MS = 200, ATTEMPTS = 100, LOCK_MAX = 4096 };

/* The contents of a lock file, which describe the job that holds the lock. */
struct holder {
    char host[256], job_id[64], boot_id[64], pid_space[64], nonce[40];
    int64_t pid, started_ticks, restarts, stale_s;
    double since_s;
};

/* A lock file as it was read. */
struct lock_file {
    struct holder who;
    struct timespec touched;
};

struct savelock {
    struct savelock_opts o;
    /* path: the lock file; mine: this process's temporary file, used while it creates the lock */
    char *path, *mine;
    struct holder self;
    pthread_t beater;
    /*
     * protects the following members; also prevents the time stamp from being updated while the lock is being removed
     */
    pthread_mutex_t guard;
    pthread_cond_t ended;
    bool dropped;
    bool joined;                /* the thread has been joined */
};

/* ---- this process ---- */

static void first_line(const char *path, char *out, size_t n)
{
    FILE *f = fopen(path, "re");

    if (!f || !fgets(out, (int)n, f))
        *out = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (f)
        fclose(f);
}

static void read_own_holder(struct holder *h)
{
    const char *restarts = getenv("SLURM_RESTART_COUNT");
    uint64_t random[2] = { (uint64_t)getpid(), (uint64_t)time(NULL) };
    ssize_t n;

    memset(h, 0, sizeof *h);
    snprintf(h->host, sizeof h->host, "%s", status_host());
    snprintf(h->job_id, sizeof h->job_id, "%s", status_job_id());
    first_line("/proc/sys/kernel/random/boot_id", h->boot_id, sizeof h->boot_id);
    n = readlink("/proc/self/ns/pid", h->pid_space, sizeof h->pid_space - 1);
    h->pid_space[n > 0 ? n : 0] = '\0';
    if (getrandom(random, sizeof random, GRND_NONBLOCK) < 0)
        random[0] ^= (uint64_t)clock_ns();
    snprintf(h->nonce, sizeof h->nonce, "%016llx%016llx", (unsigned long long)random[0], (unsigned long long)random[1]);
    h->pid = getpid();
    h->started_ticks = status_start_ticks(h->pid);
    h->restarts = restarts ? strtoll(restarts, NULL, 10) : 0;
    h->stale_s = STALE_S;
    h->since_s = (double)time(NULL);
}

/* ---- the file ---- */

static char *spell(const struct holder *h)
{
    json_t *o = json_pack("{s:s, s:I, s:s, s:I, s:f, s:I, s:s, s:s, s:I, s:s}", "host", h->host, "pid",
                          (json_int_t)h->pid, "job_id", h->job_id, "restarts", (json_int_t)h->restarts, "since_s",
                          h->since_s, "stale_s", (json_int_t)h->stale_s, "boot_id", h->boot_id, "pid_space",
                          h->pid_space, "started_ticks", (json_int_t)h->started_ticks, "nonce", h->nonce);
    char *text = json_dumps(o, JSON_COMPACT), *line = str_fmt("%s\n", text ? text : "{}");

    json_decref(o);
    free(text);
    return line;
}

static void read_holder_text(const json_t *o, const char *key, char *out, size_t n)
{
    const char *s = json_string_value(json_object_get(o, key));

    snprintf(out, n, "%s", s ? s : "");
    err_clean(out);
}

/*
 * Parse the text of a lock file into *h. If the text cannot be parsed, the name of the holder is empty, and stale_s has
 * the default of this program.
 */
static void understand(const char *text, size_t n, struct holder *h)
{
    json_t *o = json_loadb(text, n, 0, NULL);

    memset(h, 0, sizeof *h);
    read_holder_text(o, "host", h->host, sizeof h->host);
    read_holder_text(o, "job_id", h->job_id, sizeof h->job_id);
    read_holder_text(o, "boot_id", h->boot_id, sizeof h->boot_id);
    read_holder_text(o, "pid_space", h->pid_space, sizeof h->pid_space);
    read_holder_text(o, "nonce", h->nonce, sizeof h->nonce);
    h->pid = json_integer_value(json_object_get(o, "pid"));
    h->restarts = json_integer_value(json_object_get(o, "restarts"));
    h->started_ticks = json_integer_value(json_object_get(o, "started_ticks"));
    h->since_s = json_number_value(json_object_get(o, "since_s"));
    h->stale_s = json_integer_value(json_object_get(o, "stale_s"));
    if (h->stale_s < 1 || h->stale_s > STALE_MOST_S)
        h->stale_s = STALE_S;
    json_decref(o);
}

/*
 * Read the lock file into *f. It is opened each time, because NFS asks the server only when a file is opened. Returns 1
 * if there is a lock, 0 if there is none, -1 if it cannot be read.
 */
static int read_lock(const char *path, struct lock_file *f)
{
    char text[LOCK_MAX];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text);
    int rc = fd < 0 && errno == ENOENT ? 0 : n < 0 || fstat(fd, &st) < 0 ? -1 : 1;

    if (rc > 0) {
        understand(text, (size_t)n, &f->who);
        f->touched = st.st_mtim;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static bool same_lock(const struct lock_file *a, const struct lock_file *b)
{
    return !strcmp(a->who.nonce, b->who.nonce) && a->touched.tv_sec == b->touched.tv_sec &&
           a->touched.tv_nsec == b->touched.tv_nsec;
}

static int write_lock(const char *path, const struct holder *h, struct err *e)
{
    char *line = spell(h);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666), rc = -1;

    if (fd >= 0 && write_all_at(fd, line, strlen(line), 0) == 0 && fsync(fd) == 0)
        rc = 0;
    else
        err_sys(e, path, "cannot make the lock of the folder");
    if (fd >= 0)
        close(fd);
    free(line);
    return rc;
}

/*
 * Create the lock file with link(). Returns 1 if this process now holds the lock, 0 if another process holds it, -1 on
 * error. An NFS server's answer may be lost, so the number of links is checked as well.
 */
static int link_lock(const struct savelock *l, struct err *e)
{
    struct stat st;
    struct err once = {0};

    if (link(l->mine, l->path) == 0 || (stat(l->mine, &st) == 0 && st.st_nlink == 2))
        return 1;
    if (errno == EEXIST)
        return 0;
    if (errno != EPERM && errno != ENOTSUP && errno != ENOSYS && errno != EMLINK) {
        err_sys(e, l->path, "cannot make the lock of the folder");
        return -1;
    }
    /* this file system has no hard links, so create the file directly */
    if (write_lock(l->path, &l->self, &once) == 0)
        return 1;
    if (once.sys == EEXIST)
        return 0;
    *e = once;
    return -1;
}

/* ---- is the holder of the lock alive? ---- */

enum life { LIVES, ENDED, UNKNOWN };

static bool same_text(const char *a, const char *b) { return *a && !strcmp(a, b); }

static enum life classify_holder_life(const struct holder *self, const struct holder *who)
{
    const bool same_kernel = same_text(self->boot_id, who->boot_id) && same_text(self->pid_space, who->pid_space);
    int64_t ticks;

    if (same_text(self->job_id, who->job_id) && who->restarts < self->restarts)
        return ENDED;
    if (!same_kernel || who->pid <= 0)
        return UNKNOWN;
    if (kill((pid_t)who->pid, 0) < 0 && errno == ESRCH)
        return ENDED;
    /* Other users' processes may be hidden, so a missing process does not prove that the holder has ended. */
    ticks = status_start_ticks(who->pid);
    return ticks < 0 ? UNKNOWN : ticks == who->started_ticks ? LIVES : ENDED;
}

/*
 * Update the time stamp of this process's own file, and return the time stamp. It is the current time in seconds by the
 * clock of the file system.
 */
static double fs_now(const struct savelock *l)
{
    struct stat st;

    if (utimensat(AT_FDCWD, l->mine, NULL, 0) < 0 || stat(l->mine, &st) < 0)
        return (double)time(NULL);
    return (double)st.st_mtim.tv_sec;
}

static void describe_lock_holder(const struct savelock *l, const struct lock_file *f, struct strbuf *sb)
{
    const struct holder *h = &f->who;
    const time_t since = (time_t)h->since_s;
    const double silent_s = fs_now(l) - (double)f->touched.tv_sec;
    char when[32] = "?";
    struct tm tm;

    if (h->since_s > 0 && localtime_r(&since, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    if (!*h->host)
        strbuf_addf(sb, "a job that its lock does not name");
    else
        strbuf_addf(sb, "%s%s%shost %s, process %lld, since %s", *h->job_id ? "job " : "", h->job_id,
                    *h->job_id ? " on " : "", h->host, (long long)h->pid, when);
    strbuf_addf(sb, ", last sign of life %.0f s ago", silent_s > 0 ? silent_s : 0);
}

/*
 * Determine whether the holder of a lock is alive, if its process is not visible from this host. The function waits
 * until the time stamp of the lock changes, or until the time stamp is older than the limit that the lock file states.
 * If the holder ran on this host before a restart, a quarter of the limit is sufficient. The age counts only if this
 * process has watched the lock for a part of that time, because no process can update a file while the file system
 * hangs. Returns 1 if the holder has ended, 0 if it is alive or the lock has been replaced, -1 if a stop was requested.
 */
static int watch_holder(const struct savelock *l, const struct lock_file *was, struct err *e)
{
    const bool restarted = same_text(l->self.host, was->who.host) && !same_text(l->self.boot_id, was->who.boot_id);
    const double limit = restarted ? (double)was->who.stale_s / 4 : (double)was->who.stale_s;
    const double least = limit < (double)was->who.stale_s / 4 ? limit : (double)was->who.stale_s / 4;
    const double begin = clock_s();
    struct strbuf sb = {0};
    struct lock_file is;

    describe_lock_holder(l, was, &sb);
    strbuf_addf(&sb, ": waiting for %.0f s at most to see whether it lives", limit);
    if (l->o.print_line)
        l->o.print_line(l->o.arg, sb.buf);
    strbuf_free(&sb);
    for (;;) {
        const double watched = clock_s() - begin;

        if (read_lock(l->path, &is) != 1 || !same_lock(was, &is))
            return 0;
        if (watched >= limit || (watched >= least && fs_now(l) - (double)is.touched.tv_sec > limit))
            return 1;
        if (l->o.stopped && l->o.stopped()) {
            err_stop(e);
            return -1;
        }
        usleep(LOOK_MS * 1000);
    }
}

/*
 * Rename the stale lock file and remove it. If the renamed file turns out to be the new lock of another process, rename
 * it back.
 */
static void remove_stale(const struct savelock *l, const struct lock_file *stale)
{
    char *aside = str_fmt("%s.stale", l->mine);
    struct lock_file moved;

    if (rename(l->path, aside) == 0) {
        if (read_lock(aside, &moved) == 1 && strcmp(moved.who.nonce, stale->who.nonce) &&
            link(aside, l->path) < 0 && errno != EEXIST)
            rename(aside, l->path);
        unlink(aside);
    }
    free(aside);
}

static int refuse_locked_folder(const struct savelock *l, const struct lock_file *f, struct err *e)
{
    struct strbuf sb = {0};

    describe_lock_holder(l, f, &sb);
    err_data(e, l->path, ERR_NO_BYTE, "another job saves into this folder (%s): end it, or give another --save; "
             "if it is certainly gone, remove this file", sb.buf);
    strbuf_free(&sb);
    return -1;
}

/*
 * Handle an existing lock. Returns -1 with *e set if its holder is alive or the lock cannot be read. Returns 0 or 1 if
 * the caller must try to create the lock again.
 */
static int resolve_existing_lock(const struct savelock *l, struct err *e)
{
    struct lock_file f, is;
    enum life life;
    int rc = read_lock(l->path, &f);

    if (rc < 0)
        err_sys(e, l->path, "cannot read who saves into this folder");
    if (rc <= 0)
        return rc;
    life = classify_holder_life(&l->self, &f.who);
    if (life == UNKNOWN) {
        rc = watch_holder(l, &f, e);
        if (rc < 0)
            return -1;
        if (rc == 0 && (read_lock(l->path, &is) != 1 || strcmp(is.who.nonce, f.who.nonce)))
            return 0;
        life = rc > 0 ? ENDED : LIVES;
    }
    if (life == LIVES)
        return refuse_locked_folder(l, &f, e);
    remove_stale(l, &f);
    return 1;
}

static int acquire(const struct savelock *l, struct err *e)
{
    for (int i = 0; i < ATTEMPTS; i++) {
        int rc = link_lock(l, e);

        if (rc != 0)
            return rc < 0 ? -1 : 0;
        if (resolve_existing_lock(l, e) < 0)
            return -1;
    }
    err_data(e, l->path, ERR_NO_BYTE, "changes hands all the time: how many jobs save into this folder?");
    return -1;
}

/* ---- holding it ---- */

bool savelock_held(const struct savelock *l, struct err *e)
{
    struct lock_file f;
    struct strbuf sb = {0};
    int rc = read_lock(l->path, &f);

    /*
     * An unreadable lock, or one that is being written, does not mean that this process has lost its lock. If a person
     * has removed the lock file, the next update of the time stamp creates it again.
     */
    if (rc <= 0 || !*f.who.nonce || !strcmp(f.who.nonce, l->self.nonce))
        return true;
    describe_lock_holder(l, &f, &sb);
    err_data(e, l->path, ERR_NO_BYTE,
             "another job has replaced the lock of this folder (%s), because this one did not respond; "
             "nothing more is saved", sb.buf);
    strbuf_free(&sb);
    return false;
}

/*
 * Update the time stamp of the lock. The caller must hold the mutex `guard`. Returns false if another job holds the
 * lock.
 */
static bool beat(struct savelock *l, struct err *e)
{
    struct err ignored = {0};
    struct lock_file f;

    if (!savelock_held(l, e))
        return false;
    if (read_lock(l->path, &f) == 0)
        (void)!write_lock(l->path, &l->self, &ignored);
    else
        (void)!utimensat(AT_FDCWD, l->path, NULL, 0);
    return true;
}

static void *beat_on(void *arg)
{
    struct savelock *l = arg;
    struct err e = {0};
    struct timespec next;
    bool held = true;

    pthread_mutex_lock(&l->guard);
    while (held && !l->dropped) {
        clock_gettime(CLOCK_REALTIME, &next);
        next.tv_sec += BEAT_S;
        if (pthread_cond_timedwait(&l->ended, &l->guard, &next) == ETIMEDOUT && !l->dropped)
            held = beat(l, &e);
    }
    pthread_mutex_unlock(&l->guard);
    if (!held && l->o.lost)
        l->o.lost(l->o.arg, e.msg);
    return NULL;
}

static int start_beating(struct savelock *l, struct err *e)
{
    sigset_t all, was;
    int rc;

    /* Block all signals in this thread, so that the main thread handles them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    rc = pthread_create(&l->beater, NULL, beat_on, l);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    if (rc == 0)
        return 0;
    errno = rc;
    err_sys(e, l->path, "cannot start the thread that keeps the lock");
    unlink(l->path);
    return -1;
}

static void free_all(struct savelock *l)
{
    pthread_cond_destroy(&l->ended);
    pthread_mutex_destroy(&l->guard);
    free(l->path);
    free(l->mine);
    free(l);
}

struct savelock *savelock_acquire(const struct savelock_opts *o, struct err *e)
{
    struct savelock *l = xcalloc(1, sizeof *l);
    int rc;

    l->o = *o;
    pthread_mutex_init(&l->guard, NULL);
    pthread_cond_init(&l->ended, NULL);
    read_own_holder(&l->self);
    l->path = path_join(o->dir, "train.lock");
    l->mine = str_fmt("%s.%s", l->path, l->self.nonce);
    rc = write_lock(l->mine, &l->self, e);
    if (rc == 0)
        rc = acquire(l, e);
    unlink(l->mine);
    if (rc == 0)
        rc = start_beating(l, e);
    if (rc == 0)
        return l;
    free_all(l);
    return NULL;
}

void savelock_drop(struct savelock *l)
{
    struct lock_file f;

    if (!l)
        return;
    pthread_mutex_lock(&l->guard);
    if (!l->dropped && read_lock(l->path, &f) == 1 && !strcmp(f.who.nonce, l->self.nonce))
        unlink(l->path);
    l->dropped = true;
    pthread_cond_signal(&l->ended);
    pthread_mutex_unlock(&l->guard);
}

void savelock_end(struct savelock *l)
{
    if (!l || l->joined)
        return;
    savelock_drop(l);
    pthread_join(l->beater, NULL);
    l->joined = true;
}

void savelock_free(struct savelock *l)
{
    if (!l)
        return;
    savelock_end(l);
    free_all(l);
}
