/*
 * tfevents.h - TensorBoard event files, written as the real ones are
 *
 * A file is a row of records (TFRecord):
 *   u64 length | u32 masked crc of it | the bytes of an Event | u32 masked crc of them
 * The CRC is CRC-32C, masked as ((crc >> 15) | (crc << 17)) + 0xa282ead8. An Event is a
 * Protocol Buffers message; the first one says file_version "brain.Event:2". Scalars and text
 * are encoded here by hand: four message types, all of them small.
 * Files are only appended to, so a copy taken at any moment is readable up to its last
 * whole record. Threads: any but for opening and closing.
 */
#ifndef SHARDKIT_FORMAT_TFEVENTS_H
#define SHARDKIT_FORMAT_TFEVENTS_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct tfevents;
/*
 * A new file DIR/events.out.tfevents.SECONDS.HOST.PID.N; DIR is made when missing. Events are
 * kept until `queue` of them wait (1: none waits), or one comes `wait_s` after the first of them; then all are
 * written at once. ERR_SYS.
 */
MUST_CHECK struct tfevents *tfevents_open(const char *dir, int64_t queue, double wait_s, struct err *e);
const char *tfevents_path(const struct tfevents *t);
/*
 * One value at `step`. Text is shown under the tag + "/text_summary", as PyTorch's writer has it.
 * When a full queue cannot be written its events are lost, the file stays sound, and the next
 * tfevents_flush() or tfevents_close() fails. t NULL: nothing happens.
 */
void tfevents_scalar(struct tfevents *t, const char *tag, double value, int64_t step);
void tfevents_text(struct tfevents *t, const char *tag, const char *text, int64_t step);
/* Write what waits. ERR_SYS, for this or an earlier loss. */
MUST_CHECK int tfevents_flush(struct tfevents *t, struct err *e);
/* Flush and free (NULL is fine); freed even when it fails. */
MUST_CHECK int tfevents_close(struct tfevents *t, struct err *e);

/* CRC-32C (Castagnoli) of p[0..n), and its mask: the file's, here for readers and tests. */
uint32_t tfevents_crc32c(const void *p, size_t n);
uint32_t tfevents_mask(uint32_t crc);

#endif
