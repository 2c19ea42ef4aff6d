/*
 * stall.c - measure how long a device's streams wait for other ranks
 *
 * Calls only queue work, so the host cannot distinguish computing from waiting. Two timers around each place where
 * the caller's stream may wait (a collective in it, comm_wait()) make that possible. They cost the device one time
 * stamp each, and are read in comm_sync(), when they have completed long ago. Waits in excess of STALLS between two
 * comm_sync() are not measured.
 */
#include <stdlib.h>

#include "libcommon/comm/comm_impl.h"

enum { STALLS = 4096 };         /* enough for a step of 96 micro-batches over 10 blocks with TP > 1 */

struct stalls {
    double seconds;             /* sum of the waits that have been read */
    int n, n_made;              /* number in use; number with timers */
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

/* Add the waits whose timers have completed to `seconds`, and move the others to the front. */
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
        /* Timers are created only once, so they are swapped. */
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
