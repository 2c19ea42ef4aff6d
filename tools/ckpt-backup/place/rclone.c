/*
 * rclone.c - run rclone as a child process and interpret its exit status
 */
#include "tools/ckpt-backup/place/rclone.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The exit statuses of rclone if a folder or a file does not exist. */
enum { NO_FOLDER = 3, NO_FILE = 4 };

/* Return the last line that rclone printed, without the prefixes "2026/03/01 12:00:00 " and "ERROR : ". */
static const char *last_words(const struct strbuf *output, char *text, size_t size)
{
    const char *line = child_last_words(output, text, size), *cut;

    if (strlen(line) > 20 && line[4] == '/' && line[7] == '/' && line[19] == ' ')
        line += 20;
    cut = strstr(line, " : ");
    return cut && cut - line < 10 ? cut + 3 : line;
}

static int check_rclone_status(const struct rclone_call *c, int status, const struct strbuf *output, const char *remote,
                               struct err *e)
{
    char text[512];

    if (status == 0)
        return 0;
    if (c->absent_is_fine && (status == NO_FOLDER || status == NO_FILE))
        return 1;
    if (status > 128)
        err_data(e, remote, ERR_NO_BYTE, "rclone %s was terminated by signal %d", c->arg[0], status - 128);
    else
        err_data(e, remote, ERR_NO_BYTE, "rclone %s failed with status %d: %s", c->arg[0], status,
                 last_words(output, text, sizeof text));
    return -1;
}

int rclone_run(const struct rclone_call *c, const char *remote, struct err *e)
{
    const char *argv[RCLONE_ARGS + 3] = { "rclone", "--quiet" };
    struct strbuf output = {0};
    const struct child_call call = { argv, c->input, c->output, &output, .stopped = c->stopped,
                                     .out_fd = c->output_fd, .feed = c->feed, .feed_arg = c->feed_arg };
    int rc, status, sys;

    for (int i = 0; i < RCLONE_ARGS && c->arg[i]; i++)
        argv[2 + i] = c->arg[i];
    rc = child_run(&call, &status, e);
    sys = e->sys;
    if (rc < 0 && status < 0) {
        err_clear(e);
        errno = sys;
        err_sys(e, remote, "a remote needs the program rclone (apt-get install rclone), which cannot be started");
    } else if (rc == 0) {
        rc = check_rclone_status(c, status, &output, remote, e);
    }
    strbuf_free(&output);
    return rc;
}
