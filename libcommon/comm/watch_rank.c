/*
 * watch_rank.c - the monitor thread of ranks 1 and up
 *
 * Reports problems of its own rank to rank 0, and executes rank 0's commands. If rank 0 no longer answers, it ends
 * the process by itself.
 */
#include <poll.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/comm/socket.h"
#include "libcommon/comm/watch_impl.h"

enum {
    LOOK_MS = 250,              /* interval at which the rank's own record is checked */
    ANSWER_S = 5,               /* time for rank 0 to end the job after a report */
    HANG_ANSWER_S = 10,         /* time for rank 0 to collect the activity of all ranks */
    GOODBYE_S = 15,
};

struct rank {
    struct watch *w;
    int64_t deadline;           /* time at which this rank acts without rank 0; 0 = no deadline */
    char alone[WIRE_TEXT];      /* the message that this rank prints then; "" = orderly end, print nothing */
    int alone_status;           /* ... and its exit status */
    bool closing;
    int64_t reported_ns;               /* for watch_stall_news() */
    int64_t answer_until;        /* deadline for rank 0 to acknowledge a report of a stall; 0 = none is pending */
    bool said_alone;            /* the deadline has passed, and this rank has reported the stall itself */
    int64_t die_at;             /* when to end because of SIGTERM; 0 = no SIGTERM */
};

_Noreturn static void leave_job_as_rank(struct rank *m, int status, int culprit, const char *reason)
{
    watch_leave_job(m->w, &(struct watch_end){ .status = status, .rank = culprit, .reason = reason,
                                               .signal = culprit == m->w->rank ? atomic_load(&m->w->crashed) : 0 });
}

static void expect_answer(struct rank *m, int seconds, int status, const char *otherwise)
{
    if (m->deadline)
        return;
    m->deadline = clock_ns() + seconds * SECOND;
    m->alone_status = status;
    snprintf(m->alone, sizeof m->alone, "%s", otherwise);
}

static void post_to_root(struct rank *m, enum wire_kind kind, int a, int b, const char *text)
{
    conn_send(&m->w->conn[0], &(struct wire){ .token = m->w->token, .kind = kind, .rank = m->w->rank, .a = a, .b = b },
              text);
}

/*
 * Returns true if this rank prints messages for its host. Only one rank per host prints, so that a large job does not
 * print a message a thousand times.
 */
static bool is_host_reporter(const struct watch *w)
{
    const struct comm_place *p = &w->place[w->rank];

    return p->local_rank == 0 || (p->node == w->place[0].node && p->local_rank == 1);
}

/*
 * End this rank because rank 0 has died. The ranks that print for their hosts leave at once, all others half a second
 * later. mpirun ends all ranks as soon as one leaves, and the message would then be lost.
 */
_Noreturn static void root_is_gone(struct rank *m)
{
    const struct timespec report_time = { .tv_nsec = 500 * 1000 * 1000 };
    char who[300], line[WIRE_TEXT];

    watch_name(m->w, 0, who, sizeof who);
    snprintf(line, sizeof line, "%s died: its connection closed without a goodbye; ending the job", who);
    if (is_host_reporter(m->w))
        watch_log(m->w, "%s", line);
    else
        nanosleep(&report_time, NULL);
    leave_job_as_rank(m, m->w->o.statuses.lost, 0, line);
}

static void recv_root_messages(struct rank *m)
{
    struct conn *c = &m->w->conn[0];
    struct watch_doing r;
    int why;

    for (;;) {
        int rc = conn_read(c, m->w->token, &why);

        if (rc == 0)
            return;
        if (rc < 0) {
            if (!c->goodbye)
                root_is_gone(m);
            conn_close(c);
            return;
        }
        if (c->in.kind == WIRE_ABORT)
            leave_job_as_rank(m, c->in.a, c->in.b, c->in.text);
        if (c->in.kind == WIRE_RECEIVED)
            m->answer_until = 0;
        if (c->in.kind == WIRE_GOODBYE)
            c->goodbye = true;
        if (c->in.kind == WIRE_ASK) {
            watch_activity(m->w, &r);
            post_to_root(m, WIRE_STATE, r.in_call, r.waiting_for, r.text);
        }
    }
}

