/*
 * start.h - what happens in a run before there is a model: options, the writer process, the job, the log
 */
#ifndef SHARDKIT_TRAIN_START_H
#define SHARDKIT_TRAIN_START_H

#include "tools/train/run/trainer.h"

/*
 * Parse the options, install the signal handlers and start the writer process. Returns true if the run continues.
 * Returns false if the process must exit with *status, because --help or a similar option was given, or an error was
 * reported. Must be called before threads, MPI and CUDA are started.
 */
bool start_process(struct trainer *t, int argc, char **argv, int *status);
/*
 * Connect to the other ranks. Returns true if the run continues. Returns false if the process must exit with *status,
 * because an error was reported, or because the options of some rank were refused.
 */
bool start_join(struct trainer *t, int *status);
/*
 * Check the options, and open the log and the folder of --save on rank 0. From then on failures are written to reports.
 * Returns 1 if the run was requested to stop; *why receives the reason. All ranks must call it.
 */
MUST_CHECK int start_log(struct trainer *t, enum status_reason *why, struct err *e);
/*
 * Check whether the run was requested to stop before its first step: by the kill switch (docs/training.md 6.1), or by a
 * signal that arrived early or while the order of samples was being built. If so, returns 1 and sets *why. All ranks
 * must call it.
 */
MUST_CHECK int start_check_stop(struct trainer *t, enum status_reason *why, struct err *e);

#endif
