/*
 * incident_report.c - write reports of incidents to SAVE/reports/RUN
 *
 * The code uses static buffers and system calls. The only function of stdio that it uses is snprintf() with integers
 * and strings, which allocates no memory. Only one report is written at a time: the monitor's thread may have to write
 * the final report while the main thread is writing another.
 */
#include "tools/train/guard/incident_report.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"
#include "libcommon/base/text.h"
#include "libcommon/cli/cli.h"
#include "tools/train/guard/stacks.h"
#include "tools/train/log/status.h"

int report_open(struct report_run *r, struct comm_world *world, const char *save, double start_s, struct err *e)
{
    const time_t start = (time_t)start_s;
    char job[40] = "";
    size_t n;
    struct tm utc;

    snprintf(job, sizeof job, "%s", status_job_id());
    if (comm_host_broadcast(comm_world_group(world), job, sizeof job, 0, e) < 0)
        return -1;
    if (!realpath(save, r->save)) {
        err_sys(e, save, "cannot be found");
        return -1;
    }
    gmtime_r(&start, &utc);
    n = strftime(r->name, sizeof r->name, "%Y%m%dT%H%M%SZ-", &utc);
    if (*job)
        snprintf(r->name + n, sizeof r->name - n, "%s", job);
    else
        snprintf(r->name + n, sizeof r->name - n, "pid%ld", comm_place_of(world, 0)->pid);
    for (char *c = r->name; *c; c++)
        if (*c == '/')
            *c = '_';
    stacks_prepare();
    r->world = world;
    return 0;
}

void report_path(const struct report_run *r, const char *file, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/reports/%s/%s", r->save, r->name, file) >= PATH_MAX)
        *path = '\0';
}

