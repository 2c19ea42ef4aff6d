/*
 * rclone.c - running rclone with files without names for what goes in and comes out
 */
#include "tools/ckpt-backup/place/rclone.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libcommon/base/files.h"

/* Its exit statuses that mean "not there". */
enum { NO_FOLDER = 3, NO_FILE = 4 };

/* Of the child; -1: not open. */
struct streams {
    int in, out, err;
};

static int open_streams(struct streams *s, const struct rclone_call *c, struct err *e)
{
    s->in = c->input ? memfd_create("rclone-in", MFD_CLOEXEC) : open("/dev/null", O_RDONLY | O_CLOEXEC);
    s->out = memfd_create("rclone-out", MFD_CLOEXEC);
    s->err = memfd_create("rclone-err", MFD_CLOEXEC);
    if (s->in < 0 || s->out < 0 || s->err < 0 ||
        (c->input && (write_all(s->in, c->input, strlen(c->input)) < 0 || lseek(s->in, 0, SEEK_SET) < 0))) {
        err_sys(e, "rclone", "cannot be given its input");
        return -1;
    }
    return 0;
}

static void close_streams(struct streams *s)
{
    if (s->in >= 0)
        close(s->in);
    if (s->out >= 0)
        close(s->out);
    if (s->err >= 0)
        close(s->err);
}

static void take_all(int fd, struct strbuf *sb)
{
    char buf[65536];
    ssize_t n;

    if (lseek(fd, 0, SEEK_SET) == 0)
        while ((n = read(fd, buf, sizeof buf)) > 0)
            strbuf_add(sb, buf, (size_t)n);
}

/* In the child; what fails is written to `told`. */
static void become_rclone(const char *const *argv, const struct streams *s, int told)
{
    int failed;

    /* Killed in the middle of a copy, we leave nobody behind who goes on writing beside the next run. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && dup2(s->in, STDIN_FILENO) >= 0 && dup2(s->out, STDOUT_FILENO) >= 0 &&
        dup2(s->err, STDERR_FILENO) >= 0)
        execvp("rclone", (char *const *)argv);
    failed = errno;
    _exit(write(told, &failed, sizeof failed) == sizeof failed ? 127 : 126);
}

static int start(const struct rclone_call *c, const struct streams *s, pid_t *child)
{
    const char *argv[RCLONE_ARGS + 3] = { "rclone", "--quiet" };
    int n = 2, failed = 0, told[2];

    for (int i = 0; i < RCLONE_ARGS && c->arg[i]; i++)
        argv[n++] = c->arg[i];
    if (pipe2(told, O_CLOEXEC) < 0)
        return -1;
    *child = fork();
    if (*child == 0)
        become_rclone(argv, s, told[1]);
    if (*child < 0)
        failed = errno;
    close(told[1]);                     /* the child's goes with its exec */
    if (*child > 0 && read(told[0], &failed, sizeof failed) == sizeof failed)
        waitpid(*child, NULL, 0);
    close(told[0]);
    errno = failed;
    return failed ? -1 : 0;
}

/* Its status; it is told to stop when we are. */
static int wait_for(const struct rclone_call *c, pid_t child)
{
    int status;

    while (waitpid(child, &status, 0) < 0)
        if (errno == EINTR && c->stopped && c->stopped())
            kill(child, SIGTERM);
        else if (errno != EINTR)
            return -1;
    return status;
}

/* The last line, without "2026/03/01 12:00:00 " and "ERROR : ". */
static void last_words(const struct strbuf *sb, char *text, size_t size)
{
    const char *from = sb->buf ? sb->buf : "", *line = from, *cut;
    size_t n = strlen(from);

    while (n && (from[n - 1] == '\n' || from[n - 1] == ' '))
        n--;
    for (size_t i = 0; i < n; i++)
        if (from[i] == '\n')
            line = from + i + 1;
    if (from + n - line > 20 && line[4] == '/' && line[7] == '/' && line[19] == ' ')
        line += 20;
    cut = strstr(line, " : ");
    if (cut && cut - line < 10 && cut < from + n)
        line = cut + 3;
    snprintf(text, size, "%.*s", (int)(from + n - line), line);
    err_clean(text);
}

static int judge(const struct rclone_call *c, int status, const struct streams *s, const char *remote, struct err *e)
{
    struct strbuf said = {0};
    char text[512];

    if (c->stopped && c->stopped()) {
        err_stop(e);
        return -1;
    }
    if (status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (status >= 0 && WIFEXITED(status) && c->absent_is_fine &&
        (WEXITSTATUS(status) == NO_FOLDER || WEXITSTATUS(status) == NO_FILE))
        return 1;
    take_all(s->err, &said);
    last_words(&said, text, sizeof text);
    strbuf_free(&said);
    if (status >= 0 && WIFSIGNALED(status))
        err_data(e, remote, ERR_NO_BYTE, "rclone %s was ended by signal %d", c->arg[0], WTERMSIG(status));
    else
        err_data(e, remote, ERR_NO_BYTE, "rclone %s failed with status %d: %s", c->arg[0],
                 status < 0 ? -1 : WEXITSTATUS(status), *text ? text : "it said nothing");
    return -1;
}

int rclone_run(const struct rclone_call *c, const char *remote, struct err *e)
{
    struct streams s = { -1, -1, -1 };
    pid_t child;
    int rc = -1;

    if (open_streams(&s, c, e) < 0)
        goto out;
    if (start(c, &s, &child) < 0) {
        err_sys(e, remote, "is a remote, and needs the program rclone (apt-get install rclone), which cannot be run");
        goto out;
    }
    rc = judge(c, wait_for(c, child), &s, remote, e);
    if (rc == 0 && c->output)
        take_all(s.out, c->output);
out:
    close_streams(&s);
    return rc;
}
