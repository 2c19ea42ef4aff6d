/*
 * start.h - what happens in a run before there is a model: options, the writer process, the job, the log
 */
#ifndef SHARDKIT_TRAIN_START_H
#define SHARDKIT_TRAIN_START_H

#include "tools/train/run/trainer.h"

/*
 * Parse the options, install the signal handlers and start the writer process. Returns true if the run continues.
 * Otherwise *status receives the exit status: --help and similar options were answered, or an error was reported.
 * Call it before threads, MPI and CUDA exist.
 */
bool start_process(struct trainer *t, int argc, char **argv, int *status);
/*
 * Connect to the other ranks. Returns true if the run continues. Otherwise *status receives the exit status: an error
 * was reported, or the options of some rank were refused.
 */
bool start_join(struct trainer *t, int *status);
/*
 * Check the options, and open the log and the folder of --save on rank 0. From then on failures are reported. Returns
 * 1 if the run was asked to stop; *why receives the reason. All ranks must call it.
 */
MUST_CHECK int start_log(struct trainer *t, enum status_reason *why, struct err *e);
/*
 * Check for requests to stop before the first step: the kill switch (docs/training.md 6.1), or a signal that came
 * early or while the order of samples was built. Returns 1 and sets *why if there is one. All ranks must call it.
 */
MUST_CHECK int start_check_stop(struct trainer *t, enum status_reason *why, struct err *e);

#endif
