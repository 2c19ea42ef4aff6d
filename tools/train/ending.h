/*
 * ending.h - the end of a run: the final report, the final status, and the release of what the run holds
 */
#ifndef SHARDKIT_TRAIN_ENDING_H
#define SHARDKIT_TRAIN_ENDING_H

#include "libcommon/comm/watch.h"
#include "tools/train/run/trainer.h"

/* Print the reason *e of a failure. Returns the exit status that belongs to the failure. */
int ending_report_failure(const struct trainer *t, const struct err *e);
/*
 * Leave the job and free everything but the options. rc is the result of the run. If rc is negative, *e is the error;
 * otherwise `why` is the reason why the run ended. Returns the exit status. If only this rank has seen the failure, the
 * function aborts the job and does not return.
 */
int ending_leave(struct trainer *t, int rc, enum status_reason why, const struct err *e);

/*
 * Callbacks of the watch (comm.h). `trainer` is the struct trainer. They may run in the watch's thread while the main
 * thread is blocked.
 */
void ending_on_abort(void *trainer, const struct watch_end *end);
void ending_on_left(void *trainer);
/* Record in the status that the job makes no progress, for the reason `text`. NULL: record that the job continues. */
void ending_on_stall(void *trainer, const char *text);

#endif
