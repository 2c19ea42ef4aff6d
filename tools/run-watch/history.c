/* history.c - usual values of a run's recent iterations: medians and their scatter */
#include "tools/run-watch/history.h"

#include <math.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"

enum { HOUR_S = 3600, FEW_POINTS = 20 };

void history_free(struct history *h)
{
    free(h->point);
    free(h->drift);
    free(h->straggler);
    *h = (struct history){0};
}

int history_hour(const struct history *h)
{
    int from = h->n;

    while (from > 0 && (h->n - from < FEW_POINTS || h->point[from - 1].at_s > h->point[h->n - 1].at_s - HOUR_S))
        from--;
    return from;
}

/* Returns one value of a point, or NaN if the log does not record it there. */
static double history_point_value(const struct history_point *p, enum history_value what)
{
    if (what == HISTORY_LOSS)
        return p->loss;
    if (what == HISTORY_RATE)
        return p->samples_per_s > 0 ? p->samples_per_s : (double)NAN;
    return p->iteration_s > 0 ? p->iteration_s : (double)NAN;
}

static int by_history_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the median of the n numbers v[], n > 0. Sorts v. */
static double middle_of(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_history_value);
    return n % 2 ? v[n / 2] : 0.5 * (v[n / 2 - 1] + v[n / 2]);
}

/*
 * Returns the values of points [from, to), without the unknown ones. *n receives the number of values returned. The
 * caller frees the array.
 */
static double *known_values(const struct history *h, enum history_value what, int from, int to, int *n)
{
    double *v = xcalloc((size_t)(to > from ? to - from : 1), sizeof *v);

    *n = 0;
    for (int i = from; i < to; i++)
        if (isfinite(history_point_value(&h->point[i], what)))
            v[(*n)++] = history_point_value(&h->point[i], what);
    return v;
}

double history_median(const struct history *h, enum history_value what, int from, int to, int *n_known)
{
    double *v = known_values(h, what, from, to, n_known), middle = *n_known ? middle_of(v, *n_known) : (double)NAN;

    free(v);
    return middle;
}

double history_scatter(const struct history *h, enum history_value what, int from, int to, double middle)
{
    int n;
    double *v = known_values(h, what, from, to, &n), scatter;

    for (int i = 0; i < n; i++)
        v[i] = fabs(v[i] - middle);
    scatter = n ? middle_of(v, n) : (double)NAN;
    free(v);
    return scatter;
}
