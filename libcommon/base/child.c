/*
 * child.c - running a program with files without names for what goes in and comes out
 */
#include "libcommon/base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/files.h"

extern char **environ;

/* From being asked to end until it is made to. */
static const double grace_s = 5;

/* Of the child; -1: not open. */
struct child_streams {
    int in, out, err;
};

static int open_streams(struct child_streams *s, const struct child_call *c, struct err *e)
{
    s->in = c->input ? memfd_create("child-in", MFD_CLOEXEC) : open("/dev/null", O_RDONLY | O_CLOEXEC);
    s->out = memfd_create("child-out", MFD_CLOEXEC);
    s->err = memfd_create("child-err", MFD_CLOEXEC);
    if (s->in < 0 || s->out < 0 || s->err < 0 ||
        (c->input && (write_all(s->in, c->input, strlen(c->input)) < 0 || lseek(s->in, 0, SEEK_SET) < 0))) {
        err_sys(e, c->argv[0], "cannot be given its input");
        return -1;
    }
    return 0;
}

static void close_streams(const struct child_streams *s)
{
    const int fd[] = { s->in, s->out, s->err };

    for (int i = 0; i < 3; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

static void take_all(int fd, struct strbuf *sb)
{
    char buf[65536];
    ssize_t n;

    if (sb && lseek(fd, 0, SEEK_SET) == 0)
        while ((n = read(fd, buf, sizeof buf)) > 0)
            strbuf_add(sb, buf, (size_t)n);
}

static int start(const struct child_call *c, const struct child_streams *s, pid_t *child, struct err *e)
{
    posix_spawn_file_actions_t fa;
    posix_spawnattr_t attr;
    int rc;

    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, s->in, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&fa, s->out, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&fa, s->err, STDERR_FILENO);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETPGROUP);
    rc = posix_spawnp(child, c->argv[0], &fa, &attr, (char *const *)c->argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&fa);
    if (rc == 0)
        return 0;
    errno = rc;
    err_sys(e, c->argv[0], "cannot be run");
    return -1;
}

/* Until it has ended, 50 ms at most. */
static void nap(int pidfd)
{
    struct pollfd p = { .fd = pidfd, .events = POLLIN };

    poll(&p, pidfd < 0 ? 0 : 1, 50);
}

/* A chance to clean up after itself, then none. */
static void end_child(pid_t child, int pidfd, int *wstatus)
{
    const double begun = clock_s();
    bool killed = false;
    pid_t got;

    kill(-child, SIGTERM);
    while ((got = waitpid(child, wstatus, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (!killed && clock_s() - begun > grace_s)
            killed = kill(-child, SIGKILL) == 0;
        nap(pidfd);
    }
}

/* Asked for again and again: no signal handler that a caller would have to know of. */
static int wait_for(const struct child_call *c, pid_t child, int *wstatus, struct err *e)
{
    const double begun = clock_s();
    const int pidfd = (int)syscall(SYS_pidfd_open, child, 0);       /* -1 before Linux 5.3 */
    pid_t got;

    while ((got = waitpid(child, wstatus, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
        if (c->stopped && c->stopped())
            err_stop(e);
        else if (c->limit_s > 0 && clock_s() - begun > c->limit_s)
            err_data(e, c->argv[0], ERR_NO_BYTE, "has not ended within %.0f s, and was killed", c->limit_s);
        if (e->kind) {
            end_child(child, pidfd, wstatus);
            break;
        }
        nap(pidfd);
    }
    if (got < 0)
        err_sys(e, c->argv[0], "cannot be waited for");
    if (pidfd >= 0)
        close(pidfd);
    return e->kind ? -1 : 0;
}

int child_run(const struct child_call *c, int *status, struct err *e)
{
    struct child_streams s = { -1, -1, -1 };
    pid_t child;
    int rc = -1, wstatus = 0;

    if (open_streams(&s, c, e) < 0 || start(c, &s, &child, e) < 0)
        goto out;
    rc = wait_for(c, child, &wstatus, e);
    take_all(s.out, c->out);
    take_all(s.err, c->err);
    *status = WIFSIGNALED(wstatus) ? 128 + WTERMSIG(wstatus) : WEXITSTATUS(wstatus);
out:
    close_streams(&s);
    return rc;
}

const char *child_last_words(const struct strbuf *said, char *buf, size_t size)
{
    const char *from = said->buf ? said->buf : "", *line = from;
    size_t n = said->len;

    while (n && (from[n - 1] == '\n' || from[n - 1] == ' '))
        n--;
    for (size_t i = 0; i < n; i++)
        if (from[i] == '\n')
            line = from + i + 1;
    snprintf(buf, size, "%.*s", (int)(from + n - line), line);
    err_clean(buf);
    return *buf ? buf : "it said nothing";
}
