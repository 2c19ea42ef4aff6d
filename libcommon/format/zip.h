/*
 * zip.h - the directory of a zip file, and every container byte of it
 *
 * zip_open() reads the end record and the central directory and checks them completely
 * (bounds, overlaps, duplicate names, zip64). Sizes and CRCs come from the central
 * directory; torch's local headers hold zeros. Payload bytes are never read here.
 * Threads: an open zip never changes.
 */
#ifndef SHARDKIT_FORMAT_ZIP_H
#define SHARDKIT_FORMAT_ZIP_H

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/report.h"

struct zip_entry {
    const char *name;           /* belongs to the zip */
    uint64_t header_at;         /* local header, from the start of the file */
    uint64_t at;                /* first payload byte */
    uint64_t size;              /* bytes once unpacked */
    uint64_t packed_size;       /* bytes in the file; == size when stored */
    uint32_t crc;               /* of the unpacked bytes; 0 = none stored (when size > 0) */
    uint16_t method;            /* 0 stored, else compressed: read it through archive.h */
};

struct zip;
/*
 * Open file number `file`. NULL and *e:
 *   ERR_SYS   it cannot be read
 *   ERR_DATA  no zip (the message says what it is instead: legacy torch, tar, empty ...),
 *             cut short, or a directory that contradicts itself or the file
 */
MUST_CHECK struct zip *zip_open(struct files *f, int file, struct err *e);
void zip_close(struct zip *z);                              /* NULL is fine */
int zip_n(const struct zip *z);
const struct zip_entry *zip_entry(const struct zip *z, int i);      /* in directory order */
const struct zip_entry *zip_find(const struct zip *z, const char *name);    /* NULL: none */
/* CRC-32 of the central directory's bytes: changes whenever a record's size or CRC does. */
uint32_t zip_directory_crc(const struct zip *z);

/* Who wrote the container, by the look of its first local header (docs/formats.md, sections 3.1 and 3.2). */
enum zip_dialect {
    ZIP_TORCH,                  /* torch.save: empty local headers, descriptors, zip64 end always */
    ZIP_SHARDKIT,               /* our writer */
    ZIP_FOREIGN,
};
enum zip_dialect zip_writer(const struct zip *z);

/*
 * Compare every byte outside the payloads (local headers, extra-field filler,
 * descriptors, directory, end records, gaps) with what torch.save or our own writer
 * puts there for the same records; tell `r` of each difference, code "container".
 * Reads those bytes only. -1 when the file cannot be read.
 */
MUST_CHECK int zip_check_container(const struct zip *z, struct files *f, int file,
                                   struct report *r, struct err *e);

/*
 * Find in a zip whose directory is damaged or cut off the payload that the record `like` of a like file is: at the same
 * place, after a local header with the same name (but for the prefix), and with the CRC that the file itself says.
 * Reads the payload. true: *out is it, its name is like's.
 */
bool zip_find_payload(struct files *f, int file, const struct record *like, struct record *out);

/*
 * Our writer's layout (docs/formats.md, section 3.2): records stored in the order given, payloads
 * aligned to 64 bytes, those of 64 KiB and more to 4096, real CRCs and sizes in both
 * headers, no descriptors, zip64 fields exactly where a 32-bit one would overflow.
 * zip_layout_new() places the records; once every CRC is set, the container bytes are
 * a few runs to be written around the payloads. Deterministic.
 */
struct zip_out {
    const char *name;           /* "fp32/data/0"; must outlive the layout */
    uint64_t size;
    uint32_t crc;               /* may be filled in later, before zip_layout_run() */
    uint64_t at;                /* filled in: first payload byte */
};
struct zip_run {
    uint64_t at;                /* where these bytes go */
    const uint8_t *bytes;       /* belong to the layout */
    uint64_t len;
};
struct zip_layout;
struct zip_layout *zip_layout_new(struct zip_out *records, int n);
void zip_layout_free(struct zip_layout *l);
uint64_t zip_layout_size(const struct zip_layout *l);       /* the file's length */
/* Build the bytes from the records' CRCs; *runs is valid until the next call or free. Returns their number. */
int zip_layout_runs(struct zip_layout *l, const struct zip_run **runs);

#endif
