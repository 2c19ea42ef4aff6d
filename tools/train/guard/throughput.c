/*
 * throughput.c - detect that a run has become slower
 */
#include "tools/train/guard/throughput.h"

#include <math.h>

#include "tools/train/guard/median.h"

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
