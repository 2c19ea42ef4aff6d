/*
 * save_schedule.h - the iterations at which a run saves
 *
 * --save-interval N saves at each multiple of N. --save-schedule gives ranges of iterations their own interval:
 *
 *   1-100:10,101-1000:18,1001-:1500        FIRST-LAST:EVERY, both ends included; no LAST: to the end
 *
 * Within a range, the multiples of EVERY are saved. They are counted from the start of the whole run, as in the
 * reference: 108, 126 ... 990 in 101-1000:18. Iterations outside of all ranges use --save-interval. The training loop
 * additionally saves at an orderly exit, at any iteration.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_SAVE_SCHEDULE_H
#define SHARDKIT_TRAIN_OPTIONS_SAVE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct save_stretch {
    /* first and last iteration of the range, both included; last is INT64_MAX if there is no end */
    int64_t first, last;
    int64_t every;
};

struct save_schedule {
    int n;
    struct save_stretch *stretch;       /* n elements, in ascending order, not overlapping */
    int64_t rest;               /* interval for iterations outside of all ranges; 0: these iterations are not saved */
};

/*
 * Parse `text` (NULL: no ranges) into *s. Does not change s->rest. The caller must call save_schedule_free() in any
 * case. `option` is the name of the option for error messages. ERR_USAGE names the column, counted from 1. It is
 * returned if a number is missing or a range ends before it begins, begins before the end of the previous one, or
 * contains no multiple of its interval.
 */
MUST_CHECK int save_schedule_parse(struct save_schedule *s, const char *text, const char *option, struct err *e);
void save_schedule_free(struct save_schedule *s);

/* Returns true if iteration i (from 1) is to be saved. */
bool save_schedule_due(const struct save_schedule *s, int64_t i);
/* Returns true if iteration i is in one of the ranges. */
bool save_schedule_lists(const struct save_schedule *s, int64_t i);

#endif
