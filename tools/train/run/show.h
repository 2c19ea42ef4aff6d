/*
 * show.h - print information about a run, and publish its current phase
 */
#ifndef SHARDKIT_TRAIN_RUN_SHOW_H
#define SHARDKIT_TRAIN_RUN_SHOW_H

#include "libcommon/base/err.h"
#include "libcommon/base/report.h"

struct trainer;

/* Write one line to the log, on rank 0. */
void show_line(struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Set the current phase of the run, for readers of status.json and for messages about a rank that makes no progress. */
void show_phase(struct trainer *t, const char *phase);
/* Set the phase only in t->status. */
void show_present(struct trainer *t, const char *phase);
/* Print the notes and warnings of a report, on rank 0. */
void show_report(struct trainer *t, struct report *r);
/* Print the model, the training settings and the devices. Sets t->params_no_embeds. */
void show_settings(struct trainer *t);

#endif
