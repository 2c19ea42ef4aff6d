/*
 * stream.h - the bytes of a file from first to last, unpacked where it is compressed
 *
 * What a file is, its first bytes say, not its name: gzip (RFC 1952), Zstandard (RFC 8878), xz. Other
 * packings are refused by name; all else is read as it is. Several compressed pieces behind each other
 * are one text, as for their own programs. A file that was cut short or whose checksum fails is an
 * error, not an end (Zstandard may be written without one; zstd(1) adds it).
 * Memory: 256 KiB and what the format's window asks for (up to 128 MiB of Zstandard --ultra).
 * Threads: one at a time.
 */
#ifndef SHARDKIT_FORMAT_STREAM_H
#define SHARDKIT_FORMAT_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"

struct stream;
/*
 * Open `path`; "-" is standard input. stopped() (may be NULL) is asked when a signal came while a read
 * waited. NULL: ERR_SYS when it cannot be opened or read, ERR_DATA when its beginning is damaged.
 */
MUST_CHECK struct stream *stream_open(const char *path, bool (*stopped)(void), struct err *e);
void stream_close(struct stream *s);            /* NULL is fine */
/* The next bytes, at most n; 0 is the end. -1: ERR_SYS, ERR_STOP, or ERR_DATA with the place in the compressed file. */
MUST_CHECK ssize_t stream_read(struct stream *s, void *buf, size_t n, struct err *e);
/* Bytes of the file (compressed, if it is) that were taken so far. */
uint64_t stream_taken(const struct stream *s);
/* "gzip", "zstd", "xz", or NULL: as it is. */
const char *stream_packing(const struct stream *s);

#endif
