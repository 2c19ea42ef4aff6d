/*
 * zip.h - parse the directory of a zip file; generate or check all bytes outside of the payloads
 *
 * zip_open() reads the end record and the central directory and checks them completely (bounds, overlaps, duplicate
 * names, zip64). Sizes and CRCs come from the central directory, because torch's local headers hold zeros. Payload
 * bytes are not read, except by zip_find_payload().
 *
 * Threads: an open zip never changes.
 */
#ifndef SHARDKIT_FORMAT_ZIP_H
#define SHARDKIT_FORMAT_ZIP_H

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"

struct zip_entry {
    const char *name;           /* valid until zip_close() */
    uint64_t header_at;         /* offset of the local header from the start of the file */
    uint64_t at;                /* offset of the first payload byte */
    uint64_t size;              /* size of the uncompressed contents in bytes */
    uint64_t packed_size;       /* size in the file in bytes; equal to `size` if the entry is stored uncompressed */
    uint32_t crc;               /* CRC of the uncompressed contents; if it is 0 and size > 0, the file stores no CRC */
    uint16_t method;            /* 0: stored uncompressed; otherwise compressed and must be read through archive.h */
};

struct zip;
/*
 * Open file number `file`. Returns NULL on failure and sets *e:
 *   ERR_SYS   the file cannot be read
 *   ERR_DATA  the file is not a zip (the message gives its actual kind: legacy torch, tar, empty ...),
 *             is truncated, or has a directory that contradicts itself or the file
 */
MUST_CHECK struct zip *zip_open(struct files *f, int file, struct err *e);
void zip_close(struct zip *z);                              /* accepts NULL */
int zip_n(const struct zip *z);
const struct zip_entry *zip_entry(const struct zip *z, int i);      /* entries are in the order of the directory */
const struct zip_entry *zip_find(const struct zip *z, const char *name);    /* NULL if there is none */
int zip_n_without_crc(const struct zip *z);         /* number of records with bytes for which the file stores no CRC */
/* Return the CRC-32 of the bytes of the central directory. It changes if the size or CRC of any record changes. */
uint32_t zip_directory_crc(const struct zip *z);

/*
 * Programs that write zip containers. They are recognized by the first local header (docs/formats.md, sections 3.1 and
 * 3.2).
 */
enum zip_dialect {
    ZIP_TORCH,                  /* torch.save: local headers without values, then descriptors; always a zip64 end
                                 * record */
    ZIP_SHARDKIT,               /* this project */
    ZIP_FOREIGN,
};
enum zip_dialect zip_writer(const struct zip *z);

/*
 * Compare every byte outside of the payloads (local headers, filler in extra fields, descriptors, directory, end
 * records, gaps) with the byte that torch.save or this project's writer produces for the same records. Each difference
 * is added to `r` with the code "container". It is a WARNING if the file stores the CRC of every record, because no
 * reader uses these bytes, and otherwise an ERROR. zip_check_end() compares bytes after the end of the archive.
 * Payloads are not read. Returns -1 if the file cannot be read.
 */
MUST_CHECK int zip_check_container(const struct zip *z, struct files *f, int file,
                                   struct report *r, struct err *e);
/*
 * Report bytes after the end of the archive, which torch.load ignores, with the code "container" and the severity that
 * zip_check_container() uses for other differences. Nothing is read. A finding that `r` already has is not repeated.
 */
void zip_check_end(const struct zip *z, const struct files *f, int file, struct report *r);
/*
 * Report a WARNING "no_crc" if the file stores no CRC for some record. A finding that `r` already has is not repeated.
 */
void zip_check_crcs(const struct zip *z, const struct files *f, int file, struct report *r);

/*
 * Find the payload of one record in a zip whose directory is damaged or missing. `like` is the same record of a similar
 * file. Three conditions must be met: the payload is at the same offset as in that file; it follows a local header with
 * the same name, apart from the prefix; it has the CRC that the damaged file itself stores. The payload is read. If it
 * is found, returns true and fills *out; out->name is the name of `like`.
 */
bool zip_find_payload(struct files *f, int file, const struct record *like, struct record *out);

/*
 * The container that this project writes (docs/formats.md, section 3.2). Records are stored uncompressed in the given
 * order. Payloads are aligned to 64 bytes; payloads of 64 KiB and more are aligned to 4096. Local headers and central
 * entries both hold the real CRCs and sizes, and there are no descriptors. A zip64 field exists only where a 32-bit
 * field would overflow. zip_layout_new() computes the offsets of the records. Once every CRC is set, zip_layout_runs()
 * returns the other bytes of the file as a few runs, which the caller writes around the payloads. Equal input gives
 * equal bytes.
 */
struct zip_out {
    const char *name;           /* "fp32/data/0"; must outlive the layout */
    uint64_t size;
    uint32_t crc;               /* must be set before zip_layout_runs() */
    uint64_t at;                /* output: offset of the first payload byte in the file */
};
struct zip_run {
    uint64_t at;                /* offset in the file */
    const uint8_t *bytes;       /* valid until the next zip_layout_runs() or zip_layout_free() */
    uint64_t len;
};
struct zip_layout;
struct zip_layout *zip_layout_new(struct zip_out *records, int n);
void zip_layout_free(struct zip_layout *l);
uint64_t zip_layout_size(const struct zip_layout *l);       /* length of the file */
/*
 * Build all bytes outside of the payloads, including the CRCs of the records. Sets *runs, which is valid until the next
 * call or zip_layout_free(). Returns the number of runs.
 */
int zip_layout_runs(struct zip_layout *l, const struct zip_run **runs);

#endif
