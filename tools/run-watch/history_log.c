/*
 * history_log.c - parse a training log in the format of Megatron-LM's training_log(), which train also writes. Example
 * of a line:
 *
 *  iteration    95000/  115311 | consumed samples: ... | elapsed time per iteration (s): 105.12 | ... | lm loss:
 *  2.013E+00 | ... | number of nan iterations:   0 | samples per second: 19.483 | ...
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/mem.h"
#include "tools/run-watch/history.h"
#include "tools/run-watch/past/past.h"

/*
 * Number of bytes that are read from the end of a log. Even if a line is written every second and lines are long, this
 * covers half a day.
 */
enum { TAIL_BYTES = 32 << 20 };

static void add_iteration(struct history *h, const char *line)
{
    struct history_point p = { .loss = (double)NAN }, *last = h->n ? &h->point[h->n - 1] : NULL;
    double iteration, v, n_nan = 0;

    if (!past_log_field(line, " iteration ", &iteration) ||
        !past_log_field(line, "elapsed time per iteration (s):", &p.iteration_s))
        return;
    p.iteration = (int64_t)iteration;
    past_log_field(line, "samples per second:", &p.samples_per_s);
    past_log_field(line, "number of nan iterations:", &n_nan);
    /*
     * If a line has no loss, the loss was not a number. There is one exception: if the run has a loss scale, the line
     * may belong to a skipped update.
     */
    p.is_nan = n_nan > 0 || (!past_log_field(line, "lm loss:", &p.loss) && !strstr(line, "loss scale:")) ||
               (past_log_field(line, "lm loss:", &v) && !isfinite(v));
    p.at_s = p.iteration_s;
    if (last) {
        /* Iterations after a restart repeat the numbers of earlier ones, but the time always increases. */
        int64_t done = p.iteration > last->iteration ? p.iteration - last->iteration : 1;

        p.at_s = last->at_s + (double)done * p.iteration_s;
    }
    ARRAY_ROOM(h->point, h->cap, h->n + 1);
    h->point[h->n++] = p;
}

static void keep_line(char **to, const char *line)
{
    free(*to);
    *to = xstrdup(line);
    err_clean(*to);
}

static void add_line(struct history *h, char *line)
{
    /* The message may follow an incomplete line of another rank, so it may be anywhere in the line. */
    if (strstr(line, "replicated parameter differs between tensor rank")) {
        keep_line(&h->drift, line);
    } else if (str_starts(line, " iteration ")) {
        add_iteration(h, line);
    } else if (str_starts(line, "[straggler]")) {
        keep_line(&h->straggler, line);
    } else if (str_starts(line, "using world size:")) {
        free(h->drift);                 /* a new start of the run begins here */
        h->drift = NULL;
    }
}

/* Returns the last part of the file, beginning at the start of a line. The caller frees it. */
static char *read_tail(const char *path, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *buf = NULL;
    struct stat st;
    off_t from;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0) {
        err_sys(e, path, "cannot open");
        goto out;
    }
    from = st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0;
    buf = xmalloc((size_t)(st.st_size - from) + 1);
    n = pread(fd, buf, (size_t)(st.st_size - from), from);
    if (n < 0) {
        err_sys(e, path, "cannot read");
        free(buf);
        buf = NULL;
        goto out;
    }
    for (ssize_t i = 0; i < n; i++)
        if (buf[i] == '\0')
            buf[i] = '?';
    buf[n] = '\0';
    if (from > 0)
        memmove(buf, buf + strcspn(buf, "\n"), strlen(buf + strcspn(buf, "\n")) + 1);
out:
    if (fd >= 0)
        close(fd);
    return buf;
}

int history_read_log(struct history *h, const char *path, struct err *e)
{
    char *text = read_tail(path, e), *line = text, *end;

    if (!text)
        return -1;
    /* A last line without a newline is still being written by the run, so it is not parsed. */
    while ((end = strchr(line, '\n'))) {
        *end = '\0';
        add_line(h, line);
        line = end + 1;
    }
    free(text);
    return 0;
}
