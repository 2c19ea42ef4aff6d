/* cmd_mix.c - the commands average and ema: replace each tensor by the mean of that tensor in several checkpoints */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/compute/edit_mix.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/common/convert_cli.h"

/* ---- factors of the checkpoints ---- */

/*
 * Returns the part of checkpoint number i, counted from the oldest. With --last, the parts are stored with the newest
 * first.
 */
static struct edit_mix_part *part_by_age(const struct ckptedit *j, struct edit_mix *m, int i)
{
    return &m->part[j->last ? (i + 1) % m->n : i];
}

/* Parse a list such as "0.5,0.3,0.2". It must have one weight per checkpoint, with a sum of 1. */
static int read_weights(const char *text, const struct ckptedit *j, struct edit_mix *m, struct err *e)
{
    const char *p = text;
    double sum = 0;
    int n = 0;
    char *end;

    for (;; p = end + 1) {
        double w = strtod(p, &end);

        if (end == p || !isfinite(w) || (*end && *end != ',')) {
            err_usage(e, "--weights %s: the value must be numbers separated by commas", text);
            return -1;
        }
        if (n < m->n)
            part_by_age(j, m, n)->add = w;
        sum += w;
        n++;
        if (!*end)
            break;
    }
    if (n != m->n)
        err_usage(e, "--weights %s: the number of factors is %d, but there are %d folders", text, n, m->n);
    else if (!(fabs(sum - 1) <= 1e-6))
        err_usage(e, "--weights %s: the factors add up to %.9g instead of 1", text, sum);
    return e->kind == ERR_NONE ? 0 : -1;
}

/* Returns the learning rate at point x (0 to 1) of a decay from 1 to 0. */
static double decayed_rate(enum average_style style, double x)
{
    switch (style) {
    case STYLE_COSINE: return (1 + cos(M_PI * x)) / 2;
    case STYLE_MINUS_SQRT: return 1 - sqrt(x);
    case STYLE_LINEAR: break;
    }
    return 1 - x;
}

/*
 * Set the factors so that the mean of n checkpoints, trained at a constant learning rate, is what a decay of the
 * learning rate during these steps would have given. In the mean, the update between two checkpoints is scaled by the
 * sum of the factors of all checkpoints after it. For checkpoint i this sum must be the decayed rate f(i/n), so factor
 * i is f(i/n) - f((i+1)/n) (Tian et al., WSM, 2025; Megatron-LM's weighted_merge.py).
 */
static void set_decay_factors(const struct ckptedit *j, struct edit_mix *m)
{
    double rest = 1;

    for (int i = m->n - 1; i > 0; i--) {
        const double after = i == m->n - 1 ? 0 : decayed_rate((enum average_style)j->style, (i + 1) / (double)m->n);
        const double factor = decayed_rate((enum average_style)j->style, i / (double)m->n) - after;

        part_by_age(j, m, i)->add = factor;
        rest -= factor;
    }
    part_by_age(j, m, 0)->add = rest;
}

/* Print the factor of each checkpoint, the oldest first. */
static void print_factors(const struct ckptedit *j, struct edit_mix *m)
{
    for (int i = 0; i < m->n; i++) {
        const struct edit_mix_part *p = part_by_age(j, m, i);
        const int k = (int)(p - m->part);

        cli_info(&j->cli, "factor %.9g: %s", p->add / m->divide, k ? j->arg[k - 1] : j->in);
    }
}

/* Set the factors of --weights or --style. If neither is given, all checkpoints have the same factor. */
static int set_average(const struct ckptedit *j, struct edit_mix *m, struct err *e)
{
    const bool equal = !j->weights && j->style < 0;

    if (j->weights && j->style >= 0) {
        err_usage(e, "--weights and --style exclude each other, because both define the factors");
        return -1;
    }
    m->divide = equal ? m->n : 1;
    for (int i = 0; i < m->n; i++)
        m->part[i].keep = m->part[i].add = 1;
    if (j->style >= 0)
        set_decay_factors(j, m);
    return j->weights ? read_weights(j->weights, j, m, e) : 0;
}

static int set_ema(const struct ckptedit *j, struct edit_mix *m, struct err *e)
{
    if (j->decay < 0) {
        err_usage(e, "ema needs --decay D, a number from 0 to 1");
        return -1;
    }
    m->divide = 1;
    for (int i = 0; i < m->n; i++) {
        m->part[i].keep = i ? j->decay : 0;
        m->part[i].add = i ? 1 - j->decay : 1;
    }
    if (j->last) {              /* with --last the first part is the newest, so factors are set and no recurrence */
        double left = 1;

        for (int i = m->n - 1; i >= 0; i--) {
            part_by_age(j, m, i)->keep = 1;
            part_by_age(j, m, i)->add = i ? (1 - j->decay) * left : left;
            left *= j->decay;
        }
    }
    return 0;
}

/* ---- the commands ---- */

