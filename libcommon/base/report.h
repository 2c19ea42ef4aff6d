/*
 * report.h - a list of findings about a checkpoint, each with its location
 *
 * An operation that can continue after a fault (verify, opening a damaged checkpoint) adds a finding to a report
 * instead of failing at once. If a checkpoint is opened without a report, the first ERROR is returned as the error of
 * the call. `code` is a stable word for scripts ("crc", "missing_file", ...); docs/formats.md lists them. report_add()
 * may be called by any thread.
 */
#ifndef SHARDKIT_BASE_REPORT_H
#define SHARDKIT_BASE_REPORT_H

#include <stdint.h>

#include "libcommon/base/err.h"

enum severity { SEV_NOTE, SEV_WARNING, SEV_ERROR };

struct finding {
    enum severity severity;
    const char *code;
    char *file;                 /* NULL: the finding is about the whole checkpoint */
    uint64_t at;                /* offset in bytes, or ERR_NO_BYTE */
    char *param;                /* NULL: the finding is not about a single parameter */
    char *text;                 /* what was expected and what was found */
};

struct report;
struct report *report_new(void);
void report_free(struct report *r);
void report_add(struct report *r, enum severity severity, const char *code, const char *file,
                uint64_t at, const char *param, const char *fmt, ...) PRINTF_LIKE(7, 8);
/* Add the error of a failed call as an ERROR finding, and clear *e. */
void report_add_err(struct report *r, const char *code, struct err *e);
/*
 * Add an error about a file that may be lost (source_opts.holes), and clear the error. If the file is missing or its
 * contents are damaged, the finding is a WARNING "unreadable". If the system refuses to read a file that exists, for
 * example because of permissions or a disk error, the contents are unknown, and the finding is an ERROR.
 */
void report_add_lost(struct report *r, const char *param, struct err *e);
int report_count(const struct report *r, enum severity severity);
int report_n(const struct report *r);
/* Returns true if a finding has this code, file and offset. */
bool report_has(const struct report *r, const char *code, const char *file, uint64_t at);
/* Returns true if a finding has this code. */
bool report_has_code(const struct report *r, const char *code);
const struct finding *report_get(const struct report *r, int i);
/* If the report has an ERROR, store the first one in *e and return -1. Otherwise return 0. */
MUST_CHECK int report_first_error(const struct report *r, struct err *e);
/*
 * Returns "FILE: at byte N: parameter x: text" in malloc'd memory, which the caller frees. Parts that do not apply
 * are omitted.
 */
char *finding_text(const struct finding *f);

#endif
