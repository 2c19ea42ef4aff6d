/*
 * log_field.h - numbers in the lines of a training log
 */
#ifndef SHARDKIT_RUN_WATCH_LOG_FIELD_H
#define SHARDKIT_RUN_WATCH_LOG_FIELD_H

#include <stdbool.h>

/* The number behind "NAME:" in a line; false: it has no such field. Python's nan and inf are numbers here. */
bool log_field(const char *line, const char *name, double *v);

#endif
