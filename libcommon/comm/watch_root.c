/*
 * watch_root.c - the monitor thread of rank 0: receives all reports and ends the job
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/comm/socket.h"
#include "libcommon/comm/watch_impl.h"

enum {
    LOOK_MS = 250,              /* interval at which the rank's own record is checked */
    DRAIN_S = 2,                /* time for the other ranks to leave before they are killed */
    GOODBYE_S = 10,
    NAME = 300, LINE = 2 * (WIRE_TEXT + NAME) + 16,
};
#define TERM_ENDED "died: SIGTERM ended it; ending the job"
#define ASK_NS (2 * SECOND)     /* time in which the ranks must report their activity */

/* The state of the job. A stalled job may return to JOB_RUNS. All other changes lead to a later state of this list. */
enum watch_state {
    JOB_RUNS,
    JOB_STALLS,                 /* a rank reported that it makes no progress, and all ranks have been asked for their
                                 * activity */
    JOB_STALL_PRINTED,          /* the line that names the rank at the end of the chain of waits has been printed; the
                                 * job continues */
    /*
     * a call exceeded the time limit; the job ends as soon as all ranks have reported their activity, which is printed
     * as a table
     */
    JOB_HANGS,
    JOB_ENDS,                   /* the job ends for a known reason, as soon as all ranks have reported their activity */
};

struct root {
    struct watch *w;
    enum watch_state state;
    /* The pending request to all ranks to report their activity. */
    int64_t ask_until;          /* deadline for the answers; 0: no request is pending */
    bool table_wanted;          /* print a table when the ranks have answered */
    struct watch_doing *answer; /* [size] */
    /* The current stall or hang. */
    int first;                  /* the rank that reported it first */
    int culprit;                /* the rank that the printed line named as the cause; -1: none */
    bool may_last;              /* the stalled call has no time limit, so it never ends the job */
    bool line_in_status;        /* status.json contains a line about this stall, or about the previous one */
    int64_t stalled_ns;         /* time of the first report */
    int64_t reported_ns;               /* for watch_stall_news() */
    /* A failure that may be the consequence of another failure. It ends the job at grace_until, if that is not 0. */
    int64_t grace_until;
    struct watch_end second;
    char second_hand[LINE];
    /* The end of the job: */
    struct watch_end end;
    char line[LINE];            /* the reason */
    bool term;                  /* this rank received SIGTERM */
    int64_t close_until;        /* 0 = not closing */
};

/* ---- ending the job ---- */

/*
 * Wait until the other ranks have left, which closes their connections. This rank must not close a connection first. If
 * unread data from the other rank were pending, the kernel would reset the connection, and the reason that was sent
 * would be lost.
 */
static void drain(struct watch *w, int64_t until)
{
    for (;;) {
        int open = 0, why;

        for (int r = 1; r < w->size; r++) {
            struct conn *c = &w->conn[r];
            int rc = 1;

            while (c->fd >= 0 && rc > 0)
                rc = conn_read(c, w->token, &why);
            if (rc < 0)
                conn_close(c);
            open += c->fd >= 0;
        }
        if (!open || clock_ns() > until)
            return;
        poll(NULL, 0, 20);
    }
}

/* Notify all ranks, and exit. */
_Noreturn static void end_job(struct root *m)
{
    const struct wire end = { .token = m->w->token, .kind = WIRE_ABORT, .a = m->end.status, .b = m->end.rank };
    struct watch *w = m->w;

    m->end.reason = m->line;
    m->end.doing = m->answer;
    for (int r = 1; r < w->size; r++)
        conn_send(&w->conn[r], &end, m->line);
    watch_last_words(w, &m->end);
    drain(w, clock_ns() + DRAIN_S * SECOND);
    /*
     * Kill ranks that are stopped and therefore do not react to messages. As long as the connection is open, the
     * process exists and its pid cannot belong to another process.
     */
    for (int r = 1; r < w->size; r++)
        if (w->conn[r].fd >= 0 && w->pid_space[r] == w->pid_space[0] && !(m->end.signal && r == m->end.rank))
            kill((pid_t)w->place[r].pid, SIGKILL);
    watch_all_left(w);
    if (m->term)
        watch_die();
    _exit(m->end.status);
}

/* ---- asking all ranks for their activity ---- */

