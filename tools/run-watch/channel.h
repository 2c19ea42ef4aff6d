/*
 * channel.h - one message to people: by mail through sendmail, a webhook through curl, a command through sh
 */
#ifndef SHARDKIT_RUN_WATCH_CHANNEL_H
#define SHARDKIT_RUN_WATCH_CHANNEL_H

#include "tools/run-watch/runwatch.h"

enum channel_kind { CHANNEL_MAIL, CHANNEL_WEBHOOK, CHANNEL_COMMAND, CHANNEL_N };

/* Its address, URL or command; NULL: not asked for. */
const char *channel_to(const struct runwatch *w, enum channel_kind kind);
/*
 * Send one line of text; `subject` and `body` are a mail's. -1: ERR_SYS when the program that is needed is missing
 * (named), ERR_DATA when it failed. Takes half a minute at most.
 */
MUST_CHECK int channel_send(const struct runwatch *w, enum channel_kind kind, const char *subject, const char *body,
                            struct err *e);

#endif
