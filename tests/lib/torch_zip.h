/*
 * torch_zip.h - write a zip exactly as torch.save does, one byte after the other
 *
 * Readers must cope with the form in which real checkpoints come: local headers full of
 * zeros, an 'FB' extra field whose filler aligns payloads to 64 bytes, data descriptors,
 * a zip64 trailer in the smallest file. libcommon writes a simpler form, so tests make
 * torch's form here. Given the same records the bytes equal those of torch 1.13.
 *
 * Payloads are streamed: memory is one buffer whatever the size of a record, and large
 * files are written past the page cache. One thread per file.
 */
#ifndef SHARDKIT_TESTS_TORCH_ZIP_H
#define SHARDKIT_TESTS_TORCH_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct torch_zip;

/*
 * Create or replace `path`. Records are named "<prefix>/<record>". size_hint is about how
 * long the file will be; that much is allocated at once so that it is not fragmented.
 * NULL: ERR_SYS.
 */
MUST_CHECK struct torch_zip *torch_zip_create(const char *path, const char *prefix,
                                              uint64_t size_hint, struct err *e);
/* Begin a record of exactly `size` bytes; they follow through torch_zip_room() or _put(). */
MUST_CHECK int torch_zip_begin(struct torch_zip *z, const char *record, uint64_t size, struct err *e);
/* Where the record's next bytes go and how many fit there: at least 4, a multiple of 4 away
 * from the record's start if only such amounts were taken. */
void *torch_zip_room(struct torch_zip *z, size_t *n_bytes);
/* n bytes were put into the room. */
MUST_CHECK int torch_zip_wrote(struct torch_zip *z, size_t n, struct err *e);
MUST_CHECK int torch_zip_put(struct torch_zip *z, const void *bytes, size_t n, struct err *e);
/* The record is complete: its descriptor. */
MUST_CHECK int torch_zip_end(struct torch_zip *z, struct err *e);
/* A whole record at once. */
MUST_CHECK int torch_zip_record(struct torch_zip *z, const char *record,
                                const void *bytes, size_t n, struct err *e);
/* Directory and trailer, then close. */
MUST_CHECK int torch_zip_finish(struct torch_zip *z, struct err *e);
/* Always, finished or not; NULL is fine. An unfinished file is removed. */
void torch_zip_free(struct torch_zip *z);

#endif
