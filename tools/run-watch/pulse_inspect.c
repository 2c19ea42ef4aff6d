/*
 * pulse_inspect.c - the verb pulse: check that a job of a given name is running or pending
 *
 * Lines begin with "[date time] PULSE: ", so that they can be appended to the main log and found there. With --compat
 * bigscience they are identical to those of that project's slurm-status.py, including its parentheses, for existing
 * scripts that parse them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/run-watch/pulse_jobs.h"

/* The meaning of a job's state. */
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
 * Compute the seconds from now to a local time such as 2021-08-06T15:23:46, as the difference of wall-clock readings,
 * rounded down. Returns false if the text is not a time.
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

/* Append a duration as Python prints a timedelta: "1 day, 2:03:04", "-1 day, 23:59:59". */
static void add_timedelta(struct strbuf *sb, long s)
{
    long days = s / 86400 - (s % 86400 < 0), left = s - days * 86400;

    if (days)
        strbuf_addf(sb, "%ld day%s, ", days, days == 1 || days == -1 ? "" : "s");
    strbuf_addf(sb, "%ld:%02ld:%02ld", left / 3600, left / 60 % 60, left % 60);
}

/* ---- bigscience's lines ---- */

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

/* Append when a pending job will start, if that is known. */
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
    /* With these reasons, a job never starts unless a person intervenes. */
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

/* One job that is running or will run is sufficient. */
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
    if (pulse_jobs_read(&jobs, w, e) < 0)
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
    pulse_jobs_free(&jobs);
    return rc;
}
