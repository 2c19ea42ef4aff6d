/*
 * tfevents.h - write TensorBoard event files in the format of TensorFlow and PyTorch
 *
 * A file is a sequence of records (TFRecord):
 *
 *   u64 length | u32 masked crc of it | the bytes of an Event | u32 masked crc of them
 *
 * The CRC is CRC-32C, masked as ((crc >> 15) | (crc << 17)) + 0xa282ead8. An Event is a Protocol Buffers message; the
 * first one has file_version "brain.Event:2". Scalars and text are encoded here without a Protocol Buffers library,
 * because only a few small message types are needed. Records are only appended to a file, so a copy of it made at any
 * time is readable up to its last whole record.
 *
 * Threads: any number of threads may add events and flush. A file is opened and closed by one thread.
 */
#ifndef SHARDKIT_FORMAT_TFEVENTS_H
#define SHARDKIT_FORMAT_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct tfevents;
/*
 * Create a new file DIR/events.out.tfevents.SECONDS.HOST.PID.N. DIR is created if it does not exist. Events are
 * buffered. They are written together when `queue` of them are waiting (1: every event is written at once), or when an
 * event is added at least `wait_s` seconds after the first waiting event. Returns NULL with ERR_SYS on failure.
 */
MUST_CHECK struct tfevents *tfevents_open(const char *dir, int64_t queue, double wait_s, struct err *e);
const char *tfevents_path(const struct tfevents *t);
/*
 * Add one value at `step`. As with PyTorch's writer, the tag of a text is `tag` followed by "/text_summary". If a full
 * buffer cannot be written, its events are lost, the file remains valid, and the next tfevents_flush() or
 * tfevents_close() fails. Does nothing if t is NULL.
 */
void tfevents_scalar(struct tfevents *t, const char *tag, double value, int64_t step);
void tfevents_text(struct tfevents *t, const char *tag, const char *text, int64_t step);
/* Write all waiting events. Fails with ERR_SYS if they cannot be written, or if earlier events were lost. */
MUST_CHECK int tfevents_flush(struct tfevents *t, struct err *e);
/* Write all waiting events, close the file and free t; accepts NULL. The memory is freed even on failure. */
MUST_CHECK int tfevents_close(struct tfevents *t, struct err *e);

/*
 * tfevents_crc32c() computes the CRC-32C (Castagnoli) of p[0..n), tfevents_mask() the masked form that the file stores.
 * The reader and the tests use these functions, too.
 */
uint32_t tfevents_crc32c(const void *p, size_t n);
uint32_t tfevents_mask(uint32_t crc);

#endif
