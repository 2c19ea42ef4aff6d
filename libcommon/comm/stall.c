/*
 * stall.c - measure how long a device's streams wait for other ranks
 *
 * Calls only queue work, so the host cannot distinguish computing from waiting. The device's streams therefore have a
 * timer before and after each place where they may wait for other ranks: a collective, or comm_wait(). Each timer costs
 * the device one time stamp. comm_sync() reads the timers when they have completed. At most STALLS waits are measured
 * between two calls of comm_sync().
 */
#include <stdlib.h>

#include "libcommon/comm/comm_impl.h"

enum { STALLS = 4096 };         /* enough for a step of 96 micro-batches through 10 blocks with TP > 1 */

struct stalls {
    double seconds;             /* sum of the waits that have been read */
    int n, n_made;              /* number of timer pairs in use, and number of pairs that have been created */
    struct {
        struct dev_event *from, *to;
        bool ended;
    } at[STALLS];
};

void comm_time_waits(struct comm_world *w)
{
    if (w->net && !w->stalls)
        w->stalls = xcalloc(1, sizeof *w->stalls);
}

double comm_seconds_waiting(const struct comm_world *w)
{
    return watch_seconds_in_calls(w->watch) + (w->stalls ? w->stalls->seconds : 0);
}

int stall_begin(struct comm_world *w, struct dev_stream *s)
{
    struct stalls *t = w->stalls;
    int i;

    if (!t || t->n == STALLS)
        return -1;
    i = t->n++;
    if (i == t->n_made) {
        t->at[i].from = w->net->dev->timer_new();
        t->at[i].to = w->net->dev->timer_new();
        t->n_made++;
    }
    t->at[i].ended = false;
    w->net->dev->event_record(t->at[i].from, s);
    return i;
}

void stall_end(struct comm_world *w, int i, struct dev_stream *s)
{
    if (i < 0)
        return;
    w->net->dev->event_record(w->stalls->at[i].to, s);
    w->stalls->at[i].ended = true;
}

/* Add the durations of the waits that are over to `seconds`, and move the remaining entries to the front. */
void stall_read(struct comm_world *w)
{
    struct stalls *t = w->stalls;
    int kept = 0;

    for (int i = 0; t && i < t->n; i++) {
        struct dev_event *from = t->at[i].from, *to = t->at[i].to;

        if (t->at[i].ended && w->net->dev->event_done(to)) {
            t->seconds += w->net->dev->seconds_between(from, to);
            continue;
        }
        /* Swap the entries instead of copying one, because timers are created only once and used again. */
        t->at[i].from = t->at[kept].from;
        t->at[i].to = t->at[kept].to;
        t->at[kept].from = from;
        t->at[kept].to = to;
        t->at[kept].ended = t->at[i].ended;
        kept++;
    }
    if (t)
        t->n = kept;
}

void stall_free(struct comm_world *w)
{
    struct stalls *t = w->stalls;

    for (int i = 0; t && i < t->n_made; i++) {
        w->net->dev->event_free(t->at[i].from);
        w->net->dev->event_free(t->at[i].to);
    }
    free(t);
    w->stalls = NULL;
}
