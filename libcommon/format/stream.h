/*
 * stream.h - read a file from first byte to last, decompressing it if it is compressed
 *
 * The format is detected from the first bytes of the file, not from its name: gzip (RFC 1952), Zstandard (RFC 8878) or
 * xz. Other compressed formats are refused with an error that names them. Any other file is read unchanged. If a file
 * consists of several compressed pieces, their contents are joined, as by gzip(1), zstd(1) and xz(1). A truncated file
 * or a wrong checksum is an error, not an end of file. (Zstandard data may be written without a checksum; zstd(1) adds
 * one.)
 *
 * A stream needs 256 KiB of memory, plus the window of the format (up to 128 MiB for zstd --ultra).
 *
 * Threads: only one thread at a time may use a stream.
 */
#ifndef SHARDKIT_FORMAT_STREAM_H
#define SHARDKIT_FORMAT_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "libcommon/base/err.h"

struct stream;
/*
 * Open `path`; "-" means standard input. stopped(), which may be NULL, is called before every read(), even before an
 * interrupted read() is repeated. If it returns true, the operation fails with ERR_STOP. Returns NULL with ERR_SYS if
 * the file cannot be opened or read, or with ERR_DATA if its beginning is damaged or its format is refused.
 */
MUST_CHECK struct stream *stream_open(const char *path, bool (*stopped)(void), struct err *e);
void stream_close(struct stream *s);            /* accepts NULL */
/*
 * Read at most n bytes of the decompressed contents. Returns the number of bytes, or 0 at the end. Returns -1 with
 * ERR_SYS, ERR_STOP, or ERR_DATA with the offset in the compressed file.
 */
MUST_CHECK ssize_t stream_read(struct stream *s, void *buf, size_t n, struct err *e);
/*
 * Return the number of bytes that have been read from the file so far. If the file is compressed, these are compressed
 * bytes.
 */
uint64_t stream_input_bytes(const struct stream *s);
/* Return "gzip", "zstd" or "xz", or NULL if the file is not compressed. */
const char *stream_packing(const struct stream *s);

#endif
