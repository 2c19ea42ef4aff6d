/*
 * pulse_inspect.c - the verb pulse: check that a job of a given name is running or pending
 *
 * Lines begin with "[date time] PULSE: ", so that they can be appended to the main log and found there. With --compat
 * bigscience they are identical to those of that project's slurm-status.py, including its parentheses, because existing
 * scripts parse them. In this case squeue is called with that script's format, which cuts names at 40 characters and
 * separates fields by blanks. Otherwise a format is used whose last field is the complete name. getent and squeue are
 * found through PATH.
 */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/child.h"
#include "tools/run-watch/runwatch.h"

/* ---- the jobs in Slurm's queue, as listed by squeue ---- */

enum pulse_field { PULSE_ID, PULSE_PARTITION, PULSE_NAME, PULSE_STATE, PULSE_TIME, PULSE_NODES, PULSE_START,
                   PULSE_NOTES, PULSE_FIELDS };

struct pulse_jobs {
    char *text;                 /* the output of squeue, to which the fields of all jobs point */
    struct pulse_job {
        const char *field[PULSE_FIELDS];
    } *job;
    int n, cap;
    int n_strange;              /* number of lines that could not be parsed */
};

static const double ask_limit_s = 60;
static const char compat_format[] = "%.16i %.9P %.40j %.8T %.10M %.6D %.20S %R";
static const char own_format[] = "%i|%P|%T|%M|%D|%S|%R|%j";

static void free_jobs(struct pulse_jobs *j)
{
    free(j->text);
    free(j->job);
    *j = (struct pulse_jobs){0};
}

/* Run a program and get its output. An exit status other than 0 is a failure. */
static int run_query_program(const char *const *argv, struct strbuf *out, struct err *e)
{
    struct strbuf err_text = {0};
    const struct child_call c = { argv, .out = out, .err = &err_text, .limit_s = ask_limit_s, .stopped = cli_stopped };
    char words[512];
    int status, rc = child_run(&c, &status, e);

    if (rc == 0 && status != 0) {
        err_data(e, argv[0], ERR_NO_BYTE, "failed with status %d: %s", status,
                 child_last_words(&err_text, words, sizeof words));
        rc = -1;
    }
    strbuf_add(out, "", 0);
    strbuf_free(&err_text);
    return rc;
}

/*
 * Returns the users of a group as a list such as "foo,bar". This is the text after the last colon of the line that
 * getent prints. The caller frees it.
 */
static char *group_users(const char *group, struct err *e)
{
    const char *const argv[] = { "getent", "group", group, NULL };
    struct strbuf out = {0};
    char *users = NULL, *colon;

    if (run_query_program(argv, &out, e) == 0) {
        out.buf[strcspn(out.buf, "\n")] = '\0';
        colon = strrchr(out.buf, ':');
        if (colon && colon[1])
            users = xstrdup(colon + 1);
        else
            err_data(e, group, ERR_NO_BYTE, "a group with no users (getent group)");
    }
    strbuf_free(&out);
    return users;
}

static char *find_users(const struct runwatch *w, struct err *e)
{
    struct passwd *me;

    if (w->group)
        return group_users(w->group, e);
    if (w->users)
        return xstrdup(w->users);
    me = getpwuid(getuid());
    if (!me)
        err_data(e, "pulse", ERR_NO_BYTE, "this user has no name; give --users or --group");
    return me ? xstrdup(me->pw_name) : NULL;
}

/* Split a line of squeue at blanks into seven words and the rest. Returns false if the line has fewer words. */
static bool split_blanks(char *line, struct pulse_job *job)
{
    for (int i = 0; i < PULSE_FIELDS; i++) {
        line += strspn(line, " \t");
        if (!*line)
            return false;
        job->field[i] = line;
        line += i < PULSE_FIELDS - 1 ? strcspn(line, " \t") : strlen(line);
        if (*line)
            *line++ = '\0';
    }
    return true;
}

static bool split_bars(char *line, struct pulse_job *job)
{
    static const enum pulse_field order[] = { PULSE_ID, PULSE_PARTITION, PULSE_STATE, PULSE_TIME, PULSE_NODES,
                                              PULSE_START, PULSE_NOTES, PULSE_NAME };

    for (int i = 0; i < PULSE_FIELDS; i++) {
        char *bar = i < PULSE_FIELDS - 1 ? strchr(line, '|') : NULL;

        if (i < PULSE_FIELDS - 1 && !bar)
            return false;
        job->field[order[i]] = line;
        if (bar) {
            *bar = '\0';
            line = bar + 1;
        }
    }
    return true;
}

static void parse_job_lines(struct pulse_jobs *j, const struct runwatch *w)
{
    const bool compat = w->compat == RUNWATCH_BIGSCIENCE;
    bool head = compat;

    for (char *line = j->text, *next; line && *line; line = next, head = false) {
        struct pulse_job job;
        size_t n = strcspn(line, "\n");

        next = line[n] ? line + n + 1 : line + n;
        while (n && (line[n - 1] == ' ' || line[n - 1] == '\r'))
            n--;
        line[n] = '\0';
        if (!*line)
            continue;
        if (!(compat ? split_blanks(line, &job) : split_bars(line, &job))) {
            j->n_strange++;
        } else if (strcmp(job.field[PULSE_NAME], w->job_name) == 0 &&
                   !(head && strcmp(job.field[PULSE_ID], "JOBID") == 0)) {
            ARRAY_ROOM(j->job, j->cap, j->n + 1);
            j->job[j->n++] = job;
        }
    }
}

