/*
 * archive.h - what is not a plain file: tar archives, compressed ones, deflated zip records
 *
 * libarchive reads them. Members of an uncompressed tar are used in place (a window of
 * the tar); anything compressed is unpacked once into an unlinked spool file in $TMPDIR,
 * after the free space there was checked, and vanishes with the process.
 */
#ifndef SHARDKIT_FORMAT_ARCHIVE_H
#define SHARDKIT_FORMAT_ARCHIVE_H

#include "libcommon/base/files.h"

struct archive_member {
    char *name;                 /* path inside the archive, "./" removed */
    int file;                   /* number in the files */
};

/* True when the path is a regular file that begins like a tar, plain or compressed (gz, zstd, xz, bz2, lz4); no zip. */
bool archive_is_tar(const char *path);
/*
 * Make every regular member of the archive a file of `f`. Returns their number and the
 * list (free with archive_list_free), or -1. Absolute names, "..", links and duplicate
 * names are refused with ERR_DATA.
 */
MUST_CHECK int archive_list(struct files *f, const char *path, struct archive_member **out, struct err *e);
/* As `path`, this very pointer: the archive comes on standard input, all of it goes to a spool file. */
extern const char archive_stdin[];
void archive_list_free(struct archive_member *m, int n);
/*
 * Unpack compressed records of the zip in file number `file` into one new spool file;
 * returns its number. Each must be there and come out with its size and CRC (0: unknown).
 */
struct archive_want {
    const char *name;
    uint64_t size;
    uint32_t crc;
    uint64_t at;                /* filled in: first byte in the spool file */
};
MUST_CHECK int archive_unpack(struct files *f, int file, struct archive_want *want, int n, struct err *e);

#endif