/* Create the folder if necessary, and open a new file in it. Returns -1 if the file cannot be created. */
static int create(const struct report_run *r, const char *file, int flags, char path[PATH_MAX])
{
    if (snprintf(path, PATH_MAX, "%s/reports", r->save) >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    mkdir(path, 0777);
    report_path(r, "", path);
    mkdir(path, 0777);
    report_path(r, file, path);
    return open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
}

/* ---- JSON without memory allocation ---- */

struct json_out {
    int fd;
    bool bad;
    size_t n;
    char buf[8192];
};

static void flush_report_json(struct json_out *o)
{
    for (size_t at = 0; at < o->n && !o->bad;) {
        const ssize_t k = write(o->fd, o->buf + at, o->n - at);

        if (k < 0 && errno == EINTR)
            continue;
        o->bad = k <= 0;
        at += k > 0 ? (size_t)k : 0;
    }
    o->n = 0;
}

static void put_report_bytes(struct json_out *o, const char *p, size_t n)
{
    if (sizeof o->buf - o->n < n)
        flush_report_json(o);
    memcpy(o->buf + o->n, p, n);
    o->n += n;
}

static void put_report_key(struct json_out *o, const char *key)
{
    char text[40];
    const char last = o->n ? o->buf[o->n - 1] : ',';

    put_report_bytes(o, text,
                     (size_t)snprintf(text, sizeof text, "%s\"%s\":", last == '{' || last == ',' ? "" : ",", key));
}

static void put_report_text(struct json_out *o, const char *key, const char *s)
{
    char escaped[8];
    size_t n = s ? strlen(s) : 0, good;

    put_report_key(o, key);
    if (!s) {
        put_report_bytes(o, "null", 4);
        return;
    }
    good = utf8_check(s, n);
    put_report_bytes(o, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)s[i];

        if (c == '"' || c == '\\')
            put_report_bytes(o, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\%c", c));
        else if (c < ' ')
            put_report_bytes(o, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", c));
        else
            put_report_bytes(o, i < good || c < 0x80 ? s + i : "?", 1);
    }
    put_report_bytes(o, "\"", 1);
}

/* Write a number, or null if the number is less than `least`. */
static void put_number(struct json_out *o, const char *key, long long v, long long least)
{
    char text[24];

    put_report_key(o, key);
    if (v < least)
        put_report_bytes(o, "null", 4);
    else
        put_report_bytes(o, text, (size_t)snprintf(text, sizeof text, "%lld", v));
}

static void put_bool(struct json_out *o, const char *key, bool v)
{
    put_report_key(o, key);
    put_report_bytes(o, v ? "true" : "false", v ? 4 : 5);
}

/* Write the keys "time" and "time_s". */
static void put_time(struct json_out *o)
{
    struct timespec now;
    struct tm utc;
    char text[40];

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02dZ", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
             utc.tm_hour, utc.tm_min, utc.tm_sec);
    put_report_text(o, "time", text);
    put_report_key(o, "time_s");
    put_report_bytes(o, text,
                     (size_t)snprintf(text, sizeof text, "%lld.%03ld", (long long)now.tv_sec, now.tv_nsec / 1000000));
}

/* Write the rank, host, pid and GPU of the rank `rank`. If `rank` is -1, all four values are null. */
static void put_place(struct json_out *o, const struct report_run *r, int rank)
{
    const struct comm_place *p = rank >= 0 ? comm_place_of(r->world, rank) : NULL;

    put_number(o, "rank", rank, 0);
    put_report_text(o, "host", p ? p->host : NULL);
    put_number(o, "pid", p ? p->pid : -1, 0);
    put_report_text(o, "gpu", p ? comm_device_name(r->world, rank) : NULL);
}

static void put_rank(struct json_out *o, const struct report_run *r, const struct report_incident *x, int rank)
{
    const struct watch_doing *d = x->doing ? &x->doing[rank] : NULL;
    const bool known = d && d->known;
    char stacks[24];

    snprintf(stacks, sizeof stacks, "rank%05d.txt", rank);
    put_report_bytes(o, rank ? ",{" : "{", rank ? 2 : 1);
    put_place(o, r, rank);
    put_bool(o, "answers", known);
    put_bool(o, "in_call", known && d->in_call);
    put_number(o, "waits_for", known ? d->waiting_for : -1, 0);
    put_report_text(o, "doing", known ? d->text : NULL);
    put_report_text(o, "stacks", stacks);
    put_report_bytes(o, "}", 1);
}

/* Returns the name of the checkpoint that the file `latest` names, or NULL. */
static const char *read_latest(const struct report_run *r, char *tag, size_t room)
{
    char path[PATH_MAX];
    const int fd = snprintf(path, sizeof path, "%s/latest", r->save) < PATH_MAX ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t n = fd < 0 ? -1 : read(fd, tag, room - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return NULL;
    tag[n] = '\0';
    tag[strcspn(tag, "\n")] = '\0';
    return tag;
}

static void put_report(struct json_out *o, const struct report_run *r, const struct report_incident *x)
{
    const char *abbreviation = x->signal ? sigabbrev_np(x->signal) : NULL;
    const int size = comm_place(r->world)->size;
    char sig[24], latest[64];

    snprintf(sig, sizeof sig, "SIG%s", abbreviation ? abbreviation : "?");
    put_report_bytes(o, "{", 1);
    put_report_text(o, "form", "train-report-1");
    put_time(o);
    put_report_text(o, "cause", x->cause);
    put_number(o, "exit_status", x->status, 1);
    put_report_text(o, "message", x->message);
    put_place(o, r, x->rank);
    put_report_text(o, "signal", x->signal ? sig : NULL);
    put_report_text(o, "tensor", x->tensor);
    put_report_text(o, "job_id", *status_job_id() ? status_job_id() : NULL);
    put_report_text(o, "run", r->name);
    put_report_text(o, "save", r->save);
    put_number(o, "world_size", size, 0);
    put_number(o, "tp", r->topo->tp, 1);
    put_number(o, "pp", r->topo->pp, 1);
    put_number(o, "dp", r->topo->dp, 1);
    put_number(o, "iteration", *r->iteration, 0);
    put_report_text(o, "phase", *r->phase);
    put_report_text(o, "last_save", read_latest(r, latest, sizeof latest));
    put_number(o, "written_by", comm_place(r->world)->rank, 0);
    put_report_key(o, "ranks");
    put_report_bytes(o, "[", 1);
    for (int rank = 0; x->status && rank < size; rank++)
        put_rank(o, r, x, rank);
    put_report_bytes(o, "]}\n", 3);
    flush_report_json(o);
}

/* ---- files ---- */

/*
 * Publish the report: rename the file `part` to `path`. This is done with link(), which does not replace an existing
 * file, so the first report of a run is kept. On file systems without link(), rename() is used, and each report
 * replaces an earlier one.
 */
static bool publish_report_file(const char *part, const char *path)
{
    bool done = link(part, path) == 0;

    if (!done && errno != EEXIST)
        return rename(part, path) == 0;
    unlink(part);
    return done;
}

static bool write_incident_report(const struct report_run *r, const struct report_incident *x, char path[PATH_MAX])
{
    static struct json_out o;
    char part[PATH_MAX], name[96];
    bool done;

    report_path(r, x->file, path);
    if (access(path, F_OK) == 0)
        return false;
    snprintf(name, sizeof name, ".%s.%d.part", x->file, comm_place(r->world)->rank);
    o = (struct json_out){ .fd = create(r, name, O_TRUNC, part) };
    if (o.fd < 0)
        return false;
    put_report(&o, r, x);
    /*
     * Do not sync the report to disk, because a job that is being ended may have no time to wait, and a run that
     * continues must not wait.
     */
    done = close(o.fd) == 0 && !o.bad;
    if (done)
        return publish_report_file(part, path);
    unlink(part);
    return false;
}

/* ---- the command of --alarm-command ---- */

enum { VARIABLES = 512, TEXT = 2600, OWN = 7 };

struct alarm_facts {
    const char *command;        /* passed to sh -c */
    const char *cause, *message;
    const char *report;         /* path of the report; "" if it could not be written */
    const char *log;            /* the command's output is appended to this file */
    const char *host;           /* the host at fault; "": unknown */
    /* rank: the rank at fault; -1: unknown. status: the exit status of the job; 0: the run continues. */
    int rank, status;
    int64_t iteration;
};

static void print_alarm_failure(int why)
{
    char line[200];
    int n = snprintf(line, sizeof line, "%s: --alarm-command: cannot start sh: %s\n", cli_typed_name("train"),
                     strerrordesc_np(why));

    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

static bool is_train_variable(const char *variable) { return strncmp(variable, "TRAIN_", 6) == 0; }

/*
 * Returns the environment for the alarm command: the environment of this process, and the variables that describe the
 * incident. The result is in static memory.
 */
static char **environment(const struct alarm_facts *f)
{
    static char own[OWN][TEXT], *all[VARIABLES + OWN + 1];
    const char *const text[][2] = { { "CAUSE", f->cause }, { "MESSAGE", f->message }, { "REPORT", f->report },
                                    { "HOST", f->host } };
    int n = 0, k = 0;

    for (; k < 4; k++)
        snprintf(own[k], TEXT, "TRAIN_%s=%s", text[k][0], text[k][1]);
    snprintf(own[k++], TEXT, f->rank >= 0 ? "TRAIN_RANK=%d" : "TRAIN_RANK=", f->rank);
    snprintf(own[k++], TEXT, f->status ? "TRAIN_EXIT_STATUS=%d" : "TRAIN_EXIT_STATUS=", f->status);
    snprintf(own[k++], TEXT, "TRAIN_ITERATION=%lld", (long long)f->iteration);
    for (int i = 0; i < k; i++)
        all[n++] = own[i];
    for (char **v = environ; *v && n < VARIABLES + OWN; v++)
        if (!is_train_variable(*v))
            all[n++] = *v;
    all[n] = NULL;
    return all;
}

/*
 * Start the command without waiting for it. Variables such as TRAIN_CAUSE describe the incident to the command. It is
 * killed after 60 s, and may outlive this process.
 *
 * The command runs in a session of its own, so it survives if a launcher kills the job's processes. It does not inherit
 * the job's standard output, because a launcher waits until that is closed. posix_spawn() is used because fork() would
 * be expensive for a large process.
 */
static void start_alarm_command(const struct alarm_facts *f)
{
    /*
     * start_alarm_command() waits only for the outer shell, which starts the alarm command in the background and exits
     * at once.
     */
    const char *const argv[] = { "sh", "-c", "timeout -k 5 60 sh -c \"$0\" &", f->command, NULL };
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    pid_t pid;
    int rc;

    sigemptyset(&none);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, *f->report ? f->log : "/dev/null", O_WRONLY | O_CREAT | O_APPEND, 0666);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    rc = posix_spawn(&pid, "/bin/sh", &files, &attr, (char *const *)argv, environment(f));
    if (rc)
        print_alarm_failure(rc);
    else
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attr);
}

/* ---- reports ---- */

/*
 * Start the alarm command on the rank that wrote the report, so that it runs once per incident. If no rank could write
 * the report, each rank that tried to write it starts the command.
 */
static void call_alarm(const struct report_run *r, const struct report_incident *x, const char *path)
{
    char log[PATH_MAX];

    report_path(r, "alarm.log", log);
    start_alarm_command(&(struct alarm_facts){
        .command = r->alarm, .cause = x->cause, .message = x->message, .report = path, .log = log,
        .host = x->rank >= 0 ? comm_place_of(r->world, x->rank)->host : "", .rank = x->rank, .status = x->status,
        .iteration = *r->iteration,
    });
}

bool report_write(const struct report_run *r, const struct report_incident *x)
{
    static atomic_flag busy = ATOMIC_FLAG_INIT;
    char path[PATH_MAX];
    bool done;

    if (!r->world)
        return false;
    while (atomic_flag_test_and_set(&busy))
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    done = write_incident_report(r, x, path);
    if (r->alarm && (done || access(path, F_OK) < 0))
        call_alarm(r, x, done ? path : "");
    atomic_flag_clear(&busy);
    return done;
}

int report_sync(const struct report_run *r, const char *file, struct err *e)
{
    char path[PATH_MAX];

    report_path(r, file, path);
    return file_sync(path, e);
}

void report_stacks(const struct report_run *r, const char *line)
{
    char name[24], path[PATH_MAX];
    int fd;

    if (!r->world)
        return;
    snprintf(name, sizeof name, "rank%05d.txt", comm_place(r->world)->rank);
    fd = create(r, name, O_APPEND, path);
    if (fd < 0)
        return;
    if (write(fd, line, strlen(line)) >= 0 && write(fd, "\n", 1) == 1)
        stacks_write(fd);
    close(fd);
}
