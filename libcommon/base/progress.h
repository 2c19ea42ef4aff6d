/*
 * progress.h - one line on stderr that says how far a run is
 *
 * Redrawn five times a second on a terminal, a plain line a minute in a log file, and
 * silent when told so. Carries bytes, rate and time left.
 */
#ifndef SHARDKIT_BASE_PROGRESS_H
#define SHARDKIT_BASE_PROGRESS_H

#include <stdint.h>

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

struct progress;
/* `what` ("convert") is shown in front; total in bytes. */
struct progress *progress_new(const char *what, uint64_t total_bytes, enum progress_mode mode);
void progress_add(struct progress *p, uint64_t bytes);      /* any thread; NULL is fine */
void progress_end(struct progress *p);                      /* wipes the line, frees; NULL is fine */
/* "12.3 GB" into buf; decimal units, as disks and the BLOOM papers count. */
const char *bytes_text(uint64_t bytes, char buf[16]);

#endif
