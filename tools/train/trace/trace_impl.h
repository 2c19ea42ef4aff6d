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

/* track numbers; stream i has track TRACE_STREAMS + i */
enum { TRACE_STEPS, TRACE_PHASES, TRACE_HOST, TRACE_STREAMS };
enum { TRACE_MOST_STREAMS = 64, TRACE_MOST_SPANS = 1 << 20 };

struct trace_span {
    const char *name, *of;              /* of: the group or path that the call works on; or NULL */
    /* start and end of the span in seconds, from clock_s(); to_s 0: the span has not ended */
    double from_s, to_s;
    /* for spans on a stream: the timers at both ends, which trace_resolve() converts into from_s and to_s */
    struct dev_event *from, *to;
    int class;                          /* -1: the span is a step or a phase */
    int track;
    int64_t number;                     /* number of the step or micro-batch; -1: none */
};

struct trace {
    int64_t first, last, now;           /* now: the current iteration; 0: no iteration has begun */
    bool on, written;
    pthread_t thread;
    const struct kernels *k;            /* the original functions, which the traced ones call */
    const struct dev_net *net;
    struct kernels traced;
    struct dev_ops traced_dev;
    struct dev_net traced_net;
    struct trace_span *span;
    int n, cap;
    int64_t n_lost;                     /* number of spans that were dropped because the table was full */
    struct dev_stream *stream[TRACE_MOST_STREAMS];
    int n_streams;
    /* a timer that was recorded at host time base_s; both relate the device's clock to the host's */
    struct dev_event *base;
    double base_s;
    int depth;                          /* nesting depth of the host spans that are open */
    int at_host, at_phase, at_step;     /* indices of the open spans; -1: none */
};

/*
 * Begin and end a span on stream s. trace_begin() returns the index of the span, to be passed to trace_end(), or -1
 * if nothing is recorded.
 */
int trace_begin(struct trace *t, enum trace_class class, const char *name, struct dev_stream *s);
void trace_end(struct trace *t, int i, struct dev_stream *s);
/* End the open spans and compute the times of all spans. Waits for the device. Returns -1 if comm_sync() fails. */
MUST_CHECK int trace_resolve(struct trace *t, struct comm *all, struct err *e);

#endif