static void request_rank_activities(struct root *m, int64_t ns)
{
    struct watch *w = m->w;

    if (m->ask_until)
        return;
    m->ask_until = clock_ns() + ns;
    memset(m->answer, 0, (size_t)w->size * sizeof *m->answer);
    for (int r = 1; r < w->size; r++)
        conn_send(&w->conn[r], &(struct wire){ .token = w->token, .kind = WIRE_ASK }, NULL);
    watch_activity(w, &m->answer[0]);
}

/*
 * Print `line` now, and end the job as soon as all ranks have reported their activity. Only the first call has an
 * effect, because later failures are consequences of the first.
 */
static void end_with(struct root *m, struct watch_end end, const char *line)
{
    if (m->state == JOB_ENDS)
        return;
    m->state = JOB_ENDS;
    m->end = end;
    snprintf(m->line, sizeof m->line, "%s", line);
    watch_log(m->w, "%s", line);
    /* Request the activities again, because answers to an earlier request may be outdated. */
    m->ask_until = 0;
    request_rank_activities(m, GRACE_NS);
}

static void end_because(struct root *m, int rank, int status, const char *what)
{
    char who[NAME], line[LINE];

    watch_name(m->w, rank, who, sizeof who);
    snprintf(line, sizeof line, "%s %s", who, what);
    end_with(m, (struct watch_end){ .status = status, .rank = rank }, line);
}

static void ask_table(struct root *m)
{
    m->table_wanted = true;
    request_rank_activities(m, ASK_NS);
}

static void hangs(struct root *m, int rank)
{
    if (m->state >= JOB_HANGS)
        return;
    m->state = JOB_HANGS;
    m->first = rank;
    request_rank_activities(m, ASK_NS);
}

/*
 * Handle the report of a rank that it stalls. If `may_last` is true, the call of that rank has no time limit, so the
 * stall does not end the job.
 */
static void stall_begins(struct root *m, int rank, bool may_last)
{
    /*
     * A report is ignored while a stall is already known, with one exception. If the rank that the printed line named
     * as the cause now waits itself, another rank is the cause. The search is then started again.
     */
    if (m->state != JOB_RUNS && !(m->state == JOB_STALL_PRINTED && rank == m->culprit))
        return;
    m->state = JOB_STALLS;
    m->may_last = may_last;
    m->first = rank;
    m->stalled_ns = clock_ns();
    request_rank_activities(m, ASK_NS);
}

static void stall_ends(struct root *m, int rank)
{
    if ((m->state != JOB_STALLS && m->state != JOB_STALL_PRINTED) || rank != m->first)
        return;
    m->state = JOB_RUNS;
    if (!m->line_in_status)
        return;
    m->line_in_status = false;
    watch_log(m->w, "the job continues after %lld s more", (long long)((clock_ns() - m->stalled_ns) / SECOND));
    watch_report_stall(m->w, NULL);
}

static bool all_answered(const struct root *m)
{
    for (int r = 0; r < m->w->size; r++)
        if (!m->answer[r].known && (r == 0 || m->w->conn[r].fd >= 0))
            return false;
    return true;
}

static const char *doing(const struct root *m, int rank)
{
    return m->answer[rank].known ? m->answer[rank].text : "does not answer: it is stopped, or its host is";
}

/*
 * Returns the only rank that is in no call or does not answer. Returns -1 if there is no such rank, or more than one.
 * Used on GPUs, where a call does not show which rank it waits for.
 */
static int find_outsider(const struct root *m)
{
    int found = -1;

    for (int r = 0; r < m->w->size; r++) {
        if (m->answer[r].known && m->answer[r].in_call)
            continue;
        if (found >= 0)
            return -1;
        found = r;
    }
    return found;
}

/*
 * Follow the chain of waits that starts with `rank`. Returns the last rank of the chain, which waits for no other rank.
 * Returns -1 if the chain is a cycle.
 */
static int find_culprit(const struct root *m, int rank)
{
    for (int steps = 0; steps <= m->w->size; steps++) {
        const struct watch_doing *s = &m->answer[rank];

        if (!s->known || !s->in_call)
            return rank;
        if (s->waiting_for < 0 || s->waiting_for >= m->w->size)
            return find_outsider(m);
        rank = s->waiting_for;
    }
    return -1;
}

static void print_table(struct root *m)
{
    char who[NAME];

    for (int r = 0; r < m->w->size; r++) {
        watch_name(m->w, r, who, sizeof who);
        watch_log(m->w, "%s %s", who, doing(m, r));
    }
}

/*
 * Describe in `line` which rank waits, and which rank is at the end of the chain of waits. Returns the rank at the end,
 * or -1 if there is none.
 */
