/*
 * status_look.h - what the verb status looks at, one thing after the other
 */
#ifndef SHARDKIT_RUN_WATCH_STATUS_LOOK_H
#define SHARDKIT_RUN_WATCH_STATUS_LOOK_H

#include "tools/run-watch/history.h"
#include "tools/run-watch/runwatch.h"
#include "tools/run-watch/status_run.h"

/* ---- status_alive.c ---- */

/* How it ended, or its heartbeat and its last iteration. */
void status_alive(struct runwatch *w, const char *dir, const struct status_run *s, const struct history *h);

/* ---- status_numbers.c ---- */

/* NaN and replicas that drifted apart; while it runs also spikes and throughput. */
void status_numbers(struct runwatch *w, const struct history *h, bool runs);

/* ---- status_saves.c ---- */

/* The last complete save's age, and copies that are due. */
void status_saves(struct runwatch *w, const char *dir, const struct status_run *s);

#endif
