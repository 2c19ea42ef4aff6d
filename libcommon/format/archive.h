/*
 * archive.h - tar archives, compressed tar archives, and compressed records of a zip
 *
 * libarchive reads them. Members of an uncompressed tar are used in place, as a window of the tar. Compressed
 * data is decompressed once into an unlinked spool file in $TMPDIR, after a check of the free space there. The
 * kernel frees the spool file when the process ends.
 */
#ifndef SHARDKIT_FORMAT_ARCHIVE_H
#define SHARDKIT_FORMAT_ARCHIVE_H

#include "libcommon/base/files.h"

struct archive_member {
    char *name;                 /* path inside the archive, without a leading "./" */
    int file;                   /* number of the member in struct files */
};

/*
 * Returns true if the path is a regular file that begins like a tar, plain or compressed (gz, zstd, xz, bz2, lz4).
 * A zip does not count.
 */
bool archive_is_tar(const char *path);
/*
 * Add every regular member of the archive to `f` as a file. Returns the number of members and their list, which
 * the caller frees with archive_list_free(), or -1. Absolute names, "..", links and duplicate names are refused
 * with ERR_DATA.
 */
MUST_CHECK int archive_list(struct files *f, const char *path, struct archive_member **out, struct err *e);
/*
 * Pass this pointer itself as `path` to read the archive from standard input. All its members are then copied to a
 * spool file.
 */
extern const char archive_stdin[];
void archive_list_free(struct archive_member *m, int n);
/*
 * Decompress records of the zip in file number `file` into one new spool file. Returns the number of that file, or
 * -1. Every wanted record must exist and must decompress to its expected size and CRC. A CRC of 0 means unknown
 * and is not compared.
 */
struct archive_want {
    const char *name;
    uint64_t size;
    uint32_t crc;
    uint64_t at;                /* output: offset of the record in the spool file */
};
MUST_CHECK int archive_unpack(struct files *f, int file, struct archive_want *want, int n, struct err *e);

#endif
