/*
 * child.c - run a program, with unnamed files for its input and output
 */
#include "libcommon/base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"

/* Time between SIGTERM and SIGKILL, in seconds. */
static const double grace_s = 5;

/* The streams of the child, and this process's end of the child's input pipe. A stream that is not open is -1. */
struct child_streams {
    int in, out, err, feed;
};

static int open_child_input(struct child_streams *s, const struct child_call *c)
{
    int end[2];

    if (c->feed) {
        if (pipe2(end, O_CLOEXEC) < 0)
            return -1;
        s->in = end[0];
        s->feed = end[1];
        return 0;
    }
    s->in = c->input ? memfd_create("child-in", MFD_CLOEXEC) : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (s->in < 0)
        return -1;
    return c->input && (write_all(s->in, c->input, strlen(c->input)) < 0 || lseek(s->in, 0, SEEK_SET) < 0) ? -1 : 0;
}

static int open_streams(struct child_streams *s, const struct child_call *c, struct err *e)
{
    s->out = c->out_fd > 0 ? fcntl(c->out_fd, F_DUPFD_CLOEXEC, 3) : memfd_create("child-out", MFD_CLOEXEC);
    s->err = memfd_create("child-err", MFD_CLOEXEC);
    if (open_child_input(s, c) < 0 || s->out < 0 || s->err < 0) {
        err_sys(e, c->argv[0], "cannot create the pipe for its input");
        return -1;
    }
    return 0;
}

static void close_streams(const struct child_streams *s)
{
    const int fd[] = { s->in, s->out, s->err, s->feed };

    for (int i = 0; i < 4; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

static void read_child_output(int fd, struct strbuf *sb)
{
    char buf[65536];
    ssize_t n;

    if (sb && lseek(fd, 0, SEEK_SET) == 0)
        while ((n = read(fd, buf, sizeof buf)) > 0)
            strbuf_add(sb, buf, (size_t)n);
}

/* Replace the forked child by the program. If a call fails, its errno is written to the pipe `errno_pipe`. */
static void exec_child_program(const struct child_call *c, const struct child_streams *s, pid_t parent, int errno_pipe)
{
    int failed;

    if (setpgid(0, 0) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0) {
        if (getppid() != parent)
            _exit(126);                 /* the parent ended before prctl() took effect, so nothing would kill this
                                         * child */
        if (dup2(s->in, STDIN_FILENO) >= 0 && dup2(s->out, STDOUT_FILENO) >= 0 && dup2(s->err, STDERR_FILENO) >= 0)
            execvp(c->argv[0], (char *const *)c->argv);
    }
    failed = errno;
    _exit(write(errno_pipe, &failed, sizeof failed) == sizeof failed ? 127 : 126);
}

/* Start the child. posix_spawn() is not used, because it cannot make the child end when its parent ends. */
static int fork_child(const struct child_call *c, struct child_streams *s, pid_t *child, struct err *e)
{
    const pid_t parent = getpid();
    int failed = 0, errno_pipe[2];

    if (pipe2(errno_pipe, O_CLOEXEC) < 0) {
        err_sys(e, c->argv[0], "cannot be run");
        return -1;
    }
    *child = fork();
    if (*child == 0)
        exec_child_program(c, s, parent, errno_pipe[1]);
    if (*child < 0)
        failed = errno;
    close(errno_pipe[1]);                     /* the child's copy is closed by its exec */
    if (*child > 0 && read(errno_pipe[0], &failed, sizeof failed) == sizeof failed)
        waitpid(*child, NULL, 0);
    close(errno_pipe[0]);
    /* only the child may hold the reading end, so that writing fails after the child has ended */
    close(s->in);
    s->in = -1;
    if (!failed)
        return 0;
    errno = failed;
    err_sys(e, c->argv[0], "cannot be run");
    return -1;
}

/* ---- writing the child's input ---- */

struct child_feed {
    const struct child_call *c;
    int *to;
    struct err e;
    _Atomic bool failed;        /* true if `e` holds an error */
    pthread_t thread;
    bool runs;
};

static void *feed_main(void *arg)
{
    struct child_feed *f = arg;
    sigset_t broken;

    /* If a program ends early, the write must fail here instead of ending this process with SIGPIPE. */
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken, NULL);
    if (f->c->feed(f->c->feed_arg, *f->to, &f->e) < 0) {
        f->failed = true;
    } else {
        close(*f->to);
        *f->to = -1;
    }
    return NULL;
}

static int start_feed(struct child_feed *f, struct err *e)
{
    if (!f->c->feed)
        return 0;
    errno = pthread_create(&f->thread, NULL, feed_main, f);
    f->runs = errno == 0;
    if (f->runs)
        return 0;
    err_sys(e, f->c->argv[0], "cannot be given its input");
    return -1;
}

/*
 * Wait for the thread that writes the program's input. The program has ended, so the next write of the thread fails. If
 * feed() failed for this reason, and the program itself failed, the error of feed() is dropped, and only the program's
 * exit status is reported.
 */
static int end_feed(struct child_feed *f, int status, struct err *e)
{
    if (f->runs)
        pthread_join(f->thread, NULL);
    if (!f->failed || e->kind || (status != 0 && f->e.sys == EPIPE))
        return e->kind ? -1 : 0;
    *e = f->e;
    return -1;
}

/* ---- waiting for the child ---- */

/* Wait until the child has ended, at most 50 ms. */
static void wait_child_exit(int pidfd)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };

    poll(&p, pidfd < 0 ? 0 : 1, 50);
}

