/*
 * watch_record.c - the activity of this rank, recorded by its thread and converted to text by its monitor
 */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/comm/watch.h"
#include "libcommon/comm/watch_impl.h"

/* ---- the activity record ---- */

static void activity_update_begin(struct note *n)
{
    atomic_fetch_add(&n->version, 1);
}

static void activity_update_end(struct note *n)
{
    atomic_store(&n->since_ns, clock_ns());
    atomic_fetch_add(&n->version, 1);
}

#define PUT(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)
#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)

void watch_phase(struct watch *w, const char *phase, int64_t iteration, int micro_batch)
{
    struct note *n = &w->note;

    activity_update_begin(n);
    PUT(n->phase, phase);
    PUT(n->iteration, iteration);
    PUT(n->micro_batch, micro_batch);
    activity_update_end(n);
    if (w->o.on_phase)
        w->o.on_phase(w->o.arg, phase, micro_batch);
}

/* The kind of a wait: for a rank, or for something else with or without a time limit. */
enum wait { WAIT_RANK, WAIT_OUTSIDE, WAIT_LONG };

static void enter(struct watch *w, const char *call, const char *group, uint64_t number, enum wait wait)
{
    struct note *n = &w->note;

    activity_update_begin(n);
    PUT(n->call, call);
    PUT(n->group, group);
    PUT(n->outside, wait != WAIT_RANK);
    PUT(n->unlimited, wait == WAIT_LONG);
    PUT(n->number, number);
    PUT(n->waiting_for, -1);
    PUT(n->n_waiting, 0);
    activity_update_end(n);
    if (w->o.on_call)
        w->o.on_call(w->o.arg, call, group, wait != WAIT_RANK);
}

void watch_enter(struct watch *w, const char *call, const char *group, uint64_t number)
{
    enter(w, call, group, number, WAIT_RANK);
}

void watch_outside(struct watch *w, const char *what, int64_t number, const char *of)
{
    enter(w, what, of, number < 0 ? UINT64_MAX : (uint64_t)number, WAIT_OUTSIDE);
}

void watch_outside_long(struct watch *w, const char *what, int64_t number, const char *of)
{
    enter(w, what, of, number < 0 ? UINT64_MAX : (uint64_t)number, WAIT_LONG);
}

void watch_queues(struct watch *w) { atomic_store(&w->note.queues, true); }

static void leave_watched_call(struct watch *w)
{
    struct note *n = &w->note;

    if (w->o.on_call)
        w->o.on_call(w->o.arg, NULL, NULL, GET(n->outside));
    activity_update_begin(n);
    PUT(n->call, NULL);
    activity_update_end(n);
}

void watch_leave(struct watch *w)
{
    w->in_calls_ns += clock_ns() - GET(w->note.since_ns);
    leave_watched_call(w);
}

/*
 * End an outside wait. Its duration is not counted as time in calls, because no other rank caused it. If it were
 * counted, a rank that reads slowly would not be recognised as the straggler.
 */
void watch_outside_end(struct watch *w)
{
    leave_watched_call(w);
}

double watch_seconds_in_calls(const struct watch *w)
{
    return (double)w->in_calls_ns * 1e-9;
}

void watch_waits_for(struct watch *w, int rank, int how_many)
{
    PUT(w->note.waiting_for, rank);
    PUT(w->note.n_waiting, how_many);
}

/* A consistent copy of the activity record. */
struct seen {
    const char *phase, *call, *group;
    int64_t iteration, since_ns;
    uint64_t number;
    int micro_batch, waiting_for, n_waiting;
    bool outside, unlimited, queues;
};

static struct seen read_activity(struct note *n)
{
    struct seen s;
    unsigned before;
    int tries = 0;

    /* Limit the number of attempts, because a rank that crashed may never complete an update of its record. */
    do {
        before = atomic_load(&n->version);
        s = (struct seen){
            .phase = atomic_load(&n->phase), .call = atomic_load(&n->call), .group = atomic_load(&n->group),
            .iteration = atomic_load(&n->iteration), .since_ns = atomic_load(&n->since_ns),
            .number = atomic_load(&n->number), .micro_batch = atomic_load(&n->micro_batch),
            .waiting_for = GET(n->waiting_for), .n_waiting = GET(n->n_waiting), .outside = atomic_load(&n->outside),
            .unlimited = GET(n->unlimited), .queues = GET(n->queues),
        };
    } while ((before & 1 || before != atomic_load(&n->version)) && ++tries < 1000000);
    return s;
}

static void append_activity_text(char *text, const char *fmt, ...) PRINTF_LIKE(2, 3);
static void append_activity_text(char *text, const char *fmt, ...)
{
    size_t n = strlen(text);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text + n, WIRE_TEXT - n, fmt, ap);
    va_end(ap);
}

static void add_phase(char *text, const struct seen *s)
{
    append_activity_text(text, "%s", s->phase);
    if (s->micro_batch >= 0)
        append_activity_text(text, " of micro-batch %d", s->micro_batch);
    if (s->iteration >= 0)
        append_activity_text(text, " of iteration %lld", (long long)s->iteration);
}

/*
 * Append a description of the wait, such as "has waited 61 s in all_reduce #1234 of group tp for rank 2" or "has waited
 * 61 s for sample 7 of data/text".
 */
