/*
 * channel.h - send one message to people: by mail through sendmail, a webhook through curl, a command through sh
 */
#ifndef SHARDKIT_RUN_WATCH_CHANNEL_H
#define SHARDKIT_RUN_WATCH_CHANNEL_H

#include "tools/run-watch/runwatch.h"

enum channel_kind { CHANNEL_MAIL, CHANNEL_WEBHOOK, CHANNEL_COMMAND, CHANNEL_N };

/* Returns the address, URL or command of a channel; NULL if it was not requested. */
const char *channel_to(const struct runwatch *w, enum channel_kind kind);
/*
 * Send a message. `body` is the text, which should be one line; `subject` is used for mail only. Returns -1 with
 * ERR_SYS if the necessary program is missing (it is named), with ERR_DATA if it failed. Takes half a minute at most.
 */
MUST_CHECK int channel_send(const struct runwatch *w, enum channel_kind kind, const char *subject, const char *body,
                            struct err *e);

#endif
