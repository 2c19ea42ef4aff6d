/*
 * zip_bytes.h - generate the bytes that a writer of zip files puts around payloads
 *
 * zip_layout.c uses these functions to write a file, and zip_check.c to compare a file with what they generate.
 *
 *   [local header 30][name][zip64 field][FB filler]  payload  [descriptor]  ...
 *   [central entry 46][name][zip64 field] ...  [zip64 end 56][locator 20]  [end 22]
 */
#ifndef SHARDKIT_FORMAT_ZIP_BYTES_H
#define SHARDKIT_FORMAT_ZIP_BYTES_H

#include "libcommon/format/zip.h"

enum {
    ZIP_LOCAL = 0x04034b50, ZIP_CENTRAL = 0x02014b50, ZIP_DESCRIPTOR = 0x08074b50,
    ZIP_END = 0x06054b50, ZIP_END64 = 0x06064b50, ZIP_LOCATOR = 0x07064b50,
    ZIP_LOCAL_LEN = 30, ZIP_CENTRAL_LEN = 46, ZIP_END_LEN = 22, ZIP_END64_LEN = 56, ZIP_LOCATOR_LEN = 20,
    ZIP_OUR_DATE = 0x0021,      /* 1 January 1980; torch writes a date with month 0, which causes problems in some
                                 * tools */
};

struct zip_item {
    const char *name;
    uint64_t size, header_at;
    uint32_t crc;
};

/*
 * Each of these functions appends to sb. The payload begins directly after the last byte of the local header's extra
 * field.
 */
void zip_put_local(struct strbuf *sb, enum zip_dialect d, const struct zip_item *it);
void zip_put_descriptor(struct strbuf *sb, enum zip_dialect d, const struct zip_item *it);
void zip_put_central(struct strbuf *sb, enum zip_dialect d, const struct zip_item *it);
void zip_put_end(struct strbuf *sb, enum zip_dialect d, uint64_t n, uint64_t dir_at, uint64_t dir_size);

/* The representation of an open zip, shared with zip_check.c. */
struct zip {
    struct arena *arena;
    struct zip_entry *entry;
    int n;
    int *by_name, *by_place;    /* indices of the entries, sorted by name and by header_at */
    uint32_t dir_crc;
    uint64_t end;               /* offset after the end record and its comment */
    uint8_t first[ZIP_LOCAL_LEN];       /* the first local header, by which zip_writer() recognizes the writer */
};

#endif
