/*
 * stream.h - read a file from first byte to last, decompressing it if it is compressed
 *
 * The first bytes of a file select its format, not its name: gzip (RFC 1952), Zstandard (RFC 8878) or xz. Other
 * compressed formats are refused with an error that names them. Any other file is read unchanged. Several
 * compressed pieces in sequence form one text, as they do for gzip(1), zstd(1) and xz(1). A truncated file or a
 * wrong checksum is an error, not an end of file. (Zstandard data may be written without a checksum; zstd(1)
 * adds one.)
 *
 * Memory: 256 KiB plus the window of the format (up to 128 MiB for zstd --ultra).
 *
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
 * Open `path`; "-" means standard input. stopped(), which may be NULL, is called before every read(), also before
 * the retry of an interrupted one. If it returns true, the operation fails with ERR_STOP. Returns NULL with ERR_SYS
 * if the file cannot be opened or read, or with ERR_DATA if its beginning is damaged or its format is refused.
 */
MUST_CHECK struct stream *stream_open(const char *path, bool (*stopped)(void), struct err *e);
void stream_close(struct stream *s);            /* accepts NULL */
/*
 * Read at most n bytes of the text. Returns their number, 0 at the end, or -1 with ERR_SYS, ERR_STOP, or ERR_DATA
 * with the offset in the compressed file.
 */
MUST_CHECK ssize_t stream_read(struct stream *s, void *buf, size_t n, struct err *e);
/* Return the number of bytes read from the file so far (compressed bytes, if the file is compressed). */
uint64_t stream_input_bytes(const struct stream *s);
/* Return "gzip", "zstd" or "xz", or NULL if the file is not compressed. */
const char *stream_packing(const struct stream *s);

#endif
