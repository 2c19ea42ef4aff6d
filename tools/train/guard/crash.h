/*
 * crash.h - handle fatal signals: write the stacks of this process and inform rank 0
 *
 * The signals are SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT. The thread that receives one calls report_stacks(),
 * informs the watch and stays in its handler. The watch (watch.h) then ends the job, with a report and the exit status
 * of a crash. If core files are enabled (ulimit -c), the process dies of the signal instead.
 */
#ifndef SHARDKIT_TRAIN_GUARD_CRASH_H
#define SHARDKIT_TRAIN_GUARD_CRASH_H

#include "libcommon/comm/watch.h"
#include "tools/train/guard/incident_report.h"

/*
 * Install the signal handlers. They are active until crash_release() is called, and *r and *w must stay valid until
 * then. Does nothing if the program was compiled with sanitizers, because their own reports have more detail. Must be
 * called by the main thread.
 */
void crash_catch(const struct report_run *r, struct watch *w);
void crash_release(void);
/* The on_leave callback of comm.h. If this process has crashed and core files are enabled, write the core file now. */
void crash_leave_core(void);

#endif
