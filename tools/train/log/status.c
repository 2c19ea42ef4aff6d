/*
 * status.c - write status.json; record signals and the kill switch as flags, which the training loop polls
 */
#include "tools/train/log/status.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"

/* ---- status.json ---- */

const char *status_reason_name(enum status_reason r)
{
    static const char *const names[] = {
        [STATUS_RUNNING] = NULL, [STATUS_FINISHED] = "finished", [STATUS_KILL_SWITCH] = "kill-switch",
        [STATUS_DURATION] = "duration", [STATUS_INTERVAL] = "interval",
        [STATUS_ITERATIONS] = "iterations", [STATUS_SAMPLES] = "samples", [STATUS_SIGNAL] = "signal",
        [STATUS_NAN] = "nan", [STATUS_FAILED] = "failed",
    };

    return names[r];
}

const char *status_job_id(void)
{
    static const char *const vars[] = { "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID" };

    for (size_t i = 0; i < sizeof vars / sizeof *vars; i++) {
        const char *id = getenv(vars[i]);

        if (id && *id)
            return id;
    }
    return "";
}

const char *status_host(void)
{
    static char host[256];

    if (!*host && gethostname(host, sizeof host - 1) < 0)
        strcpy(host, "unknown");
    return host;
}

/* Returns a count as JSON. An unknown count (negative) is null, so that readers do not see -1. */
static json_t *count_or_null_json(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

static json_t *real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static json_t *text(const char *s)
{
    json_t *v = s ? json_string(s) : json_null();

    return v ? v : json_string("?");    /* the bytes are not valid UTF-8 */
}

/* Only one thread at a time writes the status. Once `ended` is set, no thread writes it any more. */
static pthread_mutex_t one_writer = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool ended;
/* The reason of the stall; NULL: the job is not stalled. Protected by one_writer. */
static char *stalled;

static char *dump_status_json(const struct status *s)
{
    json_t *o = json_object();
    double now = clock_wall_s();
    char *out;

    json_object_set_new(o, "host", text(status_host()));
    json_object_set_new(o, "pid", json_integer(getpid()));
    json_object_set_new(o, "job_id", text(*status_job_id() ? status_job_id() : NULL));
    json_object_set_new(o, "world_size", json_integer(s->world_size));
    json_object_set_new(o, "started_s", real(status_process_start()));
    json_object_set_new(o, "updated_s", real(now));
    json_object_set_new(o, "phase", text(s->phase));
    json_object_set_new(o, "percent", s->phase && strcmp(s->phase, "index") == 0 ? real(s->percent) : json_null());
    json_object_set_new(o, "iteration", count_or_null_json(s->iteration));
    json_object_set_new(o, "train_iters", count_or_null_json(s->train_iters));
    json_object_set_new(o, "consumed_samples", count_or_null_json(s->consumed_samples));
    json_object_set_new(o, "consumed_tokens", count_or_null_json(s->consumed_tokens));
    json_object_set_new(o, "loss", real(s->loss));
    json_object_set_new(o, "learning_rate", s->lr < 0 ? json_null() : real(s->lr));
    json_object_set_new(o, "iteration_s", s->iteration_s < 0 ? json_null() : real(s->iteration_s));
    json_object_set_new(o, "loss_scale", s->loss_scale > 0 ? real(s->loss_scale) : json_null());
    json_object_set_new(o, "skipped_steps", count_or_null_json(s->skipped_steps));
    json_object_set_new(o, "last_complete_tag", text(s->last_complete_tag));
    json_object_set_new(o, "saving_tag", text(s->saving_tag));
    json_object_set_new(o, "save_stall_s", s->save_wall_s > 0 ? real(s->save_stall_s) : json_null());
    json_object_set_new(o, "save_wall_s", s->save_wall_s > 0 ? real(s->save_wall_s) : json_null());
    json_object_set_new(o, "save_slowdown_s", s->save_wall_s > 0 ? real(s->save_slowdown_s) : json_null());
    json_object_set_new(o, "stalled", text(s->reason == STATUS_RUNNING ? stalled : NULL));
    json_object_set_new(o, "stop_reason", text(status_reason_name(s->reason)));
    json_object_set_new(o, "signal", text(s->reason == STATUS_SIGNAL ? status_signal_name(s->signal) : NULL));
    json_object_set_new(o, "message", text(s->message));
    json_object_set_new(o, "cause", text(s->cause));
    json_object_set_new(o, "report", text(s->report));
    out = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return out;
}

static int write_file(const char *path, const char *buf, size_t n, struct err *e)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), rc;

    if (fd < 0) {
        err_sys(e, path, "cannot create");
        return -1;
    }
    rc = write_all_at(fd, buf, n, 0);
    /* close() can fail: on a network file system, an exceeded quota may be reported only then. */
    if (close(fd) < 0)
        rc = -1;
    if (rc < 0)
        err_sys(e, path, "cannot write %zu bytes", n);
    return rc;
}

