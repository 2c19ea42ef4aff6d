/*
 * tfevents.h - write TensorBoard event files in the format of TensorFlow and PyTorch
 *
 * A file is a sequence of records (TFRecord):
 *
 *   u64 length | u32 masked crc of it | the bytes of an Event | u32 masked crc of them
 *
 * The CRC is CRC-32C, masked as ((crc >> 15) | (crc << 17)) + 0xa282ead8. An Event is a Protocol Buffers
 * message; the first one has file_version "brain.Event:2". Scalars and text are encoded by hand, because only
 * four small message types are needed. Files are only appended to, so a copy made at any moment is readable up
 * to its last whole record.
 *
 * Threads: any, except for opening and closing.
 */
#ifndef SHARDKIT_FORMAT_TFEVENTS_H
#define SHARDKIT_FORMAT_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct tfevents;
/*
 * Create a new file DIR/events.out.tfevents.SECONDS.HOST.PID.N. DIR is created if it is missing. Events are
 * buffered and written together once `queue` of them are waiting (1: every event is written at once), or when an
 * event arrives `wait_s` or more seconds after the first waiting one. Returns NULL with ERR_SYS on failure.
 */
MUST_CHECK struct tfevents *tfevents_open(const char *dir, int64_t queue, double wait_s, struct err *e);
const char *tfevents_path(const struct tfevents *t);
/*
 * Add one value at `step`. Text appears under the tag + "/text_summary", as with PyTorch's writer. If a full queue
 * cannot be written, its events are lost, the file stays valid, and the next tfevents_flush() or tfevents_close()
 * fails. Does nothing if t is NULL.
 */
void tfevents_scalar(struct tfevents *t, const char *tag, double value, int64_t step);
void tfevents_text(struct tfevents *t, const char *tag, const char *text, int64_t step);
/* Write the waiting events. Fails with ERR_SYS if they cannot be written or if earlier events were lost. */
MUST_CHECK int tfevents_flush(struct tfevents *t, struct err *e);
/* Flush, close and free; accepts NULL. The memory is freed even on failure. */
MUST_CHECK int tfevents_close(struct tfevents *t, struct err *e);

/*
 * Compute the CRC-32C (Castagnoli) of p[0..n), and the masked form that the file stores. The reader and the tests
 * use these functions too.
 */
uint32_t tfevents_crc32c(const void *p, size_t n);
uint32_t tfevents_mask(uint32_t crc);

#endif
