/*
 * trace.c - record steps and spans
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/mem.h"
#include "tools/train/trace/trace_impl.h"

struct trace *trace_new(int64_t first, int64_t last)
{
    struct trace *t = xcalloc(1, sizeof *t);

    t->first = first;
    t->last = last;
    t->thread = pthread_self();
    t->at_host = t->at_phase = t->at_step = -1;
    return t;
}

static void free_events(struct trace *t)
{
    for (int i = 0; i < t->n; i++)
        if (t->span[i].from) {
            t->k->dev->event_free(t->span[i].from);
            t->k->dev->event_free(t->span[i].to);
            t->span[i].from = t->span[i].to = NULL;
        }
    if (t->base)
        t->k->dev->event_free(t->base);
    t->base = NULL;
}

void trace_free(struct trace *t)
{
    if (!t)
        return;
    free(t->span);
    free(t);
}

/* Returns true if work of the calling thread is recorded now. */
static bool is_on(const struct trace *t) { return t && pthread_equal(t->thread, pthread_self()) && t->on; }

static bool has_streams(const struct trace *t) { return t->k && !dev_on_host(t->k->dev); }

/* ---- spans ---- */

static int add_trace_span(struct trace *t, struct trace_span s)
{
    if (t->n == TRACE_MOST_SPANS) {
        t->n_lost++;
        return -1;
    }
    ARRAY_ROOM(t->span, t->cap, t->n + 1);
    t->span[t->n] = s;
    return t->n++;
}

static void end_host_span(struct trace *t, int *i)
{
    if (*i >= 0)
        t->span[*i].to_s = clock_s();
    *i = -1;
}

static void host_begin(struct trace *t, struct trace_span s)
{
    /* Record only the outermost span. Copies inside of a save, for example, belong to the span of the save. */
    if (t->depth++ == 0) {
        s.track = TRACE_HOST;
        s.number = -1;
        s.from_s = clock_s();
        t->at_host = add_trace_span(t, s);
    }
}

static void host_end(struct trace *t)
{
    if (t->depth > 0 && --t->depth == 0)
        end_host_span(t, &t->at_host);
}

void trace_host_begin(struct trace *t, enum trace_class class, const char *name)
{
    if (is_on(t))
        host_begin(t, (struct trace_span){ .class = (int)class, .name = name });
}

void trace_host_end(struct trace *t)
{
    if (is_on(t))
        host_end(t);
}

/* Returns the track number of a stream, or -1 if there are too many streams. */
static int track_of(struct trace *t, struct dev_stream *s)
{
    for (int i = 0; i < t->n_streams; i++)
        if (t->stream[i] == s)
            return TRACE_STREAMS + i;
    if (t->n_streams == TRACE_MOST_STREAMS)
        return -1;
    t->stream[t->n_streams] = s;
    return TRACE_STREAMS + t->n_streams++;
}

int trace_begin(struct trace *t, enum trace_class class, const char *name, struct dev_stream *s)
{
    struct trace_span x = { .class = (int)class, .name = name, .number = -1 };
    int i;

    if (!is_on(t))
        return -1;
    if (!has_streams(t)) {
        host_begin(t, x);
        return 0;
    }
    x.track = track_of(t, s);
    i = x.track < 0 ? -1 : add_trace_span(t, x);
    if (i < 0)
        return -1;
    t->span[i].from = t->k->dev->timer_new();
    t->span[i].to = t->k->dev->timer_new();
    t->k->dev->event_record(t->span[i].from, s);
    return i;
}

void trace_end(struct trace *t, int i, struct dev_stream *s)
{
    if (i < 0)
        return;
    if (has_streams(t))
        t->k->dev->event_record(t->span[i].to, s);
    else
        host_end(t);
}

/* ---- hooks ---- */

void trace_call(struct trace *t, const char *call, const char *group, bool outside)
{
    enum trace_class class = !outside ? TRACE_EXCHANGE : call && !strcmp(call, "sample") ? TRACE_DATA : TRACE_WAIT;

    if (!is_on(t))
        return;
    if (call)
        host_begin(t, (struct trace_span){ .class = (int)class, .name = call, .of = group });
    else
        host_end(t);
}

void trace_phase(struct trace *t, const char *phase, int micro_batch)
{
    if (!is_on(t))
        return;
    end_host_span(t, &t->at_phase);
    t->at_phase = add_trace_span(t, (struct trace_span){ .class = -1, .name = phase, .track = TRACE_PHASES,
                                              .number = micro_batch, .from_s = clock_s() });
}

/* ---- steps ---- */

/*
 * Relate the device's clock to the host's. A timer is recorded on the device, and the host reads its own clock as soon
 * as this timer has completed.
 */
static void relate_device_clock(struct trace *t)
{
    if (!has_streams(t))
        return;
    t->base = t->k->dev->timer_new();
    t->k->dev->event_record(t->base, NULL);
    t->k->dev->stream_sync(NULL);
    t->base_s = clock_s();
}

void trace_step(struct trace *t, int64_t iteration)
{
    if (!t || t->written)
        return;
    end_host_span(t, &t->at_phase);
    end_host_span(t, &t->at_step);
    t->now = iteration;
    if (!t->on && iteration >= t->first && iteration <= t->last)
        relate_device_clock(t);
    t->on = iteration >= t->first && iteration <= t->last;
    if (t->on)
        t->at_step = add_trace_span(t, (struct trace_span){ .class = -1, .name = "step", .track = TRACE_STEPS,
                                                 .number = iteration, .from_s = clock_s() });
}

bool trace_is_due(const struct trace *t) { return t && !t->written && t->n > 0 && t->now > t->last; }

int trace_resolve(struct trace *t, struct comm *all, struct err *e)
{
    end_host_span(t, &t->at_phase);
    end_host_span(t, &t->at_step);
    end_host_span(t, &t->at_host);
    t->on = false;
    for (int i = 0; i < t->n_streams; i++) {
        if (comm_sync(all, t->stream[i], e) < 0)
            return -1;
        t->k->dev->stream_sync(t->stream[i]);
    }
    for (int i = 0; i < t->n; i++) {
        struct trace_span *s = &t->span[i];

        if (!s->from)
            continue;
        s->from_s = t->base_s + t->k->dev->seconds_between(t->base, s->from);
        s->to_s = t->base_s + t->k->dev->seconds_between(t->base, s->to);
    }
    free_events(t);
    return 0;
}