/*
 * Replace the file atomically like file_replace(), but without waiting for the disk, because this happens in every
 * iteration. Returns 1 if the process has already written its last status.
 */
static int replace_unsynced(const char *path, const char *buf, size_t n, struct err *e)
{
    char *tmp = str_fmt("%s.%ld.part", path, (long)gettid());
    int rc = write_file(tmp, buf, n, e);

    if (rc == 0 && atomic_load(&ended))
        rc = 1;
    else if (rc == 0 && rename(tmp, path) < 0) {
        err_sys(e, path, "cannot rename from %s", tmp);
        rc = -1;
    }
    if (rc)
        unlink(tmp);
    free(tmp);
    return rc;
}

/* Replace the file by `json` as one line, and free `json`. */
static int replace_by_json(const char *path, char *json, struct err *e)
{
    char *line = str_fmt("%s\n", json);
    int rc = replace_unsynced(path, line, strlen(line), e);

    free(json);
    free(line);
    return rc;
}

int status_write(const char *path, const struct status *s, struct err *e)
{
    int rc;

    pthread_mutex_lock(&one_writer);
    rc = replace_by_json(path, dump_status_json(s), e);
    pthread_mutex_unlock(&one_writer);
    return rc < 0 ? -1 : 0;
}

int status_end(const char *path, const struct status *s, struct err *e)
{
    struct timespec until;
    bool locked;
    int rc;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    /*
     * Wait for the mutex for at most a second: a thread that crashed while it was writing never unlocks it, and the
     * disk may hang. Writing without the mutex is safe, because every thread's temporary file has its own name.
     */
    locked = pthread_mutex_clocklock(&one_writer, CLOCK_MONOTONIC, &until) == 0;
    rc = replace_by_json(path, dump_status_json(s), e);
    if (rc == 0)
        atomic_store(&ended, true);
    if (locked)
        pthread_mutex_unlock(&one_writer);
    return rc;
}

int status_sync(const char *path, struct err *e)
{
    return file_sync(path, e) < 0 ? -1 : dir_sync(path, e);
}

int status_stalled(const char *path, const struct status *s, const char *why, struct err *e)
{
    pthread_mutex_lock(&one_writer);
    free(stalled);
    stalled = why ? xstrdup(why) : NULL;
    pthread_mutex_unlock(&one_writer);
    return status_write(path, s, e);
}

int status_stalled_for(const char *path, const char *host, long pid, const char *why, struct err *e)
{
    json_t *o = json_load_file(path, 0, NULL);
    const char *there = json_string_value(json_object_get(o, "host"));
    int rc;

    if (!there || strcmp(there, host) != 0 || json_integer_value(json_object_get(o, "pid")) != pid) {
        json_decref(o);
        return 0;
    }
    json_object_set_new(o, "stalled", text(why));
    json_object_set_new(o, "updated_s", real(clock_wall_s()));
    pthread_mutex_lock(&one_writer);
    rc = replace_by_json(path, json_dumps(o, JSON_COMPACT), e);
    pthread_mutex_unlock(&one_writer);
    json_decref(o);
    return rc < 0 ? -1 : 0;
}

static double read_status_number(const json_t *o, const char *key, double otherwise)
{
    const json_t *v = json_object_get(o, key);

    return json_is_number(v) ? json_number_value(v) : otherwise;
}