/*
 * List the jobs with squeue, and keep those named w->job_name. If a group is given, getent first lists its users. If
 * the function fails (ERR_SYS, ERR_DATA), nothing is known about the jobs.
 */
static int read_jobs(struct pulse_jobs *j, const struct runwatch *w, struct err *e)
{
    const bool compat = w->compat == RUNWATCH_BIGSCIENCE;
    char *users = find_users(w, e), *of = str_fmt("--user=%s", users ? users : "");
    const char *const argv[] = { "squeue", of, "-o", compat ? compat_format : own_format, compat ? NULL : "-h", NULL };
    struct strbuf out = {0};
    int rc = users ? run_query_program(argv, &out, e) : -1;

    if (rc == 0) {
        j->text = out.buf;
        parse_job_lines(j, w);
    } else {
        strbuf_free(&out);
    }
    free(of);
    free(users);
    return rc;
}

/* ---- what the states of jobs mean ---- */

/* What the state of a job means for the run. */
enum pulse_hope { PULSE_WELL, PULSE_STUCK, PULSE_STRANGE };

static void add_stamp(struct runwatch *w)
{
    time_t t = (time_t)w->now_s;
    char stamp[32];
    struct tm tm;

    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&t, &tm));
    strbuf_addf(&w->text, "[%s] PULSE: ", stamp);
}

/*
 * Compute the number of seconds from now to a local time such as 2021-08-06T15:23:46, as the difference of the two
 * local clock times, rounded down. Returns false if the text is not a time.
 */
static bool seconds_to(const struct runwatch *w, const char *start, long *seconds)
{
    time_t t = (time_t)w->now_s;
    struct tm then = {0}, now;
    const char *end = strptime(start, "%Y-%m-%dT%H:%M:%S", &then);

    if (!end || *end)
        return false;
    localtime_r(&t, &now);
    *seconds = (long)(timegm(&then) - timegm(&now)) - (w->now_s > (double)t ? 1 : 0);
    return true;
}

/* Append a duration in the format of Python's timedelta: "1 day, 2:03:04", "-1 day, 23:59:59". */
static void add_timedelta(struct strbuf *sb, long s)
{
    long days = s / 86400 - (s % 86400 < 0), left = s - days * 86400;

    if (days)
        strbuf_addf(sb, "%ld day%s, ", days, days == 1 || days == -1 ? "" : "s");
    strbuf_addf(sb, "%ld:%02ld:%02ld", left / 3600, left / 60 % 60, left % 60);
}

/* ---- lines in bigscience's format ---- */

static void add_pending_compat(struct runwatch *w, const struct pulse_job *job, const char *where)
{
    const char *const *f = job->field;
    long seconds;

    if (strcmp(f[PULSE_START], "N/A") != 0) {
        strbuf_addf(&w->text, "%s is scheduled to start in ", f[PULSE_NAME]);
        if (seconds_to(w, f[PULSE_START], &seconds))
            add_timedelta(&w->text, seconds);
        else
            strbuf_addf(&w->text, "?");
        strbuf_addf(&w->text, " (at %s) (%s)\n", f[PULSE_START], where);
    } else if (strcmp(f[PULSE_NOTES], "(JobArrayTaskLimit)") == 0) {
        strbuf_addf(&w->text, "%s is waiting for the previous Job Array job to finish before scheduling a new one "
                    "(%s)\n", f[PULSE_NAME], where);
    } else if (strcmp(f[PULSE_NOTES], "(Dependency)") == 0) {
        strbuf_addf(&w->text, "%s is waiting for the previous job to finish before scheduling a new one using the "
                    "dependency mechanism (%s)\n", f[PULSE_NAME], where);
    } else {
        strbuf_addf(&w->text, "%s is waiting to be scheduled (%s)\n", f[PULSE_NAME], where);
    }
}

static enum pulse_hope add_compat_job_text(struct runwatch *w, const struct pulse_job *job)
{
    const char *const *f = job->field;
    char *where = str_fmt("%s on '%s' partition", f[PULSE_ID], f[PULSE_PARTITION]);
    enum pulse_hope hope = PULSE_WELL;

    add_stamp(w);
    if (strcmp(f[PULSE_STATE], "RUNNING") == 0) {
        strbuf_addf(&w->text, "%s is running for %s since %s (%s (%s)\n", f[PULSE_NAME], f[PULSE_TIME], f[PULSE_START],
                    where, f[PULSE_NOTES]);
    } else if (strcmp(f[PULSE_STATE], "PENDING") == 0) {
        add_pending_compat(w, job, where);
    } else {
        strbuf_addf(&w->text, "%s is unknown - fix me: (at %s) (%s) (%s)\n", f[PULSE_NAME], f[PULSE_START], where,
                    f[PULSE_NOTES]);
        hope = PULSE_STRANGE;
    }
    free(where);
    return hope;
}

