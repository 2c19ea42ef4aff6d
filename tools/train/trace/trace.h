/*
 * trace.h - record what a rank does during a few steps, span by span (--trace)
 *
 * Kernels, exchanges between devices and copies are recorded by wrappers: the run gets a copy of struct kernels in
 * which each function records a span around the call of the original function. The hooks of comm.h report calls of
 * comm.h, reads of data and phases. Outside of the traced steps a hook costs one comparison. Without --trace there are
 * no wrappers, and the run uses the kernels directly.
 *
 * On the CPU a span covers the time of the call. On a GPU a span covers the time between two timers in the call's
 * stream, so it begins when the stream reaches the call and not when the host queues it. The host has a track of its
 * own.
 *
 * The output is a file in Chrome's trace event format, which Perfetto opens. Each rank is a process with the tracks
 * "steps", "phases", "host" and one track per stream. On the host and stream tracks, a span "other" is added for time
 * that no span covers, so the spans of a step add up to the duration of the step. The hosts' clocks are not corrected:
 * if the clocks of two hosts differ, their ranks are shifted by the difference. Threads: spans from threads other than
 * the one that created the trace are ignored.
 */
#ifndef SHARDKIT_TRAIN_TRACE_H
#define SHARDKIT_TRAIN_TRACE_H

#include "kernels/kernels.h"
#include "libcommon/comm/comm.h"

enum trace_class {
    TRACE_LINEAR, TRACE_ATTENTION, TRACE_NORM, TRACE_EMBEDDING, TRACE_LOSS, TRACE_OPTIMIZER, TRACE_ELEMENTWISE,
    TRACE_COPY, TRACE_EXCHANGE, TRACE_WAIT, TRACE_DATA, TRACE_SAVE, TRACE_DIGEST, TRACE_CLASSES
};

struct trace;
/* Create a trace of the iterations `first` to `last`, both included. A process can have only one trace. */
struct trace *trace_new(int64_t first, int64_t last);
/* Free the trace. NULL is allowed. The traced kernels must have been closed. */
void trace_free(struct trace *t);

/*
 * Returns a copy of k whose functions record spans, or k itself if t is NULL. The copy is valid as long as the trace.
 * Closing the copy also closes k.
 */
const struct kernels *trace_kernels(struct trace *t, const struct kernels *k);
/* Returns a copy of net whose functions record spans, or net itself if t or net is NULL. */
const struct dev_net *trace_net(struct trace *t, const struct dev_net *net);

/* ---- hooks of struct comm_options; they do nothing if t is NULL ---- */

void trace_call(struct trace *t, const char *call, const char *group, bool outside);
void trace_phase(struct trace *t, const char *phase, int micro_batch);

/* ---- the run ---- */

/* Record that iteration `iteration` begins, and that the previous one has ended. */
void trace_step(struct trace *t, int64_t iteration);
/*
 * Returns true if all iterations to be traced have ended and the trace has not been written yet. The result is the same
 * on all ranks.
 */
bool trace_is_due(const struct trace *t);
/* Begin a span of work on the host that is not recorded otherwise. Other spans inside of it are not recorded. */
void trace_host_begin(struct trace *t, enum trace_class class, const char *name);
void trace_host_end(struct trace *t);
/*
 * Write the trace to the file `path`, once trace_is_due() returns true. All ranks of `all` must call it; the first rank
 * writes the file. *n_spans receives the number of spans of all ranks. Returns -1 on error. If only the file could not
 * be written, the first rank returns -1 with ERR_SYS and *lost false, and the ranks can still communicate. After any
 * other error *lost is true and they cannot.
 */
MUST_CHECK int trace_write(struct trace *t, struct comm *all, const char *path, int64_t *n_spans, bool *lost,
                           struct err *e);

#endif
