/*
 * trainlog_sink.c - write log lines to their destinations
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/train/log/trainlog.h"

enum { MAX_SINKS = 2 };

struct trainlog {
    int n;
    int fd[MAX_SINKS];
    const char *name[MAX_SINKS];
    bool reported[MAX_SINKS];               /* a failure to write to this destination has been reported */
    int64_t lost;
    char *path;
};

/* Write the whole line. Uses a single call of write() if the system accepts all bytes. */
static int write_line(int fd, const char *line, size_t n)
{
    while (n) {
        ssize_t k = write(fd, line, n);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return -1;
        line += k;
        n -= (size_t)k;
    }
    return 0;
}

/*
 * If a killed run left an incomplete last line in the file, end it with a newline, so that the next line does not
 * continue it.
 */
static int end_last_line(int fd, const char *path, struct err *e)
{
    struct stat st;
    char last = '\n';

    if (fstat(fd, &st) < 0) {
        err_sys(e, path, "cannot stat");
        return -1;
    }
    if (!S_ISREG(st.st_mode) || st.st_size == 0)
        return 0;
    if (pread(fd, &last, 1, st.st_size - 1) < 0) {
        err_sys(e, path, "cannot read");
        return -1;
    }
    if (last != '\n' && write_line(fd, "\n", 1) < 0) {
        err_sys(e, path, "cannot write");
        return -1;
    }
    return 0;
}

struct trainlog *trainlog_open(const char *path, bool to_stdout, struct err *e)
{
    struct trainlog *t = xcalloc(1, sizeof *t);

    if (to_stdout) {
        t->fd[t->n] = STDOUT_FILENO;
        t->name[t->n++] = "standard output";
    }
    if (path) {
        int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

        if (fd < 0)
            err_sys(e, path, "cannot open the log");
        if (fd < 0 || end_last_line(fd, path, e) < 0) {
            if (fd >= 0)
                close(fd);
            free(t);
            return NULL;
        }
        t->path = xstrdup(path);
        t->fd[t->n] = fd;
        t->name[t->n++] = t->path;
    }
    return t;
}

static void write_log_line(struct trainlog *t, int i, const char *line, size_t n)
{
    if (write_line(t->fd[i], line, n) == 0)
        return;
    t->lost++;
    if (!t->reported[i])
        fprintf(stderr, "%s: warning: %s: cannot write the log: %s; training continues\n", cli_typed_name("train"),
                t->name[i], strerror(errno));
    t->reported[i] = true;
}

void trainlog_write(struct trainlog *t, const char *text)
{
    fflush(stdout);                     /* first write the output that stdio has buffered */
    while (*text) {
        size_t n = strcspn(text, "\n");

        n += text[n] == '\n';
        for (int i = 0; i < t->n; i++)
            write_log_line(t, i, text, n);
        text += n;
    }
}

void trainlog_flush(struct trainlog *t, struct strbuf *sb)
{
    if (sb->len)
        trainlog_write(t, sb->buf);
    sb->len = 0;
    if (sb->buf)
        sb->buf[0] = '\0';
}

void trainlog_close(struct trainlog *t)
{
    if (!t)
        return;
    if (t->lost)
        fprintf(stderr, "%s: warning: %ld line%s of the log %s lost\n", cli_typed_name("train"), (long)t->lost,
                t->lost == 1 ? "" : "s", t->lost == 1 ? "was" : "were");
    if (t->path)
        close(t->fd[t->n - 1]);
    free(t->path);
    free(t);
}
