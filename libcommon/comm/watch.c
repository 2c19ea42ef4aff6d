/*
 * watch.c - start and end of the monitor: its thread and signals
 */
#include "libcommon/comm/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "libcommon/comm/socket.h"
#include "libcommon/comm/watch_impl.h"

enum { ABORT_WAIT_S = 8 };

/* ---- start of the monitor ---- */

static void fill_status(int *status)
{
    if (*status == 0)
        *status = 1;
}

struct watch *watch_new(int rank, int size, const struct comm_options *o)
{
    struct watch *w = xcalloc(1, sizeof *w);

    w->rank = rank;
    w->size = size;
    w->o = *o;
    w->lost = -1;
    fill_status(&w->o.statuses.lost);
    fill_status(&w->o.statuses.crashed);
    fill_status(&w->o.statuses.hang);
    w->wake[0] = w->wake[1] = -1;
    pthread_mutex_init(&w->lock, NULL);
    watch_timeout(w, o->hang_timeout_s < 0 ? 0 : o->hang_timeout_s == 0 ? 600 : o->hang_timeout_s);
    w->stall_ns = o->stall_notice_s < 0 ? 0 : (int64_t)((o->stall_notice_s > 0 ? o->stall_notice_s : 60) * 1e9);
    w->device = xcalloc((size_t)size, sizeof *w->device);
    w->conn = xcalloc(rank == 0 ? (size_t)size : 1, sizeof *w->conn);
    for (int i = 0; i < (rank == 0 ? size : 1); i++)
        w->conn[i].fd = -1;
    watch_phase(w, "start", -1, -1);
    return w;
}

static void wake(struct watch *w, char letter)
{
    /* If the pipe is full, this letter is lost, but the earlier letters wake the monitor. */
    if (write(w->wake[1], &letter, 1) < 0)
        return;
}

/* ---- SIGTERM ---- */

/* The watch that the handler wakes; there is one world per process. */
static struct watch *_Atomic terminated;

static void on_term(int sig)
{
    struct watch *w = atomic_load(&terminated);
    int before = errno;

    (void)sig;
    /* If the monitor hangs, this alarm, which has no handler, ends the process. */
    alarm(LAST_WORDS_S);
    if (w)
        wake(w, WAKE_TERM);
    errno = before;
}

void watch_catch_term(struct watch *w)
{
    struct sigaction act;

    if (sigaction(SIGTERM, NULL, &act) < 0 || act.sa_handler != SIG_DFL)
        return;
    atomic_store(&terminated, w);
    act = (struct sigaction){.sa_handler = on_term, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &act, NULL);
}

static void release_term(void)
{
    struct sigaction act;

    if (sigaction(SIGTERM, NULL, &act) == 0 && act.sa_handler == on_term)
        signal(SIGTERM, SIG_DFL);
    atomic_store(&terminated, NULL);
}

int watch_run(struct watch *w, struct err *e)
{
    sigset_t all, before;
    int rc;

    if (pipe2(w->wake, O_CLOEXEC | O_NONBLOCK) < 0) {
        err_sys(e, "monitor", "cannot make a pipe");
        return -1;
    }
    /* The monitor's thread blocks all signals, so that the program's own threads handle them. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&w->thread, NULL, w->rank == 0 ? watch_root_main : watch_rank_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        errno = rc;
        err_sys(e, "monitor", "cannot start its thread");
        return -1;
    }
    w->running = true;
    watch_catch_term(w);
    return 0;
}

void watch_dump(struct watch *w)
{
    int before = errno;         /* a signal handler must preserve errno */

    wake(w, WAKE_DUMP);
    errno = before;
}

void watch_close(struct watch *w)
{
    if (!w->running)
        return;
    release_term();
    wake(w, WAKE_CLOSE);
    pthread_join(w->thread, NULL);
    w->running = false;
}

void watch_free(struct watch *w)
{
    if (!w)
        return;
    for (int i = 0; i < (w->rank == 0 ? w->size : 1); i++)
        conn_close(&w->conn[i]);
    for (int i = 0; i < 2; i++)
        if (w->wake[i] >= 0)
            close(w->wake[i]);
    pthread_mutex_destroy(&w->lock);
    free(w->conn);
    free(w->device);
    free(w);
}

void watch_crashed(struct watch *w, int sig)
{
    int before = errno;

    atomic_store(&w->crashed, sig);
    wake(w, WAKE_CRASH);
    errno = before;
}

void watch_abort(struct watch *w, int status, const char *reason, int lost)
{
    int64_t until = clock_ns() + ABORT_WAIT_S * SECOND;

    pthread_mutex_lock(&w->lock);
    if (!w->reason[0]) {
        snprintf(w->reason, sizeof w->reason, "%s", reason && *reason ? reason : "no reason given");
        w->status = lost >= 0 ? w->o.statuses.lost : status;
        w->lost = lost;
    }
    pthread_mutex_unlock(&w->lock);
    if (w->running)
        wake(w, WAKE_FAIL);
    /*
     * The monitor is expected to end the process. If it has not done so after this time, this thread ends the process.
     */
    while (w->running && clock_ns() < until)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    _exit(w->status);
}
