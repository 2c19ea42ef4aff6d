/*
 * zip.h - parse the directory of a zip file, and generate or check all its container bytes
 *
 * zip_open() reads the end record and the central directory and checks them completely (bounds, overlaps,
 * duplicate names, zip64). Sizes and CRCs come from the central directory, because torch's local headers hold
 * zeros. Payload bytes are not read, except by zip_find_payload().
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
    uint64_t size;              /* bytes after decompression */
    uint64_t packed_size;       /* bytes in the file; equals size if the entry is stored */
    uint32_t crc;               /* CRC of the uncompressed bytes; 0 with size > 0: none stored */
    uint16_t method;            /* 0: stored; otherwise compressed, to be read through archive.h */
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
const struct zip_entry *zip_entry(const struct zip *z, int i);      /* in directory order */
const struct zip_entry *zip_find(const struct zip *z, const char *name);    /* NULL if there is none */
/* Return the CRC-32 of the central directory's bytes. It changes whenever the size or CRC of a record changes. */
uint32_t zip_directory_crc(const struct zip *z);

/* Writers of the container, recognized by the first local header (docs/formats.md, sections 3.1 and 3.2). */
enum zip_dialect {
    ZIP_TORCH,                  /* torch.save: local headers without values, descriptors, always a zip64 end record */
    ZIP_SHARDKIT,               /* this project */
    ZIP_FOREIGN,
};
enum zip_dialect zip_writer(const struct zip *z);

/*
 * Compare every byte outside the payloads (local headers, extra-field filler, descriptors, directory, end records,
 * gaps) with the bytes that torch.save or this project's writer produces for the same records. Each difference is
 * added to `r` with the code "container". Reads those bytes only. Returns -1 if the file cannot be read.
 */
MUST_CHECK int zip_check_container(const struct zip *z, struct files *f, int file,
                                   struct report *r, struct err *e);

/*
 * Find the payload of one record in a zip whose directory is damaged or missing. `like` is the corresponding
 * record of a similar file. The payload must be at the same offset, after a local header with the same name
 * (except for the prefix), and must have the CRC that the file itself stores. Reads the payload. Returns true and
 * fills *out if found; out->name is like's name.
 */
bool zip_find_payload(struct files *f, int file, const struct record *like, struct record *out);

/*
 * The layout of this project's writer (docs/formats.md, section 3.2): records are stored in the given order;
 * payloads are aligned to 64 bytes, those of 64 KiB and more to 4096; both headers hold the real CRCs and sizes;
 * there are no descriptors; zip64 fields exist exactly where a 32-bit field would overflow. zip_layout_new()
 * places the records. Once every CRC is set, the container bytes are a few runs that the caller writes around the
 * payloads. The result is deterministic.
 */
struct zip_out {
    const char *name;           /* "fp32/data/0"; must outlive the layout */
    uint64_t size;
    uint32_t crc;               /* may be set later, before zip_layout_runs() */
    uint64_t at;                /* output: offset of the first payload byte */
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
 * Build the container bytes from the records' CRCs. *runs is valid until the next call or zip_layout_free().
 * Returns the number of runs.
 */
int zip_layout_runs(struct zip_layout *l, const struct zip_run **runs);

#endif
