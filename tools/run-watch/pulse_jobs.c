/*
 * pulse_jobs.c - call getent and squeue, both found through PATH
 *
 * The original script's format cuts names at 40 characters and separates fields by blanks. The default format ends
 * with the complete name.
 */
#include "tools/run-watch/pulse_jobs.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/child.h"

static const double ask_limit_s = 60;
static const char compat_format[] = "%.16i %.9P %.40j %.8T %.10M %.6D %.20S %R";
static const char own_format[] = "%i|%P|%T|%M|%D|%S|%R|%j";

void pulse_jobs_free(struct pulse_jobs *j)
{
    free(j->text);
    free(j->job);
    *j = (struct pulse_jobs){0};
}

/* Get the output of a program. A status other than 0 is a failure. */
static int run_query_program(const char *const *argv, struct strbuf *out, struct err *e)
{
    struct strbuf err_text = {0};
    const struct child_call c = { argv, .out = out, .err = &err_text, .limit_s = ask_limit_s, .stopped = cli_stopped };
    char words[512];
    int status, rc = child_run(&c, &status, e);

    if (rc == 0 && status != 0) {
        err_data(e, argv[0], ERR_NO_BYTE, "failed with status %d: %s", status,
                 child_last_words(&err_text, words, sizeof words));
        rc = -1;
    }
    strbuf_add(out, "", 0);
    strbuf_free(&err_text);
    return rc;
}

/* Returns the users of a group, "foo,bar": the text after the last colon of getent's line. The caller frees it. */
static char *group_users(const char *group, struct err *e)
{
    const char *const argv[] = { "getent", "group", group, NULL };
    struct strbuf out = {0};
    char *users = NULL, *colon;

    if (run_query_program(argv, &out, e) == 0) {
        out.buf[strcspn(out.buf, "\n")] = '\0';
        colon = strrchr(out.buf, ':');
        if (colon && colon[1])
            users = xstrdup(colon + 1);
        else
            err_data(e, group, ERR_NO_BYTE, "a group with no users (getent group)");
    }
    strbuf_free(&out);
    return users;
}

static char *find_users(const struct runwatch *w, struct err *e)
{
    struct passwd *me;

    if (w->group)
        return group_users(w->group, e);
    if (w->users)
        return xstrdup(w->users);
    me = getpwuid(getuid());
    if (!me)
        err_data(e, "pulse", ERR_NO_BYTE, "this user has no name; give --users or --group");
    return me ? xstrdup(me->pw_name) : NULL;
}

/* Split a line into seven words and the rest. Returns false if there are fewer. */
static bool split_blanks(char *line, struct pulse_job *job)
{
    for (int i = 0; i < PULSE_FIELDS; i++) {
        line += strspn(line, " \t");
        if (!*line)
            return false;
        job->field[i] = line;
        line += i < PULSE_FIELDS - 1 ? strcspn(line, " \t") : strlen(line);
        if (*line)
            *line++ = '\0';
    }
    return true;
}

static bool split_bars(char *line, struct pulse_job *job)
{
    static const enum pulse_field order[] = { PULSE_ID, PULSE_PARTITION, PULSE_STATE, PULSE_TIME, PULSE_NODES,
                                              PULSE_START, PULSE_NOTES, PULSE_NAME };

    for (int i = 0; i < PULSE_FIELDS; i++) {
        char *bar = i < PULSE_FIELDS - 1 ? strchr(line, '|') : NULL;

        if (i < PULSE_FIELDS - 1 && !bar)
            return false;
        job->field[order[i]] = line;
        if (bar) {
            *bar = '\0';
            line = bar + 1;
        }
    }
    return true;
}

static void parse_job_lines(struct pulse_jobs *j, const struct runwatch *w)
{
    const bool compat = w->compat == RUNWATCH_BIGSCIENCE;
    bool head = compat;

    for (char *line = j->text, *next; line && *line; line = next, head = false) {
        struct pulse_job job;
        size_t n = strcspn(line, "\n");

        next = line[n] ? line + n + 1 : line + n;
        while (n && (line[n - 1] == ' ' || line[n - 1] == '\r'))
            n--;
        line[n] = '\0';
        if (!*line)
            continue;
        if (!(compat ? split_blanks(line, &job) : split_bars(line, &job))) {
            j->n_strange++;
        } else if (strcmp(job.field[PULSE_NAME], w->job_name) == 0 &&
                   !(head && strcmp(job.field[PULSE_ID], "JOBID") == 0)) {
            ARRAY_ROOM(j->job, j->cap, j->n + 1);
            j->job[j->n++] = job;
        }
    }
}

int pulse_jobs_read(struct pulse_jobs *j, const struct runwatch *w, struct err *e)
{
    const bool compat = w->compat == RUNWATCH_BIGSCIENCE;
    char *users = find_users(w, e), *of = str_fmt("--user=%s", users ? users : "");
    const char *const argv[] = { "squeue", of, "-o", compat ? compat_format : own_format, compat ? NULL : "-h", NULL };
    struct strbuf out = {0};
    int rc = users ? run_query_program(argv, &out, e) : -1;

    if (rc == 0) {
        j->text = out.buf;
        parse_job_lines(j, w);
    } else {
        strbuf_free(&out);
    }
    free(of);
    free(users);
    return rc;
}
