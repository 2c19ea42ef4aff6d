/*
 * outlier.c - detect jumps of the loss, and iterations that have become slower
 */
#include "tools/train/guard/outlier.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Returns the median of n > 0 numbers. Sorts x. */
static double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
    return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

/* ---- jumps of the loss ---- */

static bool is_spike(struct spike *s, double loss)
{
    const int n = s->n < SPIKE_WINDOW ? (int)s->n : SPIKE_WINDOW;
    double x[SPIKE_WINDOW];

    if (n < SPIKE_LEAST)
        return false;
    memcpy(x, s->loss, (size_t)n * sizeof *x);
    s->usual = median_of(x, n);
    for (int i = 0; i < n; i++)
        x[i] = fabs(x[i] - s->usual);
    return loss > s->usual + fmax(8 * median_of(x, n), 0.05 * fabs(s->usual));
}

bool spike_add_loss(struct spike *s, double loss)
{
    const bool is = is_spike(s, loss), first = is && s->calm == 0;

    s->calm = is ? SPIKE_CALM : s->calm - (s->calm > 0);
    s->loss[s->n++ % SPIKE_WINDOW] = loss;
    return first;
}

/* ---- slower iterations ---- */

bool throughput_add_step(struct throughput *t, double seconds_per_sample)
{
    double x[THROUGHPUT_ALL], scatter;
    bool before = t->slow;

    t->seconds_per_sample[t->n++ % THROUGHPUT_ALL] = seconds_per_sample;
    if (t->n < THROUGHPUT_ALL)
        return false;
    for (int i = 0; i < THROUGHPUT_ALL; i++)
        x[i] = t->seconds_per_sample[(t->n + i) % THROUGHPUT_ALL];
    t->now = median_of(x + THROUGHPUT_BEFORE, THROUGHPUT_NOW);
    t->usual = median_of(x, THROUGHPUT_BEFORE);
    for (int i = 0; i < THROUGHPUT_BEFORE; i++)
        x[i] = fabs(x[i] - t->usual);
    scatter = median_of(x, THROUGHPUT_BEFORE);
    t->slow = t->now > t->usual + (before ? 0.015 * t->usual : fmax(0.03 * t->usual, 2 * scatter));
    return t->slow && !before;
}
