/*
 * show.h - what a run says, and what it is at
 */
#ifndef SHARDKIT_TRAIN_RUN_SHOW_H
#define SHARDKIT_TRAIN_RUN_SHOW_H

#include "libcommon/base/err.h"
#include "libcommon/base/report.h"

struct trainer;

/* One line from rank 0, to the log. */
void show_line(struct trainer *t, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* What the run is at now: for watchers of status.json, and for the notice of a rank that stands still. */
void show_phase(struct trainer *t, const char *phase);
/* The same in t->status alone. */
void show_present(struct trainer *t, const char *phase);
/* Print a report's notes and warnings, from rank 0. */
void show_report(struct trainer *t, struct report *r);
/* What is trained, how, and on what; t->params_no_embeds. */
void show_settings(struct trainer *t);

#endif
