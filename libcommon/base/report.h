/*
 * report.h - findings about a checkpoint: more than one, each with its place
 *
 * An operation that can go on after a fault (verify, opening a damaged tag) tells a
 * report instead of failing at once. Opening without a report turns the first ERROR
 * into the err. `code` is a stable word for scripts ("crc", "missing_file", ...);
 * docs/formats.md lists them. Threads: report_add may be called by any thread.
 */
#ifndef SHARDKIT_BASE_REPORT_H
#define SHARDKIT_BASE_REPORT_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum severity { SEV_NOTE, SEV_WARNING, SEV_ERROR };

struct finding {
    enum severity severity;
    const char *code;
    char *file;                 /* NULL: the set as a whole */
    uint64_t at;                /* byte, or ERR_NO_BYTE */
    char *param;                /* NULL: no single parameter */
    char *text;                 /* what was expected, what was found */
};

struct report;
struct report *report_new(void);
void report_free(struct report *r);
void report_add(struct report *r, enum severity severity, const char *code, const char *file,
                uint64_t at, const char *param, const char *fmt, ...) PRINTF_LIKE(7, 8);
/* A failed call's err as an ERROR finding; clears the err. */
void report_add_err(struct report *r, const char *code, struct err *e);
int report_count(const struct report *r, enum severity severity);
int report_n(const struct report *r);
const struct finding *report_get(const struct report *r, int i);
/* The first ERROR as the failure: -1. 0 when there is none. */
MUST_CHECK int report_first_error(const struct report *r, struct err *e);
/* "FILE: at byte N: parameter 'x': text" into malloc'd memory; caller frees. */
char *finding_text(const struct finding *f);

#endif
