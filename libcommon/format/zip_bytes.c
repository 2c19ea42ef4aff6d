/* zip_bytes.c - generate headers, descriptors and end records, byte by byte, as each of the known writers does */
#include "libcommon/format/zip_bytes.h"

#include <string.h>

enum {
    FLAG_DESCRIPTOR = 0x0008, FLAG_UTF8 = 0x0800,
    VERSION_PLAIN = 20, VERSION_ZIP64 = 45,
    MADE_BY_UNIX_30 = 0x031e,   /* miniz, which torch uses, writes this value only in the zip64 end record */
    ALIGN = 64, ALIGN_BIG = 4096, BIG = 64 << 10,
};

static bool is_wide(uint64_t v)
{
    return v >= UINT32_MAX;
}

static uint32_t low32(uint64_t v)
{
    return is_wide(v) ? UINT32_MAX : (uint32_t)v;
}

/* Return the length of the zip64 values in the extra field of a local header, without the field's 4-byte head. */
static uint16_t local64_len(enum zip_dialect d, const struct zip_item *it)
{
    uint16_t n = is_wide(it->size) ? 16 : 0;

    /* miniz also stores the offset of the header itself in this field, although no reader needs it. */
    return d == ZIP_TORCH && is_wide(it->header_at) ? n + 8 : n;
}

void zip_put_local(struct strbuf *sb, enum zip_dialect d, const struct zip_item *it)
{
    bool torch = d == ZIP_TORCH, wide = is_wide(it->size);
    uint16_t nlen = (uint16_t)strlen(it->name), x64 = local64_len(d, it);
    uint16_t head64 = x64 ? 4 : 0;
    uint64_t align = !torch && it->size >= BIG ? ALIGN_BIG : ALIGN;
    uint64_t start = it->header_at + ZIP_LOCAL_LEN + nlen + head64 + x64 + 4;
    uint16_t filler = (uint16_t)(align_up(start, align) - start);
    uint16_t flags = torch && it->size ? FLAG_UTF8 | FLAG_DESCRIPTOR : FLAG_UTF8;

    strbuf_add_le32(sb, ZIP_LOCAL);
    strbuf_add_le16(sb, torch ? 0 : wide ? VERSION_ZIP64 : VERSION_PLAIN);
    strbuf_add_le16(sb, flags);
    strbuf_add_le16(sb, 0);                               /* method: stored */
    strbuf_add_le16(sb, 0);
    strbuf_add_le16(sb, torch ? 0 : ZIP_OUR_DATE);
    strbuf_add_le32(sb, torch ? 0 : it->crc);
    strbuf_add_le32(sb, torch ? 0 : low32(it->size));
    strbuf_add_le32(sb, torch ? 0 : low32(it->size));
    strbuf_add_le16(sb, nlen);
    strbuf_add_le16(sb, head64 + x64 + 4 + filler);
    strbuf_add(sb, it->name, nlen);
    if (x64) {
        strbuf_add_le16(sb, 1);
        strbuf_add_le16(sb, x64);
        if (wide) {
            strbuf_add_le64(sb, it->size);
            strbuf_add_le64(sb, torch ? 0 : it->size);
        }
        if (torch && is_wide(it->header_at))
            strbuf_add_le64(sb, it->header_at);
    }
    strbuf_add(sb, "FB", 2);
    strbuf_add_le16(sb, filler);
    strbuf_add_repeated(sb, 'Z', filler);
}

void zip_put_descriptor(struct strbuf *sb, enum zip_dialect d, const struct zip_item *it)
{
    if (d != ZIP_TORCH || it->size == 0)
        return;
    strbuf_add_le32(sb, ZIP_DESCRIPTOR);
    strbuf_add_le32(sb, it->crc);
    if (is_wide(it->size) || is_wide(it->header_at)) {
        strbuf_add_le64(sb, it->size);
        strbuf_add_le64(sb, it->size);
    } else {
        strbuf_add_le32(sb, (uint32_t)it->size);
        strbuf_add_le32(sb, (uint32_t)it->size);
    }
}

void zip_put_central(struct strbuf *sb, enum zip_dialect d, const struct zip_item *it)
{
    bool torch = d == ZIP_TORCH, wide = is_wide(it->size), far = is_wide(it->header_at);
    uint16_t nlen = (uint16_t)strlen(it->name), x64 = (wide ? 16 : 0) + (far ? 8 : 0);

    strbuf_add_le32(sb, ZIP_CENTRAL);
    strbuf_add_le16(sb, torch ? 0 : VERSION_ZIP64);       /* version made by */
    strbuf_add_le16(sb, torch ? 0 : x64 ? VERSION_ZIP64 : VERSION_PLAIN);
    strbuf_add_le16(sb, torch && it->size ? FLAG_UTF8 | FLAG_DESCRIPTOR : FLAG_UTF8);
    strbuf_add_le16(sb, 0);
    strbuf_add_le16(sb, 0);
    strbuf_add_le16(sb, torch ? 0 : ZIP_OUR_DATE);
    strbuf_add_le32(sb, it->crc);
    strbuf_add_le32(sb, low32(it->size));
    strbuf_add_le32(sb, low32(it->size));
    strbuf_add_le16(sb, nlen);
    strbuf_add_le16(sb, x64 ? 4 + x64 : 0);
    strbuf_add_le16(sb, 0);                               /* length of the comment */
    strbuf_add_le16(sb, 0);                               /* number of the disk */
    strbuf_add_le16(sb, 0);                               /* internal attributes */
    strbuf_add_le32(sb, 0);
    strbuf_add_le32(sb, low32(it->header_at));
    strbuf_add(sb, it->name, nlen);
    if (x64) {
        strbuf_add_le16(sb, 1);
        strbuf_add_le16(sb, x64);
    }
    if (wide) {
        strbuf_add_le64(sb, it->size);
        strbuf_add_le64(sb, it->size);
    }
    if (far)
        strbuf_add_le64(sb, it->header_at);
}

void zip_put_end(struct strbuf *sb, enum zip_dialect d, uint64_t n, uint64_t dir_at, uint64_t dir_size)
{
    uint16_t n16 = n < UINT16_MAX ? (uint16_t)n : UINT16_MAX;

    if (d == ZIP_TORCH || n16 == UINT16_MAX || is_wide(dir_at) || is_wide(dir_size)) {
        strbuf_add_le32(sb, ZIP_END64);
        strbuf_add_le64(sb, ZIP_END64_LEN - 12);
        strbuf_add_le16(sb, MADE_BY_UNIX_30);
        strbuf_add_le16(sb, VERSION_ZIP64);
        strbuf_add_le32(sb, 0);
        strbuf_add_le32(sb, 0);
        strbuf_add_le64(sb, n);
        strbuf_add_le64(sb, n);
        strbuf_add_le64(sb, dir_size);
        strbuf_add_le64(sb, dir_at);
        strbuf_add_le32(sb, ZIP_LOCATOR);
        strbuf_add_le32(sb, 0);
        strbuf_add_le64(sb, dir_at + dir_size);
        strbuf_add_le32(sb, 1);
    }
    strbuf_add_le32(sb, ZIP_END);
    strbuf_add_le16(sb, 0);
    strbuf_add_le16(sb, 0);
    strbuf_add_le16(sb, n16);
    strbuf_add_le16(sb, n16);
    strbuf_add_le32(sb, low32(dir_size));
    strbuf_add_le32(sb, low32(dir_at));
    strbuf_add_le16(sb, 0);
}