static void add_wait(char *text, const struct seen *s, long long seconds)
{
    append_activity_text(text, "has waited %lld s %s %s", seconds, s->outside ? "for" : "in", s->call);
    if (!s->outside)
        append_activity_text(text, " #%llu of group %s", (unsigned long long)s->number, s->group);
    else if (s->number != UINT64_MAX)
        append_activity_text(text, " %llu", (unsigned long long)s->number);
    if (s->outside && s->group)
        append_activity_text(text, " of %s", s->group);
    if (s->waiting_for >= 0)
        append_activity_text(text, " for rank %d", s->waiting_for);
    if (s->n_waiting > 1)
        append_activity_text(text, " and %d more", s->n_waiting - 1);
    if (s->phase) {
        append_activity_text(text, ", in ");
        add_phase(text, s);
    }
}

void watch_activity(struct watch *w, struct watch_doing *r)
{
    struct seen s = read_activity(&w->note);
    long long seconds = (clock_ns() - s.since_ns) / SECOND;

    memset(r, 0, sizeof *r);
    r->in_call = s.call && !s.outside;
    r->waiting_for = s.call ? s.waiting_for : -1;
    r->known = true;
    if (s.call) {
        add_wait(r->text, &s, seconds);
    } else {
        append_activity_text(r->text, "is ");
        if (s.phase) {
            append_activity_text(r->text, "in ");
            add_phase(r->text, &s);
        } else {
            append_activity_text(r->text, "in no known phase");
        }
        append_activity_text(r->text, " since %lld s", seconds);
    }
}

/*
 * Returns the time since which another rank or an outside object may have been blocking this rank, or 0 if this rank is
 * not blocked.
 */
static int64_t held_since(const struct seen *s)
{
    return s->call || (s->queues && s->micro_batch >= 0) ? s->since_ns : 0;
}

bool watch_may_last(struct watch *w)
{
    struct seen s = read_activity(&w->note);

    return s.call && s.unlimited;
}

enum stall_news watch_stall_news(struct watch *w, int64_t *reported_ns)
{
    struct seen s = read_activity(&w->note);
    int64_t since = held_since(&s);

    if (*reported_ns && *reported_ns != since) {
        *reported_ns = 0;
        return STALL_ENDS;
    }
    if (*reported_ns || !since || !w->stall_ns || clock_ns() - since <= w->stall_ns)
        return STALL_NONE;
    *reported_ns = since;
    return STALL_BEGINS;
}

bool watch_is_stuck(struct watch *w)
{
    int64_t limit = atomic_load(&w->timeout_ns);
    struct seen s = read_activity(&w->note);

    return limit > 0 && held_since(&s) && !(s.call && s.unlimited) && clock_ns() - s.since_ns > limit;
}

void watch_timeout(struct watch *w, double seconds)
{
    atomic_store(&w->timeout_ns, seconds > 0 ? (int64_t)(seconds * 1e9) : 0);
}

/* ---- output ---- */

void watch_log(struct watch *w, const char *fmt, ...)
{
    char line[3 * WIRE_TEXT];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    if (w->o.say) {
        w->o.say(w->o.arg, line);
        return;
    }
    n = n < (int)sizeof line - 1 ? n : (int)sizeof line - 2;
    line[n++] = '\n';
    /*
     * A single write keeps lines of several ranks separate. stdio is avoided because a stuck thread may hold its
     * lock.
     */
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        return;
}

void watch_name(const struct watch *w, int rank, char *text, size_t room)
{
    const char *device = atomic_load(&w->device[rank]);

    snprintf(text, room, "rank %d (host %s, pid %ld%s%s)", rank, w->place[rank].host, w->place[rank].pid,
             device ? ", " : "", device ? device : "");
}

struct stall_words {
    struct comm_options o;
    char *text;
};

static void *run_stall_callback(void *arg)
{
    struct stall_words *s = arg;

    s->o.on_stall(s->o.arg, s->text);
    free(s->text);
    free(s);
    return NULL;
}

void watch_report_stall(struct watch *w, const char *text)
{
    struct stall_words *s;
    pthread_t t;

    if (!w->o.on_stall)
        return;
    s = xcalloc(1, sizeof *s);
    s->o = w->o;
    s->text = text ? xstrdup(text) : NULL;
    if (pthread_create(&t, NULL, run_stall_callback, s) == 0) {
        pthread_detach(t);
        return;
    }
    free(s->text);
    free(s);
}

/* The exit status that the alarm's handler uses. There is one world per process. */
static volatile sig_atomic_t status_in_the_end;
static void (*volatile at_leave)(void);

static void on_alarm(int sig)
{
    (void)sig;
    if (at_leave)
        at_leave();
    _exit(status_in_the_end);
}

void watch_last_words(struct watch *w, const struct watch_end *end)
{
    sigset_t only;

    if (!w->o.on_abort)
        return;
    /* The process must end even if the callback hangs. */
    status_in_the_end = end->status;
    at_leave = w->o.on_leave;
    signal(SIGALRM, on_alarm);
    sigemptyset(&only);
    sigaddset(&only, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    alarm(LAST_WORDS_S);
    w->o.on_abort(w->o.arg, end);
    alarm(0);
}

void watch_all_left(struct watch *w)
{
    if (w->o.on_abort && w->o.on_left) {
        alarm(LAST_WORDS_S);
        w->o.on_left(w->o.arg);
        alarm(0);
    }
    if (at_leave)
        at_leave();
}

void watch_leave_job(struct watch *w, const struct watch_end *end)
{
    watch_last_words(w, end);
    watch_all_left(w);
    _exit(end->status);
}

int watch_letters(struct watch *w, char *letters, int room)
{
    ssize_t n = read(w->wake[0], letters, (size_t)room);

    return n > 0 ? (int)n : 0;
}

_Noreturn void watch_die(void)
{
    sigset_t only;

    signal(SIGTERM, SIG_DFL);
    sigemptyset(&only);
    sigaddset(&only, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL);
    raise(SIGTERM);
    _exit(1);
}
