/*
 * log_field.h - parse numbers in the lines of a training log
 */
#ifndef SHARDKIT_RUN_WATCH_LOG_FIELD_H
#define SHARDKIT_RUN_WATCH_LOG_FIELD_H

#include <stdbool.h>

/*
 * Parse the number after "NAME:" in a line. Returns false if the line has no such field. Python's nan and inf count
 * as numbers.
 */
bool log_field(const char *line, const char *name, double *v);

#endif
