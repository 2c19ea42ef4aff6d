/*
 * archive.h - tar archives, compressed tar archives, and compressed records of a zip
 *
 * These are read with libarchive. The members of an uncompressed tar are used in place: each is a range of bytes of the
 * tar. Compressed data is decompressed once into an unlinked spool file in $TMPDIR, after a check of the free space
 * there. The kernel frees the spool file when the process ends.
 */
#ifndef SHARDKIT_FORMAT_ARCHIVE_H
#define SHARDKIT_FORMAT_ARCHIVE_H

#include "libcommon/base/files.h"

struct archive_member {
    char *name;                 /* path inside the archive, without a leading "./" */
    int file;                   /* number of the member in struct files */
};

/*
 * Returns true if `path` is a regular file that begins like a tar, either plain or compressed (gz, zstd, xz, bz2, lz4).
 * Returns false for a zip.
 */
bool archive_is_tar(const char *path);
/*
 * Add every regular member of the archive to `f` as a file. Returns the number of members, and sets *out to their list,
 * which the caller frees with archive_list_free(). Returns -1 on failure. Absolute names, names with "..", links and
 * duplicate names are refused with ERR_DATA.
 */
MUST_CHECK int archive_list(struct files *f, const char *path, struct archive_member **out, struct err *e);
/* Pass this pointer as `path` to read the archive from standard input. All members are then copied to a spool file. */
extern const char archive_stdin[];
void archive_list_free(struct archive_member *m, int n);
/*
 * Decompress records of the zip with file number `file` into one new spool file. Returns the number of the spool file
 * in `f`, or -1 on failure. Every wanted record must exist, and must decompress to its expected size and CRC. An
 * expected CRC of 0 means that the CRC is unknown; it is not compared.
 */
struct archive_want {
    const char *name;
    uint64_t size;
    uint32_t crc;
    uint64_t at;                /* output: offset of the record in the spool file */
};
MUST_CHECK int archive_unpack(struct files *f, int file, struct archive_want *want, int n, struct err *e);

#endif
