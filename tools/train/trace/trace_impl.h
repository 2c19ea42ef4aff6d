/*
 * trace_impl.h - internal declarations shared by the trace*.c files
 *
 *   trace.c          steps and spans
 *   trace_kernels.c  wrappers that record kernels, copies and exchanges
 *   trace_write.c    writes the trace file
 */
#ifndef SHARDKIT_TRAIN_TRACE_IMPL_H
#define SHARDKIT_TRAIN_TRACE_IMPL_H

#include <pthread.h>

#include "tools/train/trace/trace.h"

/* Numbers of the tracks. Stream i has track TRACE_STREAMS + i. */
enum { TRACE_STEPS, TRACE_PHASES, TRACE_HOST, TRACE_STREAMS };
enum { TRACE_MOST_STREAMS = 64, TRACE_MOST_SPANS = 1 << 20 };

struct trace_span {
    const char *name, *of;              /* of: the group or the path that the call works on; or NULL */
    /* Start and end of the span in seconds, from clock_s(). If to_s is 0, the span has not ended. */
    double from_s, to_s;
    /* For spans on a stream: timers at the start and at the end. trace_resolve() converts them to from_s and to_s. */
    struct dev_event *from, *to;
    int class;                          /* enum trace_class; -1: the span is a step or a phase */
    int track;
    int64_t number;                     /* number of the step or of the micro-batch; -1: none */
};

struct trace {
    int64_t first, last, now;           /* now: the current iteration; 0: none has begun */
    bool on, written;
    pthread_t thread;
    const struct kernels *k;            /* the original kernels, which the traced functions call */
    const struct dev_net *net;
    struct kernels traced;
    struct dev_ops traced_dev;
    struct dev_net traced_net;
    struct trace_span *span;
    int n, cap;
    int64_t n_lost;                     /* number of spans that were dropped because the table was full */
    struct dev_stream *stream[TRACE_MOST_STREAMS];
    int n_streams;
    /*
     * A timer on the device that completed at the time base_s of the host. It relates the clock of the device to that
     * of the host.
     */
    struct dev_event *base;
    double base_s;
    int depth;                          /* number of nested host spans that are open */
    int at_host, at_phase, at_step;     /* indices of the open spans of the host, phase and step tracks; -1: none */
};

/*
 * Begin and end a span on stream s. trace_begin() returns the index of the span, which must be passed to trace_end(),
 * or -1 if nothing is recorded.
 */
int trace_begin(struct trace *t, enum trace_class class, const char *name, struct dev_stream *s);
void trace_end(struct trace *t, int i, struct dev_stream *s);
/* End all open spans, and compute the times of all spans. Waits for the device. Returns -1 if comm_sync() fails. */
MUST_CHECK int trace_resolve(struct trace *t, struct comm *all, struct err *e);

#endif
