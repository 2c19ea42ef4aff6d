/*
 * stacks.c - write the stack of each thread of this process as text
 *
 * The code runs when memory may be corrupted and locks may be held. It uses system calls and glibc's backtrace(), which
 * allocates no memory and acquires no lock, except in its first call. backtrace_symbols_fd() acquires the loader's
 * lock, so a thread that holds that lock does not respond.
 */
#include "tools/train/guard/stacks.h"

#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"

enum { FRAMES = 100, NAP_NS = 500000, THREAD_MS = 100, ALL_MS = 2000 };
#define STACK_SIGNAL (SIGRTMIN + 6)

static atomic_int asked;                /* id of the thread that has to write its stack; 0: none */
static atomic_int to_fd = -1;
static atomic_bool busy;

static void write_own(int fd)
{
    void *frame[FRAMES];

    backtrace_symbols_fd(frame, backtrace(frame, FRAMES), fd);
}

static void on_asked(int sig)
{
    const int before = errno;
    int me = (int)syscall(SYS_gettid);

    (void)sig;
    /* A thread whose turn is over must not write into the output of another thread. */
    if (atomic_load(&asked) == me) {
        write_own(atomic_load(&to_fd));
        atomic_compare_exchange_strong(&asked, &me, 0);
    }
    errno = before;
}

void stacks_prepare(void)
{
    struct sigaction act = { .sa_handler = on_asked, .sa_flags = SA_RESTART | SA_ONSTACK };
    void *frame[1];

    if (backtrace(frame, 1) > 0)
        sigaction(STACK_SIGNAL, &act, NULL);
}

static void write_stack_text(int fd, const char *text)
{
    if (write(fd, text, strlen(text)) < 0)
        return;
}

/* Write a line such as "thread 1234 (train)". */
static void write_thread_line(int fd, int tid)
{
    char path[64], name[32] = "?", line[128];
    int f;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/self/task/%d/comm", tid);
    f = open(path, O_RDONLY | O_CLOEXEC);
    n = f < 0 ? -1 : read(f, name, sizeof name - 1);
    if (f >= 0)
        close(f);
    if (n > 0)
        name[name[n - 1] == '\n' ? n - 1 : n] = '\0';
    snprintf(line, sizeof line, "\nthread %d (%s)\n", tid, name);
    write_stack_text(fd, line);
}

static void request_thread_stack(int fd, int tid)
{
    const int64_t until = clock_ns() + THREAD_MS * INT64_C(1000000);

    write_thread_line(fd, tid);
    atomic_store(&asked, tid);
    if (syscall(SYS_tgkill, getpid(), tid, STACK_SIGNAL) == 0)
        while (atomic_load(&asked) == tid && clock_ns() < until)
            nanosleep(&(struct timespec){ .tv_nsec = NAP_NS }, NULL);
    if (atomic_exchange(&asked, 0) == tid)
        write_stack_text(fd, "does not answer\n");
}

/* The layout of the kernel's directory entries. */
struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t len;
    uint8_t type;
    char name[];
};

static void ask_others(int fd)
{
    static _Alignas(8) char buf[1 << 15];       /* sufficient for about 1,000 threads */
    const int64_t until = clock_ns() + ALL_MS * INT64_C(1000000);
    const int me = (int)syscall(SYS_gettid), dir = open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long n = dir < 0 ? 0 : syscall(SYS_getdents64, dir, buf, sizeof buf);

    for (long at = 0; at < n && clock_ns() < until;) {
        const struct entry *d = (const struct entry *)(buf + at);
        const int tid = atoi(d->name);

        if (tid > 0 && tid != me)
            request_thread_stack(fd, tid);
        at += d->len;
    }
    if (dir >= 0)
        close(dir);
}

void stacks_write(int fd)
{
    if (atomic_exchange(&busy, true))
        return;
    atomic_store(&to_fd, fd);
    write_thread_line(fd, (int)syscall(SYS_gettid));
    write_own(fd);
    ask_others(fd);
    atomic_store(&busy, false);
}