static void handle_rank_wakeups(struct rank *m)
{
    char letters[16], line[WIRE_TEXT];
    int n = watch_letters(m->w, letters, sizeof letters);

    for (int i = 0; i < n; i++) {
        if (letters[i] == WAKE_DUMP)
            post_to_root(m, WIRE_DUMP, 0, 0, NULL);
        if (letters[i] == WAKE_TERM && !m->die_at) {
            post_to_root(m, WIRE_TERM, 0, 0, NULL);
            m->die_at = clock_ns() + GRACE_NS;
        }
        if (letters[i] == WAKE_FAIL) {
            pthread_mutex_lock(&m->w->lock);
            post_to_root(m, WIRE_FAIL, m->w->lost + 1, m->w->status, m->w->reason);
            snprintf(line, sizeof line, "failed: %.*s", WIRE_TEXT - 16, m->w->reason);
            pthread_mutex_unlock(&m->w->lock);
            expect_answer(m, ANSWER_S, m->w->status, line);
        }
        if (letters[i] == WAKE_CRASH) {
            post_to_root(m, WIRE_CRASH, atomic_load(&m->w->crashed), 0, NULL);
            expect_answer(m, ANSWER_S, m->w->o.statuses.crashed, "crashed");
        }
        if (letters[i] == WAKE_CLOSE) {
            post_to_root(m, WIRE_GOODBYE, 0, 0, NULL);
            m->closing = true;
            expect_answer(m, GOODBYE_S, 1, "");
        }
    }
}

static void check_rank_call(struct rank *m)
{
    struct watch_doing r;

    if (m->deadline || !watch_is_stuck(m->w))
        return;
    watch_activity(m->w, &r);
    post_to_root(m, WIRE_HANG, 0, 0, r.text);
    expect_answer(m, HANG_ANSWER_S, m->w->o.statuses.hang, r.text);
}

/*
 * Report a stall from this rank, because rank 0 does not answer. Rank 0 itself may be the rank that the others wait
 * for.
 */
static void report_stall_without_root(struct rank *m)
{
    char who[300], root[300], line[WIRE_TEXT + 700];
    struct watch_doing r;

    watch_activity(m->w, &r);
    watch_name(m->w, m->w->rank, who, sizeof who);
    watch_name(m->w, 0, root, sizeof root);
    snprintf(line, sizeof line, "%s %s; %s does not answer: it is stopped, or its host is", who, r.text, root);
    watch_log(m->w, "%s", line);
    watch_report_stall(m->w, line);
    m->said_alone = true;
}

static void check_stall(struct rank *m)
{
    enum stall_news news = m->deadline ? STALL_NONE : watch_stall_news(m->w, &m->reported_ns);

    if (news == STALL_BEGINS) {
        post_to_root(m, WIRE_SLOW, watch_may_last(m->w), 0, NULL);
        m->answer_until = clock_ns() + ANSWER_S * SECOND;
    }
    if (news == STALL_ENDS) {
        post_to_root(m, WIRE_MOVES, 0, 0, NULL);
        m->answer_until = 0;
        if (m->said_alone)
            watch_log(m->w, "the job continues");
        m->said_alone = false;
    }
    if (m->answer_until && clock_ns() > m->answer_until) {
        m->answer_until = 0;
        if (is_host_reporter(m->w))
            report_stall_without_root(m);
    }
}

void *watch_rank_main(void *watch)
{
    struct rank m = {.w = watch};
    struct watch *w = watch;
    char who[300];

    for (;;) {
        struct pollfd p[2] = {{.fd = w->wake[0], .events = POLLIN}, {.fd = w->conn[0].fd, .events = POLLIN}};

        poll(p, 2, m.die_at ? 20 : LOOK_MS);
        handle_rank_wakeups(&m);
        if (w->conn[0].fd >= 0)
            recv_root_messages(&m);
        if (m.closing && (w->conn[0].fd < 0 || w->conn[0].goodbye))
            return NULL;
        if (m.die_at && clock_ns() > m.die_at)
            watch_die();
        check_stall(&m);
        check_rank_call(&m);
        if (m.deadline && clock_ns() > m.deadline) {
            if (!m.alone[0])
                return NULL;
            watch_name(w, w->rank, who, sizeof who);
            watch_log(w, "%s %s; rank 0 does not answer, leaving", who, m.alone);
            leave_job_as_rank(&m, m.alone_status, m.alone_status == w->o.statuses.hang ? 0 : w->rank, m.alone);
        }
    }
}
