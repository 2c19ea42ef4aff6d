/*
 * plot.c - convert the data of runs to curves and axes
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/run-watch/picture/plot_impl.h"

/* ---- curves ---- */

static void series_add(struct plot_series *s, double samples, double loss)
{
    if (!isfinite(loss) || !isfinite(samples))
        return;
    ARRAY_ROOM(s->p, s->cap, s->n + 1);
    s->p[s->n++] = (struct plot_point){ samples, loss };
}

/*
 * Returns the series of validation losses with the name `of`, after creating it if necessary. If the runs are parallel,
 * each run has its own series.
 */
static struct plot_series *get_plot_set(struct plot *p, const char *run, const char *of, struct err *e)
{
    char *name = p->parallel ? str_fmt("%s, %s", of, run) : xstrdup(of);

    for (int i = 0; i < p->n_sets; i++)
        if (strcmp(p->set[i].name, name) == 0) {
            free(name);
            return &p->set[i];
        }
    if (p->n_sets == PLOT_SETS) {
        err_usage(e, "more than %d validation sets", PLOT_SETS);
        free(name);
        return NULL;
    }
    p->set[p->n_sets].name = name;
    return &p->set[p->n_sets++];
}

/* Returns true if `run` begins near the point at which `before` ended, so that both form one curve. */
static bool continues(const struct past *before, const struct past *run)
{
    return run->point[0].samples > 0.5 * before->point[before->n - 1].samples;
}

static void free_series(struct plot_series *s, int n)
{
    for (int i = 0; i < n; i++) {
        free(s[i].name);
        free(s[i].p);
        s[i] = (struct plot_series){0};
    }
}

static int add_plot_run(struct plot *p, const struct past *run, struct err *e)
{
    struct plot_series *s = &p->run[p->n_runs++];

    s->name = xstrdup(run->name);
    for (int i = 0; i < run->n; i++)
        series_add(s, run->point[i].samples, run->point[i].v[PAST_LOSS]);
    if (s->n == 0) {
        err_data(e, run->name, ERR_NO_BYTE, "has no iteration with a loss and the samples consumed");
        return -1;
    }
    for (int k = 0; k < run->n_sets; k++) {
        const struct past_set *from = &run->set[k];
        struct plot_series *set = get_plot_set(p, run->name, from->name, e);

        if (!set)
            return -1;
        for (int i = 0; i < from->n; i++)
            series_add(set, from->p[i].samples, from->p[i].loss);
    }
    return 0;
}

/* Remove the validation sets that have no finite loss. */
static void drop_empty(struct plot *p)
{
    int n = 0;

    for (int i = 0; i < p->n_sets; i++)
        if (p->set[i].n)
            p->set[n++] = p->set[i];
        else
            free_series(&p->set[i], 1);
    p->n_sets = n;
}

/* Replace each validation loss by its difference from the first run's loss at the same number of samples. */
static int make_differences(struct plot *p, struct err *e)
{
    const struct plot_series *base = &p->run[0];

    free_series(p->set, p->n_sets);
    p->n_sets = p->n_runs - 1;
    for (int r = 1; r < p->n_runs; r++) {
        struct plot_series *d = &p->set[r - 1];
        const struct plot_series *run = &p->run[r];

        d->name = xstrdup(run->name);
        for (int i = 0, k = 0; i < base->n && k < run->n;)
            if (base->p[i].samples < run->p[k].samples) {
                i++;
            } else if (base->p[i].samples > run->p[k].samples) {
                k++;
            } else {
                series_add(d, run->p[k].samples, run->p[k].loss - base->p[i].loss);
                i++, k++;
            }
        if (d->n == 0) {
            err_data(e, run->name, ERR_NO_BYTE, "has no samples in common with %s", base->name);
            return -1;
        }
    }
    return 0;
}

/* ---- axes ---- */

static void widen_plot_ranges(const struct plot_series *s, int n, double *x_hi, double *lo, double *hi)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < s[i].n; k++) {
            *x_hi = fmax(*x_hi, s[i].p[k].samples);
            *lo = fmin(*lo, s[i].p[k].loss);
            *hi = fmax(*hi, s[i].p[k].loss);
        }
}

/*
 * Returns an axis that includes the values from lo to hi. It has 3 to 6 steps, each of 1, 2 or 5 times a power of ten.
 */
static struct plot_axis axis_over(double lo, double hi)
{
    double span = hi > lo ? hi - lo : 1, step = pow(10, floor(log10(span))) / 10;
    static const double times[] = { 2, 2.5, 2 };

    for (int i = 0; span / step > 6; i++)
        step *= times[i % 3];
    return (struct plot_axis){ floor(lo / step + 1e-9) * step, ceil(hi / step - 1e-9) * step, step };
}

double plot_share(const struct plot_axis *a, double v)
{
    return (v - a->lo) / (a->hi - a->lo);
}

int plot_decimals(const struct plot_axis *a)
{
    int d = 0;

    for (double s = a->step; d < 4 && fabs(s - round(s)) > 1e-6; s *= 10)
        d++;
    return d;
}

static void make_axes(struct plot *p)
{
    const struct plot_ask *a = &p->ask;
    double x_hi = 0, lo = INFINITY, hi = -INFINITY, valid_lo = INFINITY, valid_hi = -INFINITY;

    widen_plot_ranges(p->set, p->n_sets, &x_hi, &valid_lo, &valid_hi);
    widen_plot_ranges(p->run, p->n_runs, &x_hi, &lo, &hi);
    p->x = axis_over(0, x_hi);
    p->x.hi = x_hi;                     /* the axis ends where the curves do */
    p->train = a->level_name ? axis_over(fmin(lo, a->level), fmax(hi, a->level)) : axis_over(lo, hi);
    if (valid_hi >= valid_lo)
        p->valid = axis_over(valid_lo, valid_hi);
}

/* ---- the plot ---- */

struct plot *plot_new(const struct plot_ask *a, struct past *const *run, int n, struct err *e)
{
    struct plot *p = xcalloc(1, sizeof *p);

    p->ask = *a;
    if (n > PLOT_RUNS) {
        err_usage(e, "%d runs, at most %d can be drawn next to each other", n, PLOT_RUNS);
        goto fail;
    }
    for (int i = 1; i < n; i++)
        p->parallel = p->parallel || !continues(run[i - 1], run[i]);
    for (int i = 0; i < n; i++)
        if (add_plot_run(p, run[i], e) < 0)
            goto fail;
    drop_empty(p);
    if (a->difference && make_differences(p, e) < 0)
        goto fail;
    make_axes(p);
    return p;
fail:
    plot_free(p);
    return NULL;
}

void plot_free(struct plot *p)
{
    if (!p)
        return;
    free_series(p->run, p->n_runs);
    free_series(p->set, p->n_sets);
    free(p);
}
