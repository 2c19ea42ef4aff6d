/*
 * trace.h - what a rank does in a few steps, span by span (--trace)
 *
 * Kernels, exchanges between devices and copies are caught where the run calls them: a traced struct kernels has the
 * same functions, each with a note before and behind. Calls of comm.h, reads of data and phases are told by comm's
 * hooks. Outside of the steps asked for a note costs a comparison; without --trace there is none, and the run has the
 * kernels themselves.
 *
 * On the CPU a span is the time of the call. On a GPU it is that between two timers in the call's stream, so it begins
 * when the stream comes to it, not when the host queued it; the host has a track of its own.
 *
 * What comes out is a file in the trace event format of Chrome, which Perfetto opens: a process for each rank, in it
 * the tracks "steps", "phases", "host" and one for each stream. In "host" and the streams what is not known otherwise
 * is a span "other", so that the spans of a step add up to it. Hosts' clocks are believed: ranks of hosts whose clocks
 * differ are shifted by as much.
 * Threads: notes of others than the one that made the trace are left out.
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
/* Of iterations first to last, both included. One a process. */
struct trace *trace_new(int64_t first, int64_t last);
void trace_free(struct trace *t);               /* NULL is fine; what was traced is closed by then */

/* The same that notes what is called; t NULL: itself. Lives as long as the trace; closing it closes k. */
const struct kernels *trace_kernels(struct trace *t, const struct kernels *k);
/* The same of what carries messages between devices. net NULL: NULL. */
const struct dev_net *trace_net(struct trace *t, const struct dev_net *net);

/* ---- hooks of struct comm_options; t NULL: nothing ---- */

void trace_call(struct trace *t, const char *call, const char *group, bool outside);
void trace_phase(struct trace *t, const char *phase, int micro_batch);

/* ---- the run ---- */

/* An iteration begins, and the one before has ended. */
void trace_step(struct trace *t, int64_t iteration);
/* Have all steps that were asked for ended, and nothing been written so far? The same on all ranks. */
bool trace_is_due(const struct trace *t);
/* Something of the host that nothing else notes; what is noted inside of it is left out. */
void trace_host_begin(struct trace *t, enum trace_class class, const char *name);
void trace_host_end(struct trace *t);
/*
 * Write what there is to `path`, once it is due; all ranks of `all` call it, the first one writes. *n_spans: of all of
 * them. ERR_SYS: the file cannot be written, on the first rank only, and ranks can talk
 * to each other still (*lost false); else they cannot.
 */
MUST_CHECK int trace_write(struct trace *t, struct comm *all, const char *path, int64_t *n_spans, bool *lost,
                           struct err *e);

#endif
