/*
 * mapped.h - a file in memory, whose pages may one day not come
 *
 * Reading a page of a mapped file that somebody has cut short, or whose storage fails, is no error that a
 * call returns but a signal, SIGBUS, which would end the process without a word. mapped_use() makes
 * it an error again that names file and byte.
 * Threads: any number of threads may open, use and close, each its own files or the same.
 */
#ifndef SHARDKIT_BASE_MAPPED_H
#define SHARDKIT_BASE_MAPPED_H

#include <stdint.h>

#include "libcommon/base/err.h"

struct mapped {
    char *path;
    const uint8_t *p;           /* NULL: an empty file */
    uint64_t size;              /* bytes, when it was opened */
    uint64_t device, inode;
};

/*
 * Map a regular file, read only, at its present size. On -1, too, mapped_close() frees what there is.
 *   ERR_SYS   it cannot be opened or mapped      ERR_DATA   it is no regular file
 */
MUST_CHECK int mapped_open(struct mapped *m, const char *path, struct err *e);
void mapped_close(struct mapped *m);            /* a zeroed one is fine */
/*
 * Run use(arg, e), which reads mapped files; its answer. When a page does not come, use() is left where it is (what it
 * has allocated is lost), and -1 returned, with *e saying which byte of which file: ERR_DATA when the file
 * is shorter now, else ERR_SYS. Costs a fraction of a microsecond.
 */
MUST_CHECK int mapped_use(int (*use)(void *arg, struct err *e), void *arg, struct err *e);
/*
 * Is it as long as it was? Behind a new end the rest of the page reads as zeros, without a signal: to be asked after
 * reading. ERR_DATA. A file that was removed or replaced under its name is still whole in memory. Costs a stat().
 */
MUST_CHECK int mapped_check(const struct mapped *m, struct err *e);

#endif
