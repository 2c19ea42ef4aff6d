/*
 * watch_alarm.h - notify people of a problem: once, again after some time, and when it is over
 *
 * A channel is a mail address, a webhook or a command. The book records which finding was sent through which channel.
 * The book stays locked during sending, so that two watchers of the same thing send only once. A message that cannot be
 * sent is reported on stderr, and the next round tries to send it again. A message may thus be sent twice, but is never
 * lost.
 */
#ifndef SHARDKIT_RUN_WATCH_WATCH_ALARM_H
#define SHARDKIT_RUN_WATCH_WATCH_ALARM_H

#include "tools/run-watch/runwatch.h"

bool alarm_wanted(const struct runwatch *w);
/*
 * Send messages about the findings of w's report that are new, that have lasted for some time, or that are resolved.
 * The book is changed and saved. If any check of the same scope had no result, no finding is reported as resolved.
 * Returns the number of messages that could not be sent; each of them is reported on stderr.
 */
int alarm_send(struct runwatch *w, struct book *b);

#endif
