/*
 * status_inspect.h - the checks of the verb status
 */
#ifndef SHARDKIT_RUN_WATCH_STATUS_INSPECT_H
#define SHARDKIT_RUN_WATCH_STATUS_INSPECT_H

#include "tools/run-watch/history.h"
#include "tools/run-watch/runwatch.h"
#include "tools/run-watch/status_run.h"

/* ---- status_alive.c ---- */

/* Check how the run ended or, if it is active, the age of its heartbeat and of its last iteration. */
void status_alive(struct runwatch *w, const char *dir, const struct status_run *s, const struct history *h);

/* ---- status_numbers.c ---- */

/*
 * Check the history for losses that are not a number, and for replicas that differ. If the run is active, also check it
 * for loss spikes and low throughput.
 */
void status_numbers(struct runwatch *w, const struct history *h, bool runs);

/* ---- status_saves.c ---- */

/* Check the age of the last complete save, and whether copies of checkpoints are overdue. */
void status_saves(struct runwatch *w, const char *dir, const struct status_run *s);

#endif
