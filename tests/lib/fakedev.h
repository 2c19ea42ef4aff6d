/*
 * fakedev.h - a device without hardware: streams that run concurrently with the host, and links between them
 *
 * "Device memory" is the memory of this process. A stream is a thread that runs the operations queued in it one
 * after another; events are as in dev.h. Links work over memory that the ranks share and that is created before
 * they fork. As with NCCL, a member waits in its stream until all members have arrived. If members call different
 * operations of a link, the process prints a message and exits.
 */
#ifndef SHARDKIT_TESTS_FAKEDEV_H
#define SHARDKIT_TESTS_FAKEDEV_H

#include <stddef.h>

#include "libcommon/base/dev_net.h"

enum { FAKE_MEMBERS = 8 };

struct fakenet;
struct fakenet *fakenet_new(void);      /* call before the fork; released when the processes exit */
/* Create the same for processes without a common fork, in a file, which is created if it is missing. */
struct fakenet *fakenet_at(const char *path);
/*
 * Open the net, at most once per process. If prompt is set, operations queued in the NULL stream are complete when
 * the call returns, for code that reads results at once. Otherwise that stream is like the others.
 */
const struct dev_net *fakenet_open(struct fakenet *n, bool prompt);
extern const struct dev_ops fakedev;

/* Queue work that takes `ms` milliseconds. */
void fakedev_delay(struct dev_stream *s, int ms);
/* Queue a call of the caller's function. The n bytes at args are copied. */
void fakedev_call(struct dev_stream *s, void (*call)(void *args), const void *args, size_t n);
/* Make check() of the device, or of the net, report `text` once. Affects this process only. */
void fakedev_fail(const char *text);
void fakenet_fail(const char *text);
/* Make the next call of a link fail with `text`. */
void fakenet_refuse(const char *text);
/* Set whether offer() and share() of this process succeed (both fail at first), and return whether sharing is
 * active. */
void fakenet_can_share(bool offer, bool share);
bool fakenet_shares(void);
/* Return `sms` of the link that was opened last. */
int fakenet_last_sms(void);

#endif
