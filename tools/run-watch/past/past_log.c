/*
 * past_log.c - read a whole training log, written by train or Megatron-LM
 *
 * docs/training.md 6.4 describes the lines that are parsed. torchrun puts a prefix such as "[default7]:" before each
 * line.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/mem.h"
#include "tools/run-watch/past/past.h"

struct past_log {
    struct past *p;
    bool starts;                /* the next iteration is the first one after a start */
};

bool past_log_field(const char *line, const char *name, double *v)
{
    const char *p = strstr(line, name);
    char *end;

    if (!p)
        return false;
    *v = strtod(p + strlen(name), &end);
    return end != p + strlen(name);
}

/* ---- the line of an iteration: parts separated by bars ---- */

#define PART(name, member) { name, sizeof name - 1, offsetof(struct past_point, member) }
static const struct log_part {
    const char *name;
    size_t len, at;
} parts[] = {
    PART("consumed samples:", samples), PART("consumed tokens:", tokens),
    PART("elapsed time per iteration (s):", elapsed_s), PART("learning rate:", v[PAST_LR]),
    PART("global batch size:", v[PAST_BATCH]), PART("lm loss:", v[PAST_LOSS]), PART("loss scale:", v[PAST_SCALE]),
    PART("grad norm:", v[PAST_NORM]), PART("samples per second:", v[PAST_SAMPLES_S]), PART("TFLOPs:", v[PAST_TFLOPS]),
};

static void parse_iteration_field(struct past_point *x, const char *text)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strncmp(text, parts[i].name, parts[i].len) == 0) {
            char *end;
            double v = strtod(text + parts[i].len, &end);

            if (end != text + parts[i].len)
                memcpy((char *)x + parts[i].at, &v, sizeof v);
            return;
        }
}

static void parse_iteration_line(struct past_log *r, const char *line)
{
    char *end;
    const long long iteration = strtoll(line + strlen(" iteration "), &end, 10);
    struct past_point *x;

    if (end == line + strlen(" iteration ") || !strstr(end, "elapsed time per iteration"))
        return;
    if (*end == '/')
        r->p->train_iters = strtoll(end + 1, NULL, 10);
    x = past_add_point(r->p, iteration);
    x->first = r->starts;
    r->starts = false;
    for (const char *at = strchr(end, '|'); at; at = strchr(at, '|')) {
        at += 1 + strspn(at + 1, " ");
        parse_iteration_field(x, at);
    }
    /*
     * Compute the samples per second if the line lacks them, because some programs log only the batch size and the
     * duration.
     */
    if (!isfinite(x->v[PAST_SAMPLES_S]) && x->v[PAST_BATCH] > 0 && x->elapsed_s > 0)
        x->v[PAST_SAMPLES_S] = x->v[PAST_BATCH] / x->elapsed_s;
}

/* ---- other lines ---- */

/*
 * Parse the date in "... datetime: 2022-03-11 18:00:00". It is interpreted in the time zone of this machine, which must
 * be the time zone of the log. Returns NaN if the line has no date.
 */
static double datetime(const char *line)
{
    const char *at = strstr(line, "datetime:");
    struct tm tm = { .tm_isdst = -1 };
    time_t t;

    if (!at || !strptime(at + strlen("datetime:"), " %Y-%m-%d %H:%M:%S", &tm))
        return NAN;
    t = mktime(&tm);
    return t == (time_t)-1 ? (double)NAN : (double)t;
}

/*
 * Parse a line with a validation loss, such as "English loss at iteration 40 | lm loss value: 2.1E+00 | ...". Returns
 * false if the line is of another kind.
 */
static bool parse_valid_line(struct past *p, char *line)
{
    char *at = strstr(line, " loss at iteration ");
    double iteration, loss;

    if (!at || !past_log_field(at, " loss at iteration ", &iteration) || !past_log_field(at, "lm loss value:", &loss))
        return false;
    *at = '\0';
    err_clean(line);
    past_add_valid(p, line + strspn(line, " "), (int64_t)iteration, loss, NAN);
    return true;
}

static void parse_slow_rank_line(struct past *p, const char *line)
{
    struct past_slow s = { .rank = -1, .after = p->n };
    const char *host = strstr(line, "host: ");
    double iteration, rank;

    if (!past_log_field(line, " iteration ", &iteration) || !past_log_field(line, "slowest rank:", &rank))
        return;
    s.iteration = (int64_t)iteration;
    s.rank = (int)rank;
    if (host)
        snprintf(s.host, sizeof s.host, "%.*s", (int)strcspn(host + 6, " |"), host + 6);
    err_clean(s.host);
    past_log_field(line, "compute (s):", &s.compute_s);
    past_log_field(line, "above its stage's median:", &s.above);
    ARRAY_ROOM(p->slow, p->cap_slow, p->n_slow + 1);
    p->slow[p->n_slow++] = s;
}

/* Add an event. Its text is the part of the line before the date, or the whole line if it has no date. */
static void add_log_event(struct past *p, enum past_kind kind, const char *line, double at_s)
{
    const char *from = line + (*line == '['), *to = strstr(from, "] datetime:");
    char *text = str_fmt("%.*s", (int)(to ? to - from : (long)strlen(from)), from);

    past_add_event(p, kind, -1, at_s, text);
    free(text);
}

static void parse_past_line(struct past_log *r, char *line)
{
    struct past *p = r->p;
    double iteration;

    if (str_starts(line, "[default") && strchr(line, ':'))
        line = strchr(line, ':') + 1;
    if (str_starts(line, " iteration ")) {
        parse_iteration_line(r, line);
    } else if (str_starts(line, "using world size:")) {
        r->starts = true;
        past_add_event(p, PAST_START, -1, NAN, line);
    } else if (str_starts(line, "[before the start of training step]")) {
        r->starts = true;
        if (p->n_events && p->event[p->n_events - 1].kind == PAST_START && p->event[p->n_events - 1].after == p->n)
            p->event[p->n_events - 1].at_s = datetime(line);
        else
            past_add_event(p, PAST_START, -1, datetime(line), "start");
    } else if (str_starts(line, "[exiting program") || str_starts(line, "[Detected kill switch")) {
        add_log_event(p, PAST_STOP, line, datetime(line));
    } else if (strstr(line, "successfully saved checkpoint at iteration") &&
               past_log_field(line, "checkpoint at iteration", &iteration)) {
        past_add_event(p, PAST_SAVE, (int64_t)iteration, NAN, "");
    } else if (str_starts(line, "[straggler]")) {
        parse_slow_rank_line(p, line);
    } else {
        parse_valid_line(p, line);
    }
}

int past_read_log(struct past *p, const char *path, struct err *e)
{
    struct past_log r = { p, true };
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int rc = 0;

    if (!f) {
        err_sys(e, path, "cannot open");
        return -1;
    }
    while ((n = getline(&line, &cap, f)) > 0)
        if (line[n - 1] == '\n') {      /* a last line without a newline is still being written by the run */
            line[n - 1] = '\0';
            parse_past_line(&r, line);
        }
    if (ferror(f)) {
        err_sys(e, path, "cannot read");
        rc = -1;
    }
    free(line);
    fclose(f);
    return rc;
}
