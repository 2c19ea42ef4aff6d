/*
 * trace_impl.h - what the trace*.c files share; for them only
 *
 *   trace.c          steps and spans
 *   trace_kernels.c  kernels, copies and exchanges that note themselves
 *   trace_write.c    the file
 */
#ifndef SHARDKIT_TRAIN_TRACE_IMPL_H
#define SHARDKIT_TRAIN_TRACE_IMPL_H

#include <pthread.h>

#include "tools/train/trace/trace.h"

enum { TRACE_STEPS, TRACE_PHASES, TRACE_HOST, TRACE_STREAMS };  /* numbers of tracks; streams go on from there */
enum { TRACE_MOST_STREAMS = 64, TRACE_MOST_SPANS = 1 << 20 };

struct trace_span {
    const char *name, *of;              /* of: a group, a path; or NULL */
    double from_s, to_s;                /* by clock_s(); to_s 0: it has not ended */
    struct dev_event *from, *to;        /* on a stream: in place of them, until they are read */
    int class;                          /* -1: a step or a phase */
    int track;
    int64_t number;                     /* of a step or a micro-batch; -1: none */
};

struct trace {
    int64_t first, last, now;           /* now: the iteration under way; 0: none so far */
    bool on, written;
    pthread_t thread;
    const struct kernels *k;            /* as they are */
    const struct dev_net *net;
    struct kernels traced;
    struct dev_ops traced_dev;
    struct dev_net traced_net;
    struct trace_span *span;
    int n, cap;
    int64_t n_lost;                     /* there was no room for them */
    struct dev_stream *stream[TRACE_MOST_STREAMS];
    int n_streams;
    struct dev_event *base;             /* where the device's clock and the host's meet */
    double base_s;
    int depth;                          /* of what the host does */
    int at_host, at_phase, at_step;     /* numbers of spans that have not ended; -1: none */
};

/* A span on a stream begins and ends: its number, or -1. */
int trace_begin(struct trace *t, enum trace_class class, const char *name, struct dev_stream *s);
void trace_end(struct trace *t, int i, struct dev_stream *s);
/* Times of all spans are known from here on. Waits for the device; -1: comm_sync() has failed. */
MUST_CHECK int trace_settle(struct trace *t, struct comm *all, struct err *e);

#endif