void status_recall(const char *path, struct status *s)
{
    json_t *o = json_load_file(path, 0, NULL);

    if (!o)
        return;
    s->iteration = (int64_t)read_status_number(o, "iteration", (double)s->iteration);
    s->train_iters = (int64_t)read_status_number(o, "train_iters", (double)s->train_iters);
    s->consumed_samples = (int64_t)read_status_number(o, "consumed_samples", (double)s->consumed_samples);
    s->consumed_tokens = (int64_t)read_status_number(o, "consumed_tokens", (double)s->consumed_tokens);
    s->loss = read_status_number(o, "loss", s->loss);
    s->lr = read_status_number(o, "learning_rate", s->lr);
    s->iteration_s = read_status_number(o, "iteration_s", s->iteration_s);
    json_decref(o);
}

const char *cause_name(int status)
{
    switch ((enum cause)status) {
    case CAUSE_HANG: return "hang";
    case CAUSE_LOST: return "lost";
    case CAUSE_CRASH: return "crash";
    case CAUSE_NAN: return "nan";
    case CAUSE_SAVE: return "save";
    case CAUSE_REPLICAS: return "replicas";
    case CAUSE_DEVICE: return "device";
    case CAUSE_FAILED: break;
    }
    return "failed";
}

/* ---- kill switch ---- */

bool status_kill_switch(const char *path)
{
    return path && access(path, F_OK) == 0;
}

/* ---- signals ---- */

static volatile sig_atomic_t stop_signal;
static void (*dump_call)(int sig);

static void on_stop(int sig)
{
    if (!stop_signal)
        stop_signal = sig;
    /*
     * Restore the default action of SIGINT only, because the user intends a second ^C to kill the program. SIGTERM may
     * arrive twice, because srun and the launcher both forward it.
     */
    if (sig == SIGINT)
        signal(SIGINT, SIG_DFL);
}

static void on_dump(int sig)
{
    int saved = errno;

    if (dump_call)
        dump_call(sig);
    errno = saved;
}

static const int stops[] = { SIGTERM, SIGINT, SIGUSR1 };

void status_catch_signals(void (*dump_now)(int sig))
{
    struct sigaction sa = { .sa_handler = on_stop, .sa_flags = SA_RESTART };

    dump_call = dump_now;
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        sigaction(stops[i], &sa, NULL);
    sa.sa_handler = on_dump;
    sigaction(SIGUSR2, &sa, NULL);
    /*
     * If a file exceeds the shell's limit for file sizes, writing then fails with an error instead of a signal, and the
     * save is tried again.
     */
    signal(SIGXFSZ, SIG_IGN);
}

void status_release_signals(void)
{
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++)
        signal(stops[i], SIG_DFL);
}

int status_stop_signal(void)
{
    return stop_signal;
}

const char *status_signal_name(int sig)
{
    static const struct { int sig; const char *name; } names[] = {
        { SIGTERM, "SIGTERM" }, { SIGINT, "SIGINT" }, { SIGUSR1, "SIGUSR1" }, { SIGUSR2, "SIGUSR2" },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].sig == sig)
            return names[i].name;
    return "signal";
}

/* ---- clock ---- */

int64_t status_start_ticks(int64_t pid)
{
    char path[64], buf[1024], *p, state = '?';
    FILE *f;
    size_t n;
    unsigned long long ticks;

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    f = fopen(path, "re");
    n = f ? fread(buf, 1, sizeof buf - 1, f) : 0;
    if (f)
        fclose(f);
    buf[n] = '\0';
    p = strrchr(buf, ')');              /* the process name, which ends here, may contain any character */
    if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
                     &ticks) != 2)
        return -1;
    return state == 'Z' || state == 'X' ? 0 : (int64_t)ticks;
}

/* Returns the seconds since this process started, or -1 if they are unknown. */
static double seconds_since_start(void)
{
    const int64_t ticks = status_start_ticks(getpid());
    struct timespec boot;

    if (ticks < 0)
        return -1;
    clock_gettime(CLOCK_BOOTTIME, &boot);
    return (double)boot.tv_sec + 1e-9 * (double)boot.tv_nsec - (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

double status_process_start(void)
{
    static double start;

    if (start == 0) {
        double age = seconds_since_start();

        start = clock_wall_s() - (age > 0 ? age : 0);
    }
    return start;
}

bool status_duration_over(double start, double now, int64_t limit_mins, double *minutes)
{
    *minutes = (now - start) / 60.0;
    return limit_mins > 0 && *minutes > (double)limit_mins;
}