/* End the child. SIGTERM is sent first, so that the child can clean up, and SIGKILL after that. */
static void end_child(pid_t child, int pidfd, int *wstatus)
{
    const double begun = clock_s();
    bool killed = false;
    pid_t got;

    kill(-child, SIGTERM);
    while ((got = waitpid(child, wstatus, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (!killed && clock_s() - begun > grace_s)
            killed = kill(-child, SIGKILL) == 0;
        wait_child_exit(pidfd);
    }
}

/* Wait for the child by polling. A handler for SIGCHLD could conflict with a handler of the caller. */
static int wait_for(const struct child_call *c, struct child_feed *f, pid_t child, int *wstatus, struct err *e)
{
    const double begun = clock_s();
    const int pidfd = (int)syscall(SYS_pidfd_open, child, 0);       /* -1 before Linux 5.3 */
    pid_t got;

    while ((got = waitpid(child, wstatus, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (c->stopped && c->stopped())
            err_stop(e);
        else if (c->limit_s > 0 && clock_s() - begun > c->limit_s)
            err_data(e, c->argv[0], ERR_NO_BYTE, "did not end within %.0f s and was killed", c->limit_s);
        else if (f->failed && f->e.sys != EPIPE)
            *e = f->e;
        if (e->kind) {
            end_child(child, pidfd, wstatus);
            break;
        }
        wait_child_exit(pidfd);
    }
    if (got < 0)
        err_sys(e, c->argv[0], "cannot be waited for");
    if (pidfd >= 0)
        close(pidfd);
    return e->kind ? -1 : 0;
}

int child_run(const struct child_call *c, int *status, struct err *e)
{
    struct child_streams s = { -1, -1, -1, -1 };
    struct child_feed f = { .c = c, .to = &s.feed };
    pid_t child;
    int rc = -1, wstatus = 0;

    *status = -1;
    if (open_streams(&s, c, e) < 0 || fork_child(c, &s, &child, e) < 0)
        goto out;
    if (start_feed(&f, e) < 0)
        kill(-child, SIGKILL);
    rc = wait_for(c, &f, child, &wstatus, e);
    *status = WIFSIGNALED(wstatus) ? 128 + WTERMSIG(wstatus) : WEXITSTATUS(wstatus);
    if (end_feed(&f, *status, e) < 0)
        rc = -1;
    if (c->out_fd <= 0)
        read_child_output(s.out, c->out);
    read_child_output(s.err, c->err);
out:
    close_streams(&s);
    return rc;
}

const char *child_last_words(const struct strbuf *output, char *buf, size_t size)
{
    const char *from = output->buf ? output->buf : "", *line = from;
    size_t n = output->len;

    while (n && (from[n - 1] == '\n' || from[n - 1] == ' '))
        n--;
    for (size_t i = 0; i < n; i++)
        if (from[i] == '\n')
            line = from + i + 1;
    snprintf(buf, size, "%.*s", (int)(from + n - line), line);
    err_clean(buf);
    return *buf ? buf : "it printed no message";
}
