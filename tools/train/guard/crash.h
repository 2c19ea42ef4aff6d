/*
 * crash.h - signals that the program cannot survive: its stacks are written, and rank 0 hears of it
 *
 * SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT. The thread that got one writes report_stacks(), tells the watch and stays
 * in its handler, so the job ends as the watch ends it: with a report, and the exit status of a crash. Where core files
 * are asked for (ulimit -c) it dies of the signal instead.
 */
#ifndef SHARDKIT_TRAIN_GUARD_CRASH_H
#define SHARDKIT_TRAIN_GUARD_CRASH_H

#include "libcommon/comm/watch.h"
#include "tools/train/guard/report.h"

/* From now on until crash_release(); both stay until then. Nothing under sanitizers, who know more. The main thread. */
void crash_catch(const struct report_run *r, struct watch *w);
void crash_release(void);
/* on_leave of comm.h: has this process crashed, its core file is made now. */
void crash_leave_core(void);

#endif
