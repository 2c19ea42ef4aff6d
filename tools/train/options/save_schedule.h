/*
 * save_schedule.h - at which iterations a run saves
 *
 * --save-interval N saves at each multiple of N. --save-schedule gives stretches of iterations an
 * interval of their own:
 *
 *   1-100:10,101-1000:18,1001-:1500        FIRST-LAST:EVERY, both ends included; no LAST: to the end
 *
 * In a stretch the multiples of EVERY are saved, counted from the start of the whole run as the
 * reference counts: 108, 126 ... 990 in 101-1000:18. What lies in no stretch keeps --save-interval.
 * An orderly exit saves besides, wherever it is; that is the loop's.
 */
#ifndef SHARDKIT_TRAIN_OPTIONS_SAVE_SCHEDULE_H
#define SHARDKIT_TRAIN_OPTIONS_SAVE_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct save_stretch {
    int64_t first, last;        /* iterations, both included; INT64_MAX: no end */
    int64_t every;
};

struct save_schedule {
    int n;
    struct save_stretch *stretch;       /* [n], ascending, apart from each other */
    int64_t rest;               /* interval of what lies in none of them; 0: nothing is saved there */
};

/*
 * Read `text` (NULL: no stretches) into *s, whose `rest` stays as it is; to be freed with
 * save_schedule_free() in any case. `option` is how the message names where the text stands. ERR_USAGE with
 * the column, counted from 1: no numbers, a stretch that ends before it begins, begins before the end of
 * the one before it, or holds no multiple of its interval.
 */
MUST_CHECK int save_schedule_parse(struct save_schedule *s, const char *text, const char *option, struct err *e);
void save_schedule_free(struct save_schedule *s);

/* Is iteration i (from 1) saved? */
bool save_schedule_due(const struct save_schedule *s, int64_t i);
/* Does it lie in one of the stretches? */
bool save_schedule_lists(const struct save_schedule *s, int64_t i);

#endif