/* ---- the default lines ---- */

static bool is_one_of(const char *word, const char *const *list)
{
    for (; *list; list++)
        if (strstr(word, *list))
            return true;
    return false;
}

/* Append the time at which a pending job will start, if that is known. */
static void add_start(struct runwatch *w, const char *start)
{
    char span[24];
    long seconds;

    if (!seconds_to(w, start, &seconds))
        return;
    if (seconds >= 0)
        strbuf_addf(&w->text, ", to start in %s, at %s", round_span((double)seconds, span), start);
    else
        strbuf_addf(&w->text, ", was to start %s ago, at %s", round_span((double)-seconds, span), start);
}

static enum pulse_hope add_job_text(struct runwatch *w, const struct pulse_job *job)
{
    /* The reasons by which Slurm reports that a pending job will never start unless a person intervenes. */
    static const char *const stuck[] = { "DependencyNeverSatisfied", "JobHeld", "requeued held", "BadConstraints",
                                         "InvalidAccount", "InvalidQOS", "PartitionTimeLimit", "PartitionNodeLimit",
                                         "PartitionDown", "PartitionInactive", NULL };
    static const char *const running[] = { "RUNNING", "CONFIGURING", "COMPLETING", NULL };
    const char *const *f = job->field;
    enum pulse_hope hope = PULSE_STRANGE;
    size_t from = w->text.len;

    add_stamp(w);
    strbuf_addf(&w->text, "%s is %s", f[PULSE_NAME], f[PULSE_STATE]);
    if (strcmp(f[PULSE_STATE], "PENDING") == 0) {
        hope = is_one_of(f[PULSE_NOTES], stuck) ? PULSE_STUCK : PULSE_WELL;
        add_start(w, f[PULSE_START]);
    } else if (is_one_of(f[PULSE_STATE], running)) {
        hope = PULSE_WELL;
        strbuf_addf(&w->text, " for %s since %s", f[PULSE_TIME], f[PULSE_START]);
    }
    strbuf_addf(&w->text, " (job %s on %s, %s nodes) %s\n", f[PULSE_ID], f[PULSE_PARTITION], f[PULSE_NODES],
                f[PULSE_NOTES]);
    /* With -q, print only problems. */
    if (w->cli.quiet && hope == PULSE_WELL)
        w->text.len = from;
    return hope;
}

/* ---- all jobs ---- */

static void report_missing_job(struct runwatch *w)
{
    const bool compat = w->compat == RUNWATCH_BIGSCIENCE;

    add_stamp(w);
    if (compat)
        strbuf_addf(&w->text, "***ALERT: %s is not RUNNING or SCHEDULED! Alert someone at Eng WG***\n", w->job_name);
    else
        strbuf_addf(&w->text, "ALERT: %s is neither running nor waiting\n", w->job_name);
    w->subject = str_fmt("[ALERT] %s is neither running nor scheduled to run", w->job_name);
    round_wrong(w, "gone", w->job_name, "neither running nor waiting");
}

/* It is sufficient if one job of this name is running or will run. */
static void report_job_state(struct runwatch *w, const struct pulse_job *job, const int *n)
{
    const char *const *f = job->field;

    if (n[PULSE_WELL])
        round_report_ok(w, "alive", w->job_name, "%d jobs run or wait", n[PULSE_WELL]);
    else if (n[PULSE_STUCK])
        round_wrong(w, "stuck", w->job_name, "waits for what does not come by itself: job %s %s", f[PULSE_ID],
                    f[PULSE_NOTES]);
    else
        round_unknown(w, "state", w->job_name, "whether it runs: job %s is %s %s", f[PULSE_ID], f[PULSE_STATE],
                      f[PULSE_NOTES]);
}

int pulse_inspect(struct runwatch *w, struct err *e)
{
    struct pulse_jobs jobs = {0};
    int n[3] = {0}, rc = -1, last = 0;

    if (!w->job_name) {
        err_usage(e, "pulse needs --job-name NAME");
        return -1;
    }
    w->scope = str_fmt("pulse %s", w->job_name);
    if (read_jobs(&jobs, w, e) < 0)
        goto out;
    for (int i = 0; i < jobs.n; i++) {
        const struct pulse_job *job = &jobs.job[i];
        enum pulse_hope hope = w->compat == RUNWATCH_BIGSCIENCE ? add_compat_job_text(w, job) : add_job_text(w, job);

        n[hope]++;
        last = hope != PULSE_WELL ? i : last;
    }
    json_object_set_new(w->facts, "n_jobs", json_integer(jobs.n));
    if (jobs.n)
        report_job_state(w, &jobs.job[last], n);
    else if (jobs.n_strange)
        round_unknown(w, "squeue", w->job_name, "whether it runs: %d lines of squeue are not understood",
                      jobs.n_strange);
    else
        report_missing_job(w);
    rc = 0;
out:
    free_jobs(&jobs);
    return rc;
}
