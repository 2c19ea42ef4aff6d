/*
 * alarm.h - people are told: once, again after a while, and when it is over
 *
 * A channel is a mail address, a webhook or a command. What was told of which finding through which channel stands in
 * the book; the book stays locked while something is sent, so that two watchers of one thing tell it once. What cannot
 * be sent is said, and tried again by the next round: better twice than not at all.
 */
#ifndef SHARDKIT_RUN_WATCH_ALARM_H
#define SHARDKIT_RUN_WATCH_ALARM_H

#include "tools/run-watch/runwatch.h"

bool alarm_wanted(const struct runwatch *w);
/*
 * Tell of what is new in w's report, what lasts, and what is over; the book is changed and saved. While something of
 * the same scope could not be established nothing is said to be over. How many could not be sent, each said on stderr.
 */
int alarm_tell(struct runwatch *w, struct book *b);

#endif