static int describe_wait_chain(struct root *m, int rank, char *line, size_t room)
{
    int culprit = find_culprit(m, rank);
    char waits[NAME], who[NAME] = "";

    watch_name(m->w, rank, waits, sizeof waits);
    if (culprit >= 0 && culprit != rank) {
        watch_name(m->w, culprit, who, sizeof who);
        snprintf(line, room, "%s %s; %s %s", waits, doing(m, rank), who, doing(m, culprit));
    } else if (culprit >= 0) {
        /* The rank waits for something other than a rank. */
        snprintf(line, room, "%s %s", waits, doing(m, rank));
    } else {
        snprintf(line, room, "%s %s; no rank is found that the others wait for", waits, doing(m, rank));
    }
    return culprit;
}

_Noreturn static void end_hang(struct root *m)
{
    m->end = (struct watch_end){ .status = m->w->o.statuses.hang };
    m->end.rank = describe_wait_chain(m, m->first, m->line, sizeof m->line);
    watch_log(m->w, "%s", m->line);
    print_table(m);
    end_job(m);
}

static void report_job_stall(struct root *m)
{
    long long limit = atomic_load(&m->w->timeout_ns) / SECOND;
    char line[LINE], end[64];

    snprintf(end, sizeof end, limit && !m->may_last ? "; the job is ended after %lld s" : "; the job waits on", limit);
    m->culprit = describe_wait_chain(m, m->first, line, sizeof line - sizeof end);
    strcat(line, end);
    watch_log(m->w, "%s", line);
    watch_report_stall(m->w, line);
    m->state = JOB_STALL_PRINTED;
    m->line_in_status = true;
}

static void finish_asking(struct root *m)
{
    if (!m->ask_until || (!all_answered(m) && clock_ns() < m->ask_until))
        return;
    /*
     * Ranks that were suspended and have just resumed, perhaps including this one, need a moment before they make
     * progress.
     */
    if (m->state == JOB_STALLS && clock_ns() < m->stalled_ns + GRACE_NS)
        return;
    m->ask_until = 0;
    if (m->state == JOB_ENDS)
        end_job(m);
    if (m->state == JOB_HANGS)
        end_hang(m);
    if (m->state == JOB_STALLS)
        report_job_stall(m);
    if (m->table_wanted)
        print_table(m);
    m->table_wanted = false;
}

/* ---- messages ---- */

/*
 * Record a failure of `rank` that `culprit` may have caused. The failure ends the job after GRACE_NS if the original
 * failure has not been reported by then.
 */
static void second_hand(struct root *m, int rank, int culprit, const char *what)
{
    char who[NAME];

    if (m->grace_until)
        return;
    watch_name(m->w, rank, who, sizeof who);
    snprintf(m->second_hand, sizeof m->second_hand, "%s %s", who, what);
    m->second = (struct watch_end){ .status = m->w->o.statuses.lost, .rank = culprit };
    m->grace_until = clock_ns() + GRACE_NS;
}

/* Handle a comm_abort() of `rank`. `lost` is the rank whose loss caused it, or -1. */
static void handle_rank_failure(struct root *m, int rank, int lost, int status, const char *reason)
{
    char what[WIRE_TEXT + 16];

    snprintf(what, sizeof what, "failed: %s", reason);
    if (lost < 0)
        end_because(m, rank, status, what);
    else
        second_hand(m, rank, lost, what);
}

static void crashed(struct root *m, int rank, int sig)
{
    char who[NAME], line[LINE];

    watch_name(m->w, rank, who, sizeof who);
    snprintf(line, sizeof line, "%s crashed: SIG%s; ending the job", who, sigabbrev_np(sig) ? sigabbrev_np(sig) : "?");
    end_with(m, (struct watch_end){ .status = m->w->o.statuses.crashed, .rank = rank, .signal = sig }, line);
}

static void handle(struct root *m, int rank, const struct wire *in)
{
    struct watch_doing *s = &m->answer[rank];

    switch ((enum wire_kind)in->kind) {
    case WIRE_GOODBYE:
        m->w->conn[rank].goodbye = true;
        break;
    case WIRE_FAIL:
        handle_rank_failure(m, rank, in->a - 1, in->b, in->text);
        break;
    case WIRE_CRASH:
        crashed(m, rank, in->a);
        break;
    case WIRE_TERM:
        m->w->conn[rank].term = true;
        second_hand(m, rank, rank, TERM_ENDED);
        break;
    case WIRE_HANG:
        hangs(m, rank);
        break;
    case WIRE_SLOW:
        conn_send(&m->w->conn[rank], &(struct wire){ .token = m->w->token, .kind = WIRE_RECEIVED }, NULL);
        stall_begins(m, rank, in->a);
        break;
    case WIRE_MOVES:
        stall_ends(m, rank);
        break;
    case WIRE_DUMP:
        ask_table(m);
        break;
    case WIRE_STATE:
        *s = (struct watch_doing){.known = true, .in_call = in->a, .waiting_for = in->b};
        memcpy(s->text, in->text, sizeof s->text);
        break;
    case WIRE_HELLO: case WIRE_ASK: case WIRE_ABORT: case WIRE_RECEIVED:
        break;
    }
}

