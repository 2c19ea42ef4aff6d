/*
 * zip_payload.c - find a record in a zip whose directory is lost, at the offset of the same record in a similar file
 *
 * A writer puts records of the same names and sizes at the same offsets, so the files of two ranks have them in the
 * same places. zip_find_payload() requires a local header with the name of the record, and a CRC of the payload, which
 * is stored in this header or in the descriptor after the payload.
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/zip_bytes.h"

enum { HEADER_MAX = 16 << 10, AT_A_TIME = 1 << 20, HAS_DESCRIPTOR = 8 };

/*
 * Find the local header of record `name` in the n bytes before the payload. The header must end where the payload
 * begins. Returns NULL if there is none.
 */
static const uint8_t *header_of(const uint8_t *p, size_t n, const char *name)
{
    const size_t len = strlen(name);

    for (size_t i = n >= ZIP_LOCAL_LEN ? n - ZIP_LOCAL_LEN + 1 : 0; i-- > 0;) {
        size_t name_len, extra_len;

        if (get_le32(p + i) != ZIP_LOCAL)
            continue;
        name_len = get_le16(p + i + 26);
        extra_len = get_le16(p + i + 28);
        if (i + ZIP_LOCAL_LEN + name_len + extra_len == n && name_len > len &&
            memcmp(p + i + ZIP_LOCAL_LEN + name_len - len, name, len) == 0 &&
            p[i + ZIP_LOCAL_LEN + name_len - len - 1] == '/')
            return p + i;
    }
    return NULL;
}

/* Read the CRC that the file stores for the payload at offset like->at. Returns false if there is none. */
static bool read_stored_crc(struct files *f, int file, const struct record *like, uint32_t *crc)
{
    const size_t before = (size_t)min_u64(HEADER_MAX, like->at);
    uint8_t *head = xmalloc(before + 1), tail[8];
    const uint8_t *p;
    struct err ignored = {0};
    bool ok = false;

    if (files_read(f, file, like->at - before, head, before, &ignored) < 0)
        goto out;
    p = header_of(head, before, like->name);
    if (!p || get_le16(p + 8) != 0)
        goto out;
    *crc = get_le32(p + 14);
    ok = *crc != 0;
    if (!(get_le16(p + 6) & HAS_DESCRIPTOR))
        goto out;
    ok = files_read(f, file, like->at + like->len, tail, sizeof tail, &ignored) == 0 &&
         get_le32(tail) == ZIP_DESCRIPTOR;
    *crc = ok ? get_le32(tail + 4) : 0;
out:
    free(head);
    return ok;
}

bool zip_find_payload(struct files *f, int file, const struct record *like, struct record *out)
{
    uint8_t *buf;
    uint32_t crc = 0, want;
    struct err ignored = {0};
    bool ok = like->at <= files_size(f, file) && like->len <= files_size(f, file) - like->at &&
              read_stored_crc(f, file, like, &want);

    buf = ok ? xmalloc(AT_A_TIME) : NULL;
    for (uint64_t at = 0; at < like->len && ok; at += AT_A_TIME) {
        const size_t n = (size_t)min_u64(AT_A_TIME, like->len - at);

        ok = files_read(f, file, like->at + at, buf, n, &ignored) == 0;
        crc = ok ? crc_bytes(crc, buf, n) : 0;
    }
    free(buf);
    if (!ok || crc != want)
        return false;
    *out = (struct record){ .file = file, .at = like->at, .len = like->len, .crc = crc, .has_crc = true,
                            .name = like->name };
    return true;
}
