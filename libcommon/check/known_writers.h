/*
 * known_writers.h - name the program that is known to write a checkpoint with the faults that verify has found
 *
 * Some releases of training software write a checkpoint that is wrong and report success. docs/broken-writers.md lists
 * the ones that are known, with the versions, what is wrong, and what can be saved. If the findings and the names of
 * the tensors fit one of them, a note names it and the next step.
 */
#ifndef SHARDKIT_CHECK_KNOWN_WRITERS_H
#define SHARDKIT_CHECK_KNOWN_WRITERS_H

#include "libcommon/base/report.h"

struct source;

#define KNOWN_WRITER "known_writer"     /* code of the note */

/* Add a note "known_writer" for each known fault that the source and the errors in the report fit. */
void known_writers_report(const struct source *s, struct report *r);

#endif