static void recv_rank_messages(struct root *m, int rank)
{
    struct conn *c = &m->w->conn[rank];
    int why = 0, rc;

    while ((rc = conn_read(c, m->w->token, &why)) > 0)
        handle(m, rank, &c->in);
    if (rc == 0)
        return;
    conn_close(c);
    if (c->goodbye || c->term)
        return;
    if (why == ETIMEDOUT || why == EHOSTUNREACH || why == ENETUNREACH)
        end_because(m, rank, m->w->o.statuses.lost, "lost: its host does not respond; ending the job");
    else
        end_because(m, rank, m->w->o.statuses.lost,
                    "died: its connection closed without a goodbye (killed, crashed or left); ending the job");
}

static void handle_root_wakeups(struct root *m)
{
    char letters[16], reason[WIRE_TEXT];
    int n = watch_letters(m->w, letters, sizeof letters), lost, status;

    for (int i = 0; i < n; i++) {
        if (letters[i] == WAKE_DUMP)
            ask_table(m);
        if (letters[i] == WAKE_TERM) {
            m->term = true;
            second_hand(m, 0, 0, TERM_ENDED);
        }
        if (letters[i] == WAKE_CLOSE)
            m->close_until = clock_ns() + GOODBYE_S * SECOND;
        if (letters[i] == WAKE_FAIL) {
            pthread_mutex_lock(&m->w->lock);
            memcpy(reason, m->w->reason, sizeof reason);
            lost = m->w->lost;
            status = m->w->status;
            pthread_mutex_unlock(&m->w->lock);
            handle_rank_failure(m, 0, lost, status, reason);
        }
        if (letters[i] == WAKE_CRASH)
            crashed(m, 0, atomic_load(&m->w->crashed));
    }
}

/* ---- the loop ---- */

static void check_root_call(struct root *m)
{
    enum stall_news news = watch_stall_news(m->w, &m->reported_ns);

    if (news == STALL_BEGINS)
        stall_begins(m, 0, watch_may_last(m->w));
    if (news == STALL_ENDS)
        stall_ends(m, 0);
    if (watch_is_stuck(m->w))
        hangs(m, 0);
}

/* Returns true if all ranks have sent a goodbye, or if the time limit for the goodbyes has passed. */
static bool may_close(struct root *m)
{
    struct watch *w = m->w;

    if (!m->close_until || m->ask_until)
        return false;
    for (int r = 1; r < w->size; r++)
        if (!w->conn[r].goodbye && clock_ns() < m->close_until)
            return false;
    for (int r = 1; r < w->size; r++)
        conn_send(&w->conn[r], &(struct wire){ .token = w->token, .kind = WIRE_GOODBYE }, NULL);
    return true;
}

static int wait_ms(const struct root *m)
{
    return m->grace_until || m->ask_until || m->close_until ? 10 : LOOK_MS;
}

void *watch_root_main(void *watch)
{
    struct watch *w = watch;
    struct root m = {.w = w};
    struct pollfd *p = xcalloc((size_t)w->size, sizeof *p);

    m.answer = xcalloc((size_t)w->size, sizeof *m.answer);
    do {
        p[0] = (struct pollfd){.fd = w->wake[0], .events = POLLIN};
        for (int r = 1; r < w->size; r++)
            p[r] = (struct pollfd){.fd = w->conn[r].fd, .events = POLLIN};
        poll(p, (nfds_t)w->size, wait_ms(&m));
        for (int r = 1; r < w->size; r++)
            if (p[r].revents)
                recv_rank_messages(&m, r);
        handle_root_wakeups(&m);
        if (m.grace_until && clock_ns() > m.grace_until)
            end_with(&m, m.second, m.second_hand);
        check_root_call(&m);
        finish_asking(&m);
    } while (!may_close(&m));
    free(m.answer);
    free(p);
    return NULL;
}
