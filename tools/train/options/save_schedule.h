/*
 * save_schedule.h - the iterations at which a run saves
 *
 * --save-interval N saves at each multiple of N. --save-schedule gives ranges of iterations intervals of their own. A
 * range is written FIRST-LAST:EVERY. Both ends are included; if LAST is missing, the range has no end:
 *
 *   1-100:10,101-1000:18,1001-:1500
 *
 * Within a range, the run saves at the multiples of EVERY. These are counted from the start of the whole run, as in the
 * reference: 108, 126 ... 990 in 101-1000:18. Outside of all ranges, --save-interval applies. In addition, the training
 * loop saves before an orderly exit, whatever the iteration is.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_SAVE_SCHEDULE_H
#define SHARDKIT_TRAIN_OPTIONS_SAVE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct save_stretch {
    /* first and last iteration of the range, both included. `last` is INT64_MAX if the range has no end. */
    int64_t first, last;
    int64_t every;
};

struct save_schedule {
    int n;
    struct save_stretch *stretch;       /* n ranges in ascending order, which do not overlap */
    int64_t rest;               /* interval outside of all ranges; 0: no iteration outside of them is saved */
};

/*
 * Parse `text` into the ranges of *s; NULL means that there are no ranges. s->rest is not changed. The caller must call
 * save_schedule_free() in any case. `option` is the name of the option for error messages. Fails with ERR_USAGE, naming
 * the column (counted from 1), if a number is missing or a range is invalid. A range is invalid if it ends before it
 * begins, begins before the end of the previous range, or contains no multiple of its interval.
 */
MUST_CHECK int save_schedule_parse(struct save_schedule *s, const char *text, const char *option, struct err *e);
void save_schedule_free(struct save_schedule *s);

/* Returns true if iteration i is to be saved. Iterations count from 1. */
bool save_schedule_due(const struct save_schedule *s, int64_t i);
/* Returns true if a range contains iteration i. */
bool save_schedule_lists(const struct save_schedule *s, int64_t i);

#endif
