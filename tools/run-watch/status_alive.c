/*
 * status_alive.c - check whether the run is alive and makes progress, or how it ended
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/text.h"
#include "tools/run-watch/status_inspect.h"

/* The difference in seconds between the clocks of two hosts that is tolerated. */
enum { CLOCK_S = 120 };

static double larger(double a, double b) { return a > b ? a : b; }

/*
 * Returns the time at which this program first saw the run at its current iteration. If the book has no earlier record
 * of this iteration, the result is the time of the last update of status.json.
 */
static double seen_since(struct runwatch *w, const char *dir, const struct status_run *s)
{
    double since = s->updated_s < w->now_s ? s->updated_s : w->now_s;
    struct err e = {0};
    struct book b;
    json_t *run, *name;

    /* If the book cannot be opened, continue without it. If it is needed for alarms, that failure is reported there. */
    if (round_book(w, &b, &e) < 0) {
        book_close(&b);
        return since;
    }
    name = text_json(dir);
    run = json_object_get(book_part(&b, "runs"), json_string_value(name));
    if (json_is_object(run) && (int64_t)book_number(run, "iteration", -2) == s->iteration &&
        book_number(run, "started_s", 0) == s->started_s) {
        since = book_number(run, "since_s", since);
    } else {
        json_object_set_new(book_part(&b, "runs"), json_string_value(name),
                            json_pack("{s:I, s:f, s:f}", "iteration", (json_int_t)s->iteration, "started_s",
                                      s->started_s, "since_s", since));
        if (book_save(&b, &e) < 0)
            cli_warn(&w->cli, "%s", e.msg);
    }
    json_decref(name);
    book_close(&b);
    return since;
}

/* Returns "; its process is gone" if the run's process was on this host and no longer exists, else "". */
static const char *process_gone(const struct status_run *s)
{
    char host[256] = "";

    gethostname(host, sizeof host - 1);
    return s->host && s->pid > 0 && strcmp(s->host, host) == 0 && kill((pid_t)s->pid, 0) < 0 && errno == ESRCH
           ? "; its process is gone" : "";
}

static void report_run_end(struct runwatch *w, const struct status_run *s)
{
    const bool failed = strcmp(s->stop_reason, "nan") == 0 || strcmp(s->stop_reason, "failed") == 0;
    char ago[24];

    round_span(w->now_s - s->updated_s, ago);
    if (failed)
        round_wrong(w, "failed", NULL, "ended with an error %s ago at iteration %lld (%s): %s", ago,
                    (long long)s->iteration, s->stop_reason, s->message ? s->message : "no message");
    else
        round_report_ok(w, "ended", NULL, "in good order %s ago at iteration %lld (%s)", ago, (long long)s->iteration,
                        s->stop_reason);
}

/* Returns the number of seconds without a new iteration after which the run is considered to hang. */
static double hang_limit(const struct runwatch *w, const struct status_run *s, const struct history *h)
{
    int n;
    double median = history_median(h, HISTORY_ITERATION_S, history_hour(h), h->n, &n);

    if (!isfinite(median))
        median = s->iteration_s > 0 ? s->iteration_s : 0;
    return larger(60 * w->hang_min, w->hang_iterations * median);
}

void status_alive(struct runwatch *w, const char *dir, const struct status_run *s, const struct history *h)
{
    const double limit = hang_limit(w, s, h), beat = w->now_s - s->updated_s;
    const char *phase = s->phase ? s->phase : "unknown";
    char span[24], most[24];
    double since;

    if (s->stop_reason) {
        report_run_end(w, s);
        return;
    }
    round_span(limit, most);
    since = seen_since(w, dir, s);
    if (h->dated && h->n && h->point[h->n - 1].iteration >= s->iteration)
        since = larger(h->point[h->n - 1].at_s, s->started_s);
    if (beat < -CLOCK_S)
        round_unknown(w, "clock", NULL, "its heartbeat is of %s from now: the clocks of %s and of this host differ",
                      round_span(-beat, span), s->host ? s->host : "its host");
    else if (s->stalled)
        round_wrong(w, "hang", NULL, "it stands still at iteration %lld, phase %s: %s", (long long)s->iteration, phase,
                    s->stalled);
    else if (beat > limit)
        round_wrong(w, "stale", NULL, "no heartbeat for %s (at most %s) since iteration %lld, phase %s, on %s%s",
                    round_span(beat, span), most, (long long)s->iteration, phase, s->host ? s->host : "?",
                    process_gone(s));
    /*
     * In phase "index" a run builds the order of its samples and does no iterations, so only its heartbeat shows
     * progress.
     */
    else if (w->now_s - since > limit && strcmp(phase, "index") != 0)
        round_wrong(w, "hang", NULL, "no iteration for %s (at most %s) since iteration %lld, phase %s, on %s",
                    round_span(w->now_s - since, span), most, (long long)s->iteration, phase, s->host ? s->host : "?");
    else
        round_report_ok(w, "alive", NULL, "iteration %lld, phase %s, heartbeat %s ago", (long long)s->iteration, phase,
                        round_span(larger(beat, 0), span));
}
