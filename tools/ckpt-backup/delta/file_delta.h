/*
 * file_delta.h - the files of a folder as differences from files of the same names in another folder, in one file
 *
 * The file begins with a table: for each file its size, and the size and the CRC-32 of the file of the base. It is
 * followed by frames. A frame has at most 1 MiB of a file: the exclusive-or with the bytes at the same offset in the
 * base, as far as the base has them, split into byte planes and compressed (format/pack/planes.h). Reading needs the
 * base, and every byte of the base, the delta and the result is compared with a CRC-32. Any files can be stored; how
 * alike they are affects only the size. See docs/formats.md, section 10.1. Memory: a few MiB. Threads: one.
 */
#ifndef SHARDKIT_CKPT_BACKUP_FILE_DELTA_H
#define SHARDKIT_CKPT_BACKUP_FILE_DELTA_H

#include <stdbool.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/base/progress.h"

struct delta_file {
    const char *name;           /* path inside both folders */
    uint64_t size_bytes;
    uint32_t crc;
    bool has_base;              /* the base has a file of this name */
    uint64_t base_bytes;
    uint32_t base_crc;
};

struct file_delta {
    const char *path;           /* of the file with the differences */
    const char *base;           /* folder of the base */
    const char *folder;         /* folder of the files; delta_read() writes nothing if it is NULL */
    int n;
    struct delta_file *file;
    uint64_t size_bytes;        /* size and CRC-32 of the file with the differences; delta_write() sets them */
    uint32_t crc;
    struct progress *progress;
    bool (*stopped)(void);
};

/*
 * Write the differences of the files in d->folder from those in d->base to d->path, and sync it. All members of the
 * files must be set. Returns -1 with ERR_DATA if a file of either folder has another size or CRC-32.
 */
MUST_CHECK int delta_write(struct file_delta *d, struct err *e);
/*
 * Read the differences and the base from the disk, and restore the files in d->folder, which must exist with their
 * final lengths. The sizes and CRCs of the files and of the delta must be set; those of the base are in the delta.
 * Returns -1 with ERR_DATA if the delta, the base or a result has another size or CRC-32.
 */
MUST_CHECK int delta_read(struct file_delta *d, struct err *e);

#endif
