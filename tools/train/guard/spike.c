/*
 * spike.c - detect jumps of the loss
 */
#include "tools/train/guard/spike.h"

#include <math.h>
#include <string.h>

#include "tools/train/guard/median.h"

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
