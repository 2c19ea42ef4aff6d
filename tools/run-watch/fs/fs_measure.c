/*
 * fs_measure.c - call du, df and commands for quotas, found through PATH
 */
#include "tools/run-watch/fs/fs_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/child.h"
#include "libcommon/cli/cli.h"

/* Time limit for one measurement in seconds. It is sufficient for du of a large area on a busy file system. */
static const double measure_limit_s = 6 * 3600.0;

void fs_measure_free(struct fs_measure *m)
{
    strbuf_free(&m->output);
    free(m->doubt);
    *m = (struct fs_measure){0};
}

/*
 * Parse the two percentages that a quota program prints, such as "(12.34%)": the first is of bytes, the second of
 * inodes.
 */
static int parse_quota_shares(struct fs_measure *m, const char *program, struct err *e)
{
    const char *p = m->output.buf;
    int n = 0;

    while (n < 2 && (p = strstr(p, " ("))) {
        char *end;
        double v = strtod(p + 2, &end);

        if (end > p + 2 && strncmp(end, "%)", 2) == 0)
            m->used[n++] = v;
        p += 2;
    }
    if (n == 2)
        return 0;
    err_data(e, program, ERR_NO_BYTE, "says %d shares like (12.34%%), expected 2: of bytes and of inodes", n);
    return -1;
}

static int parse_du_number(struct fs_measure *m, const char *program, const char *about, struct err *e)
{
    char *end;

    m->used[0] = strtod(m->output.buf, &end);
    if (end > m->output.buf)
        return 0;
    err_data(e, program, ERR_NO_BYTE, "has no line for %s%s%s", about, m->doubt ? ": " : "",
             m->doubt ? m->doubt : "");
    return -1;
}

/*
 * Parse the number in the column "Available" of df's output, in units of 1024 bytes. The number is taken from the first
 * line that begins with `name`.
 */
static int parse_df_available(struct fs_measure *m, const char *name, struct err *e)
{
    int column = -1, i;

    for (char *line = m->output.buf, *next; line; line = next) {
        char *save = NULL, *w;
        const bool head = line == m->output.buf;

        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (!head && !str_starts(line, name))
            continue;
        for (i = 0, w = strtok_r(line, " \t", &save); w; i++, w = strtok_r(NULL, " \t", &save)) {
            if (head && strcmp(w, "Available") == 0)
                column = i;
            if (!head && i == column) {
                m->used[0] = strtod(w, NULL) * 1024;
                return 0;
            }
        }
    }
    err_data(e, "df", ERR_NO_BYTE, "lists no file system that begins with %s, or does not print the available "
                                   "space", name);
    return -1;
}

static void strip(struct strbuf *sb)
{
    strbuf_add(sb, "", 0);
    while (sb->len && strchr(" \t\r\n", sb->buf[sb->len - 1]))
        sb->buf[--sb->len] = '\0';
}

int fs_measure_run(struct fs_measure *m, const struct fs_area *a, struct err *e)
{
    const char *const du[] = { "du", "-bs", a->what, NULL };
    const char *const inodes[] = { "du", "-s", "-BK", "--inodes", a->what, NULL };
    const char *const df[] = { "df", NULL };
    const char *const *const argv[] = { a->command, du, inodes, df };
    struct strbuf complaint = {0};
    const struct child_call c = { argv[a->kind], .out = &m->output, .err = &complaint, .limit_s = measure_limit_s,
                                  .stopped = cli_stopped };
    char words[512];
    int status, rc = child_run(&c, &status, e);

    if (rc == 0 && status != 0)
        m->doubt = str_fmt("%s ended with status %d: %s", c.argv[0], status,
                           child_last_words(&complaint, words, sizeof words));
    strbuf_free(&complaint);
    strip(&m->output);
    if (rc < 0)
        return -1;
    if (a->kind == FS_DU || a->kind == FS_INODES)
        return parse_du_number(m, c.argv[0], a->what, e);
    if (m->doubt) {
        err_data(e, a->name, ERR_NO_BYTE, "%s", m->doubt);
        return -1;
    }
    return a->kind == FS_QUOTA ? parse_quota_shares(m, c.argv[0], e) : parse_df_available(m, a->what, e);
}
