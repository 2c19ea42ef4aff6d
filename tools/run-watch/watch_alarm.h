/*
 * watch_alarm.h - notify people of a problem: once, again after some time, and when it is over
 *
 * A channel is a mail address, a webhook or a command. The book records which finding was sent through which channel.
 * The book stays locked during sending, so that two watchers of the same thing send only once. A message that cannot
 * be sent is reported on stderr, and the next round tries again: a message may be sent twice, but is not lost.
 */
#ifndef SHARDKIT_RUN_WATCH_WATCH_ALARM_H
#define SHARDKIT_RUN_WATCH_WATCH_ALARM_H

#include "tools/run-watch/runwatch.h"

bool alarm_wanted(const struct runwatch *w);
/*
 * Send messages about the new, the lasting and the resolved findings of w's report; the book is changed and saved.
 * While any check of the same scope had no result, nothing is reported as resolved. Returns the number of messages that
 * could not be sent; each of them is reported on stderr.
 */
int alarm_send(struct runwatch *w, struct book *b);

#endif
