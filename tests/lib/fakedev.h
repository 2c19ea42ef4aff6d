/*
 * fakedev.h - a device without hardware: streams that really run beside the host, and links between them
 *
 * "Device memory" is this process's memory. A stream is a thread that does what is queued in it,
 * one thing after the other; events are as in dev.h. Links work over memory that the ranks
 * share, made before they fork; members stand in their stream until all have come, as
 * with NCCL. Members that call different things of a link end the process with words.
 */
#ifndef SHARDKIT_TESTS_FAKEDEV_H
#define SHARDKIT_TESTS_FAKEDEV_H

#include <stddef.h>

#include "libcommon/base/dev_net.h"

enum { FAKE_MEMBERS = 8 };

struct fakenet;
struct fakenet *fakenet_new(void);      /* before the fork; goes with the processes */
/* The same for processes that did not fork from one: a file, which is made where there is none. */
struct fakenet *fakenet_at(const char *path);
/*
 * prompt: what is queued in the NULL stream is done when the call returns, for code that looks
 * at results at once; else that stream is like the others. One a process.
 */
const struct dev_net *fakenet_open(struct fakenet *n, bool prompt);
extern const struct dev_ops fakedev;

/* Work that takes this long, in a stream. */
void fakedev_delay(struct dev_stream *s, int ms);
/* Work of the caller's own, in a stream; the n bytes at args are copied. */
void fakedev_call(struct dev_stream *s, void (*call)(void *args), const void *args, size_t n);
/* What check() of the device, or of the net, tells once from now on; of this process alone. */
void fakedev_fail(const char *text);
void fakenet_fail(const char *text);
/* The next call of a link is refused with `text`. */
void fakenet_refuse(const char *text);
/* Whether offer() and share() of this process say yes (they do not, at first); has share() been undone, or not? */
void fakenet_can_share(bool offer, bool share);
bool fakenet_shares(void);
/* `sms` of the link that was opened last. */
int fakenet_last_sms(void);

#endif
