/*
 * torch_zip.h - write a zip exactly as torch.save does, sequentially
 *
 * Readers must accept the form of real checkpoints: local headers full of zeros, an 'FB' extra field whose filler
 * aligns payloads to 64 bytes, data descriptors, and a zip64 trailer even in the smallest file. libcommon writes a
 * simpler form, so tests make torch's form here. Given the same records, the bytes equal those of torch 1.13.
 *
 * Payloads are streamed: memory use is one buffer whatever the size of a record, and large files bypass the page
 * cache. Use one thread per file.
 */
#ifndef SHARDKIT_TESTS_TORCH_ZIP_H
#define SHARDKIT_TESTS_TORCH_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct torch_zip;

/*
 * Create or replace `path`. Records are named "<prefix>/<record>". size_hint is the approximate length of the file;
 * that much is allocated at once to avoid fragmentation. Returns NULL and ERR_SYS on failure.
 */
MUST_CHECK struct torch_zip *torch_zip_create(const char *path, const char *prefix,
                                              uint64_t size_hint, struct err *e);
/* Begin a record of exactly `size` bytes. They follow through torch_zip_room() or torch_zip_put(). */
MUST_CHECK int torch_zip_begin(struct torch_zip *z, const char *record, uint64_t size, struct err *e);
/* Return the place for the next bytes of the record and the number that fits there: at least 4, and a multiple of 4
 * away from the record's start if all earlier amounts were multiples of 4. */
void *torch_zip_room(struct torch_zip *z, size_t *n_bytes);
/* Record that n bytes were written to that place. */
MUST_CHECK int torch_zip_wrote(struct torch_zip *z, size_t n, struct err *e);
MUST_CHECK int torch_zip_put(struct torch_zip *z, const void *bytes, size_t n, struct err *e);
/* Complete the record and write its descriptor. */
MUST_CHECK int torch_zip_end(struct torch_zip *z, struct err *e);
/* Write a whole record with one call. */
MUST_CHECK int torch_zip_record(struct torch_zip *z, const char *record,
                                const void *bytes, size_t n, struct err *e);
/* Write the directory and the trailer, then close the file. */
MUST_CHECK int torch_zip_finish(struct torch_zip *z, struct err *e);
/* Free the writer, finished or not. NULL is allowed. An unfinished file is removed. */
void torch_zip_free(struct torch_zip *z);

#endif
