/*
 * progress.h - one line on stderr that shows the progress of a run
 *
 * On a terminal the line is redrawn five times a second. In a log file a new line is printed every minute.
 * PROGRESS_NEVER prints nothing. The line shows bytes, rate and time left.
 */
#ifndef SHARDKIT_BASE_PROGRESS_H
#define SHARDKIT_BASE_PROGRESS_H

#include <stdint.h>

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

struct progress;
/* Create a progress line, which begins with `what` ("convert"). The run is complete after total_bytes bytes. */
struct progress *progress_new(const char *what, uint64_t total_bytes, enum progress_mode mode);
void progress_add(struct progress *p, uint64_t bytes);      /* from any thread; NULL is allowed */
void progress_end(struct progress *p);                      /* erases the line and frees p; NULL is allowed */
/*
 * Format a number of bytes as "12.3 GB" in buf, and return buf. Units are decimal, as for disks and in the BLOOM
 * papers.
 */
const char *bytes_text(uint64_t bytes, char buf[16]);

#endif