/*
 * Open the other checkpoints; s is the first one, which is already open. Fails if s has parameters that cannot be read,
 * because the result would have these parameters without averaging.
 */
static int open_others(const struct ckptedit *j, const struct source *s, struct edit_mix *m, struct err *e)
{
    struct source_opts so = { .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch,
                              .model = j->cli.model, .hf = true };

    for (int i = 0; i < j->n_args; i++) {
        m->part[i + 1].s = source_open(j->arg[i], &so, NULL, e);
        if (!m->part[i + 1].s || inputs_check_source("IN2", m->part[i + 1].s, j->out, e) < 0 ||
            convert_cli_listed(&j->cli, m->part[i + 1].s, e) < 0)
            return -1;
        if (s->n_unread > 0) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter '%s' cannot be read: %s", s->unread[0].name, s->unread[0].why);
            return -1;
        }
    }
    return 0;
}

/*
 * Warn if two of the checkpoints of --last record one step, or if the steps of --style do not rise. Checkpoints without
 * a step are not compared.
 */
static void warn_steps(const struct ckptedit *j, struct edit_mix *m)
{
    for (int i = 1; i < m->n; i++)
        for (int k = j->last ? 0 : i - 1; k < i; k++) {
            const struct source *a = part_by_age(j, m, k)->s, *b = part_by_age(j, m, i)->s;
            const long long step = b->run.iteration, before = a->run.iteration;

            if (step <= 0 || before <= 0)
                continue;
            if (j->last && step == before)
                cli_warn(&j->cli, "%s and %s both record step %lld, so they may be the same save, counted twice",
                         a->path, b->path, step);
            else if (j->style >= 0 && k == i - 1 && step <= before)
                cli_warn(&j->cli, "--style needs folders in the order of their steps, but %s records step %lld and %s, "
                                  "before it, step %lld", b->path, step, a->path, before);
        }
}

/*
 * If the checkpoint has moments, print that they are not averaged, although they will be used together with the
 * averaged weights.
 */
static void warn_moments(const struct ckptedit *j, const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].state[STATE_EXP_AVG]) {
            cli_info(&j->cli, "the moments are those of %s, not averages; --moments averages them, 'ckpt-edit zero' "
                              "sets them to 0",
                     s->path);
            return;
        }
}

static int mix(struct ckptedit *j, struct source *s, struct edit *x, struct edit_mix *m, struct err *e)
{
    int64_t bytes;
    int fd = -1;

    if (open_others(j, s, m, e) < 0)
        return -1;
    if (j->last || j->style >= 0)
        warn_steps(j, m);
    bytes = edit_mix_bytes(s, m, e);    /* reports checkpoints that do not fit together, before disk space is
                                         * allocated */
    if (bytes < 0)
        return -1;
    if (!j->cli.dry_run && (fd = ckptedit_spool(j, (uint64_t)bytes, e)) < 0)
        return -1;
    if (!m->moments)
        warn_moments(j, s);
    return edit_mix(x, s, m, fd, e);
}

static int change_mix(struct ckptedit *j, struct source *s, struct edit *x,
                      int (*set)(const struct ckptedit *j, struct edit_mix *m, struct err *e), struct err *e)
{
    struct edit_mix m = { .n = j->n_args + 1, .moments = j->moments, .threads = j->cli.threads,
                          .stopped = cli_stopped, .notes = report_new() };
    int rc;

    m.part = xcalloc((size_t)m.n, sizeof *m.part);
    m.part[0].s = s;
    rc = set(j, &m, e);
    if (rc == 0 && (j->last || j->style >= 0))
        print_factors(j, &m);
    if (rc == 0)
        rc = mix(j, s, x, &m, e);
    cli_warn_findings(&j->cli, m.notes);
    report_free(m.notes);
    for (int i = 1; i < m.n; i++)
        source_close(m.part[i].s);
    free(m.part);
    return rc;
}

int mix_find_steps(struct ckptedit *j, struct err *e)
{
    const int n = (int)j->last;

    j->steps = layout_list_steps(j->in, &j->n_steps, e);
    if (!j->steps) {
        if (layout_of_folder(j->in)) {
            err_clear(e);
            err_usage(e, "--last %d: %s is a checkpoint; give the folder that contains the checkpoints", n, j->in);
        }
        return -1;
    }
    if (j->n_steps < n) {
        err_usage(e, "--last %d: %s has only %d checkpoint%s up to the one that the file 'latest' names",
                  n, j->in, j->n_steps,
                  j->n_steps == 1 ? "" : "s");
        return -1;
    }
    j->in = j->steps[j->n_steps - 1];
    j->arg = (const char **)&j->steps[j->n_steps - n];
    j->n_args = n - 1;
    return 0;
}

int change_average(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    return change_mix(j, s, x, set_average, e);
}

int change_ema(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    return change_mix(j, s, x, set_ema, e);
}
