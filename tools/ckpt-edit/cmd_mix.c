/*
 * cmd_mix.c - the commands average and ema: tensors become the mean of those of several checkpoints
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/ckpt/checkpoint.h"
#include "libcommon/layout/edit/compute/edit_mix.h"
#include "libcommon/layout/layouts.h"
#include "tools/ckpt-edit/ckptedit.h"
#include "tools/common/convert_cli.h"

/* ---- weights of the folders ---- */

/* Parse "0.5,0.3,0.2": one weight per folder, with a sum of 1. */
static int read_weights(const char *text, struct edit_mix *m, struct err *e)
{
    const char *p = text;
    double sum = 0;
    int n = 0;
    char *end;

    for (;; p = end + 1) {
        double w = strtod(p, &end);

        if (end == p || !isfinite(w) || (*end && *end != ',')) {
            err_usage(e, "--weights %s: expected numbers with commas between them", text);
            return -1;
        }
        if (n < m->n)
            m->part[n].add = w;
        sum += w;
        n++;
        if (!*end)
            break;
    }
    if (n != m->n)
        err_usage(e, "--weights %s: has %d, there are %d folders", text, n, m->n);
    else if (!(fabs(sum - 1) <= 1e-6))
        err_usage(e, "--weights %s: they add up to %.9g: expected 1", text, sum);
    return e->kind == ERR_NONE ? 0 : -1;
}

/* Give all folders the same weight, unless --weights is given. */
static int set_average(const struct ckptedit *j, struct edit_mix *m, struct err *e)
{
    m->divide = j->weights ? 1 : m->n;
    for (int i = 0; i < m->n; i++)
        m->part[i].keep = m->part[i].add = 1;
    return j->weights ? read_weights(j->weights, m, e) : 0;
}

static int set_ema(const struct ckptedit *j, struct edit_mix *m, struct err *e)
{
    if (j->decay < 0) {
        err_usage(e, "ema needs --decay D, from 0 to 1");
        return -1;
    }
    m->divide = 1;
    for (int i = 0; i < m->n; i++) {
        m->part[i].keep = i ? j->decay : 0;
        m->part[i].add = i ? 1 - j->decay : 1;
    }
    return 0;
}

/* ---- the commands ---- */

/*
 * Open the other folders. s is the first one, which is already open. Fails if s has parameters that are not read:
 * the result would contain them unmixed, without a warning.
 */
static int open_others(const struct ckptedit *j, const struct source *s, struct edit_mix *m, struct err *e)
{
    struct source_opts so = { .threads = j->cli.threads, .accept_mismatch = j->cli.accept_mismatch,
                              .model = j->cli.model, .hf = true };

    for (int i = 0; i < j->n_args; i++) {
        m->part[i + 1].s = source_open(j->arg[i], &so, NULL, e);
        if (!m->part[i + 1].s || convert_cli_listed(&j->cli, m->part[i + 1].s, e) < 0)
            return -1;
        if (s->n_unread > 0) {
            err_data(e, s->path, ERR_NO_BYTE, "parameter '%s': is not read: %s", s->unread[0].name, s->unread[0].why);
            return -1;
        }
    }
    return 0;
}

/* Print that the moments are not mixed, if there are any. They would be used together with the mixed weights. */
static void warn_moments(const struct ckptedit *j, const struct source *s)
{
    for (int i = 0; i < s->n_params; i++)
        if (s->param[i].state[STATE_EXP_AVG]) {
            cli_info(&j->cli, "the moments stay those of %s: --moments mixes them, zero sets them to 0", s->path);
            return;
        }
}

static int mix(struct ckptedit *j, struct source *s, struct edit *x, struct edit_mix *m, struct err *e)
{
    int64_t bytes;
    int fd = -1;

    if (open_others(j, s, m, e) < 0)
        return -1;
    bytes = edit_mix_bytes(s, m, e);    /* this reports a misfit before disk space is allocated */
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
                          .stopped = cli_stopped };
    int rc;

    m.part = xcalloc((size_t)m.n, sizeof *m.part);
    m.part[0].s = s;
    rc = set(j, &m, e) < 0 ? -1 : mix(j, s, x, &m, e);
    for (int i = 1; i < m.n; i++)
        source_close(m.part[i].s);
    free(m.part);
    return rc;
}

int change_average(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    return change_mix(j, s, x, set_average, e);
}

int change_ema(struct ckptedit *j, struct source *s, struct edit *x, struct err *e)
{
    return change_mix(j, s, x, set_ema, e);
}
