/*
 * mapped.h - memory-mapped files with error handling for pages that cannot be read
 *
 * If a mapped file was truncated by another process, or its storage fails, reading a page raises SIGBUS instead of
 * returning an error. That would end the process without a message. mapped_use() turns the signal into an error
 * that names the file and the byte. Any number of threads may open, use and close mapped files, whether different
 * files or the same.
 */
#ifndef SHARDKIT_BASE_MAPPED_H
#define SHARDKIT_BASE_MAPPED_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct mapped {
    char *path;
    const uint8_t *p;           /* NULL for an empty file */
    uint64_t size;              /* size in bytes when the file was opened */
    uint64_t device, inode;
};

/*
 * Map a regular file read-only at its current size. Call mapped_close() even after a failure. Returns -1 with one of
 * these errors:
 *   ERR_SYS    the file cannot be opened or mapped
 *   ERR_DATA   it is not a regular file
 */
MUST_CHECK int mapped_open(struct mapped *m, const char *path, struct err *e);
void mapped_close(struct mapped *m);            /* a zeroed struct is allowed */
/*
 * Call use(arg, e), which may read mapped files, and return its result. If a page cannot be read, use() is abandoned,
 * and mapped_use() returns -1. Memory that use() has allocated is leaked then. *e names the byte and the file. It is
 * ERR_DATA if the file is shorter than when it was mapped, and ERR_SYS otherwise. A call costs a fraction of a
 * microsecond.
 */
MUST_CHECK int mapped_use(int (*use)(void *arg, struct err *e), void *arg, struct err *e);
/*
 * Check that the file is not shorter than when it was opened. Fails with ERR_DATA if it is shorter. This must be called
 * after reading, because in a truncated file the rest of the last page reads as zeros without a signal. A file that was
 * removed or replaced passes, because the mapping still has all its bytes. A call costs one stat().
 */
MUST_CHECK int mapped_check(const struct mapped *m, struct err *e);

#endif
