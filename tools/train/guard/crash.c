/*
 * crash.c - handle fatal signals
 */
#include "tools/train/guard/crash.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { STACK = 1 << 16, LEAVE_S = 8 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { CAUGHT = 0 };
#else
enum { CAUGHT = 5 };
#endif

static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT };
static const struct report_run *run;
static struct watch *watch;
static atomic_int crashed;              /* the signal that was received; 0: none */
static atomic_int crashed_tid;          /* the thread that received it */
static atomic_bool let_go;

static bool wants_core(void)
{
    struct rlimit l;

    return getrlimit(RLIMIT_CORE, &l) == 0 && l.rlim_cur > 0;
}

/*
 * End the process by the signal's default action. This happens now, or when the handler returns and the signal is
 * raised again.
 */
static void die_of(int sig)
{
    signal(sig, SIG_DFL);
    raise(sig);
}

static void on_crash(int sig, siginfo_t *info, void *context)
{
    int none = 0;
    char line[200];

    (void)context;
    if (!atomic_compare_exchange_strong(&crashed, &none, sig)) {
        /*
         * This is a second signal, received by another thread or raised within the first handler. The first handler has
         * reported everything, so give it time to finish. If the signal was raised within the first handler, that
         * handler cannot continue meanwhile, so the wait is limited.
         */
        for (int i = 0; i < 2 * LEAVE_S && !atomic_load(&let_go); i++)
            sleep(1);
        die_of(sig);
        return;
    }
    atomic_store(&crashed_tid, gettid());
    snprintf(line, sizeof line, "crashed: SIG%s, address %#jx, in iteration %lld", sigabbrev_np(sig),
             (uintmax_t)(uintptr_t)info->si_addr, (long long)*run->iteration + 1);
    report_stacks(run, line);
    watch_crashed(watch, sig);
    for (int i = 0; i < LEAVE_S * 100 && !atomic_load(&let_go); i++)
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    die_of(sig);
}

void crash_catch(const struct report_run *r, struct watch *w)
{
    static char stack[STACK];
    const stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    /*
     * The signal is not blocked during its handler (SA_NODEFER). Otherwise a fault within the handler would end the
     * process before the other ranks have been informed.
     */
    struct sigaction act = { .sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };

    run = r;
    watch = w;
    if (CAUGHT > 0 && sigaltstack(&other, NULL) < 0)
        act.sa_flags &= ~SA_ONSTACK;
    for (int i = 0; i < CAUGHT; i++)
        sigaction(signals[i], &act, NULL);
}

void crash_release(void)
{
    for (int i = 0; i < CAUGHT; i++)
        signal(signals[i], SIG_DFL);
}

void crash_leave_core(void)
{
    if (!atomic_load(&crashed) || !wants_core())
        return;
    atomic_store(&let_go, true);
    /*
     * The signal SIGALRM ends a final report that takes too long. The kernel may have delivered it to the thread that
     * the report waits for, which is this one.
     */
    if (gettid() == atomic_load(&crashed_tid))
        die_of(atomic_load(&crashed));
    sleep(LEAVE_S);
}
