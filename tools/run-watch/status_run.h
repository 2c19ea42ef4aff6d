/*
 * status_run.h - what train says of itself in status.json, read
 */
#ifndef SHARDKIT_RUN_WATCH_STATUS_RUN_H
#define SHARDKIT_RUN_WATCH_STATUS_RUN_H

#include <jansson.h>

#include "libcommon/base/err.h"

struct status_run {
    json_t *all;
    const char *host, *phase, *tag, *stalled, *stop_reason, *message;   /* NULL where it says null */
    double started_s, updated_s, iteration_s;   /* since 1970; <= 0: not known */
    int64_t iteration, pid;     /* -1: not known */
};

/* Read DIR/status.json. ERR_SYS, ERR_DATA; status_run_free() frees what there is. */
MUST_CHECK int status_run_read(struct status_run *s, const char *dir, struct err *e);
void status_run_free(struct status_run *s);

#endif
