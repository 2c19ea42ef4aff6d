/*
 * status_run.h - the contents of train's status.json
 */
#ifndef SHARDKIT_RUN_WATCH_STATUS_RUN_H
#define SHARDKIT_RUN_WATCH_STATUS_RUN_H

#include <jansson.h>

#include "libcommon/base/err.h"

struct status_run {
    json_t *all;
    const char *host, *phase, *tag, *stalled, *stop_reason, *message;   /* NULL if null in the file */
    double started_s, updated_s, iteration_s;   /* in seconds since 1970; <= 0: unknown */
    int64_t iteration, pid;     /* -1: unknown */
};

/* Read DIR/status.json. Fails with ERR_SYS or ERR_DATA; status_run_free() must be called in any case. */
MUST_CHECK int status_run_read(struct status_run *s, const char *dir, struct err *e);
void status_run_free(struct status_run *s);

#endif
