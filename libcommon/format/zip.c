/*
 * zip.c - open a zip file
 *
 * First the end record is searched at the end of the file, then the directory is parsed. Each local header is read,
 * too, because its length determines where the payload begins. All checks are made here, so code that uses a zip_entry
 * need not check anything.
 */
#include "libcommon/format/zip.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/crc.h"
#include "libcommon/format/zip_bytes.h"

enum {
    NEAR = 4 << 10,             /* enough for the end record and the directory of a file with a few tensors */
    TAIL = 66 << 10,            /* enough for the end record and the longest possible comment */
    WINDOW = 32 << 10,
    HEADER_ABOUT = 512,         /* typical size of a small record with its header */
    MAX_ENTRIES = 1 << 18,
};
#define MAX_DIRECTORY ((uint64_t)64 << 20)
#define MAX_ARENA ((size_t)256 << 20)

struct zip_opener {
    struct files *f;
    int file;
    const char *path;
    uint64_t size;
    struct err *e;
    uint8_t *tail, *window;     /* parts of the file that have been read into memory */
    uint64_t tail_at, tail_len, window_at, window_len;
    uint64_t end_at;            /* the directory ends at or before this offset */
    uint64_t dir_at, dir_size, n;
    struct zip *z;
};

/* ---- identification of files that are not a zip ---- */

static const char *what_else(const uint8_t *p, uint64_t n)
{
    static const uint8_t legacy[] = { 0x80, 0x02, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                      0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e };

    if (n == 0)
        return "an empty file";
    if (n >= sizeof legacy && memcmp(p, legacy, sizeof legacy) == 0)
        return "legacy torch format, written before torch 1.6 or with "
               "_use_new_zipfile_serialization=False; re-save it with torch.load and torch.save";
    if (n >= 262 && memcmp(p + 257, "ustar", 5) == 0)
        return "a tar archive";
    if (n >= 8 && memcmp(p, "PYTORCH1", 8) == 0)
        return "torch's preview-release container";
    if (n >= 4 && memcmp(p, "PK\5\6", 4) == 0)
        return "a zip without records";
    if (n >= 9 && p[5] == 0 && p[6] == 0 && p[7] == 0 && p[8] == '{')
        return "a safetensors file: name the folder that holds it";
    if (n >= 4 && memcmp(p, "\211HDF", 4) == 0)
        return "an HDF5 file";
    if (p[0] == 0x80)
        return "a bare pickle";
    for (uint64_t i = 0; i < n; i++)
        if (p[i])
            return NULL;
    return "zeros";
}

static int check_zip_head(struct zip_opener *o)
{
    uint8_t head[512];
    uint64_t n = min_u64(sizeof head, o->size);
    const char *what;

    if (files_read(o->f, o->file, 0, head, n, o->e) < 0)
        return -1;
    if (n >= 4 && get_le32(head) == ZIP_LOCAL)
        return 0;
    what = what_else(head, n);
    err_data(o->e, o->path, ERR_NO_BYTE, "not a zip archive, as torch's .pt files are%s%s", what ? "; found " : "",
             what ? what : "");
    return -1;
}

/* ---- reading ---- */

/*
 * Return bytes [at, at + n) of the file; n must be at most WINDOW. If the bytes are not in o->tail or o->window, the
 * window is read again, with up to `ahead` bytes from `at`. Returns NULL on failure.
 */
static const uint8_t *peek_zip_bytes(struct zip_opener *o, uint64_t at, uint64_t n, uint64_t ahead)
{
    uint64_t len = min_u64(min_u64(max_u64(n, ahead), WINDOW), at <= o->size ? o->size - at : 0);

    if (at >= o->tail_at && at - o->tail_at <= o->tail_len && n <= o->tail_len - (at - o->tail_at))
        return o->tail + (at - o->tail_at);
    if (at >= o->window_at && at - o->window_at <= o->window_len && n <= o->window_len - (at - o->window_at))
        return o->window + (at - o->window_at);
    o->window_len = 0;
    if (files_read(o->f, o->file, at, o->window, max_u64(n, len), o->e) < 0)
        return NULL;
    o->window_at = at;
    o->window_len = len;
    return o->window;
}

static int contradiction(struct zip_opener *o, uint64_t at, const char *what)
{
    err_data(o->e, o->path, at, "damaged zip: %s", what);
    return -1;
}

static int no_end(struct zip_opener *o)
{
    err_data(o->e, o->path, ERR_NO_BYTE, "truncated or damaged (zip end record not found; file is %llu bytes)",
             (unsigned long long)o->size);
    return -1;
}

/*
 * Returns true if a 32-bit field agrees with the corresponding 64-bit field. A 32-bit field whose bits are all ones
 * agrees with any 64-bit field.
 */
static bool twins(uint64_t small, uint64_t all_ones, uint64_t big)
{
    return small == big || small == all_ones;
}

/*
 * Read the zip64 end record, which exists if a zip64 locator precedes the end record. The end record is at offset `at`.
 */
static int read_end64(struct zip_opener *o, uint64_t at)
{
    const uint8_t *p = peek_zip_bytes(o, at - ZIP_LOCATOR_LEN, ZIP_LOCATOR_LEN, 0);
    uint64_t at64, n_here;

    if (!p)
        return -1;
    if (get_le32(p) != ZIP_LOCATOR)
        return 0;
    at64 = get_le64(p + 8);
    if (get_le32(p + 4) != 0 || get_le32(p + 16) != 1)
        return contradiction(o, at - ZIP_LOCATOR_LEN, "the zip64 locator speaks of several disks");
    if (at64 > at - ZIP_LOCATOR_LEN || at - ZIP_LOCATOR_LEN - at64 < ZIP_END64_LEN)
        return contradiction(o, at - ZIP_LOCATOR_LEN, "the zip64 locator points outside the file");
    if (!(p = peek_zip_bytes(o, at64, ZIP_END64_LEN, 0)))
        return -1;
    if (get_le32(p) != ZIP_END64 || get_le32(p + 16) != 0 || get_le32(p + 20) != 0)
        return contradiction(o, at64, "no zip64 end record where the locator points");
    n_here = get_le64(p + 24);
    if (n_here != get_le64(p + 32) || !twins(o->n, UINT16_MAX, n_here) ||
        !twins(o->dir_size, UINT32_MAX, get_le64(p + 40)) || !twins(o->dir_at, UINT32_MAX, get_le64(p + 48)))
        return contradiction(o, at64, "the zip64 end record and the end record disagree");
    o->n = n_here;
    o->dir_size = get_le64(p + 40);
    o->dir_at = get_le64(p + 48);
    o->end_at = at64;
    return 0;
}

/*
 * Read the last `len` bytes of the file, and return the end record in them. Returns NULL if there is none. If reading
 * fails, returns NULL and sets *rc to -1.
 */
static const uint8_t *end_in_tail(struct zip_opener *o, uint64_t len, int *rc)
{
    o->tail_len = min_u64(len, o->size);
    o->tail_at = o->size - o->tail_len;
    *rc = files_read(o->f, o->file, o->tail_at, o->tail, o->tail_len, o->e);
    for (uint64_t i = o->tail_len; *rc == 0 && i >= ZIP_END_LEN; i--)
        if (get_le32(o->tail + i - ZIP_END_LEN) == ZIP_END)
            return o->tail + i - ZIP_END_LEN;
    return NULL;
}

static int read_end(struct zip_opener *o)
{
    int rc;
    /*
     * Read only the last NEAR bytes first. An item of a .distcp file is often not longer than TAIL, so reading TAIL
     * bytes would read all of its bytes twice.
     */
    const uint8_t *p = end_in_tail(o, NEAR, &rc);
    uint64_t at;

    if (!p && rc == 0)
        p = end_in_tail(o, TAIL, &rc);
    if (!p)
        return rc < 0 ? -1 : no_end(o);
    at = o->tail_at + (uint64_t)(p - o->tail);
    if (get_le16(p + 4) != 0 || get_le16(p + 6) != 0 || get_le16(p + 8) != get_le16(p + 10))
        return contradiction(o, at, "the end record speaks of several disks");
    o->n = get_le16(p + 10);
    o->dir_size = get_le32(p + 12);
    o->dir_at = get_le32(p + 16);
    o->end_at = at;
    o->z->end = at + ZIP_END_LEN + get_le16(p + 20);
    if (at >= ZIP_LOCATOR_LEN && read_end64(o, at) < 0)
        return -1;
    if (o->dir_at > o->end_at || o->dir_size > o->end_at - o->dir_at) {
        err_data(o->e, o->path, at,
                 "truncated or damaged (the zip directory should be %llu bytes at %llu; file is %llu bytes)",
                 (unsigned long long)o->dir_size, (unsigned long long)o->dir_at, (unsigned long long)o->size);
        return -1;
    }
    if (o->n == 0)
        return contradiction(o, at, "a zip without records");
    if (o->dir_size > MAX_DIRECTORY || o->n > MAX_ENTRIES) {
        err_data(o->e, o->path, at, "a directory of %llu records and %llu bytes; at most %d and %llu are supported",
                 (unsigned long long)o->n, (unsigned long long)o->dir_size, MAX_ENTRIES,
                 (unsigned long long)MAX_DIRECTORY);
        return -1;
    }
    return 0;
}

/* ---- the directory ---- */

/*
 * Parse the extra fields of a central entry. For each other field whose bits are all ones, the zip64 field has a 64-bit
 * value, in the order of wide[].
 */
static int parse_zip64_fields(struct zip_opener *o, struct zip_entry *x, uint64_t at, const uint8_t *extra,
                              uint16_t len)
{
    uint64_t *wide[3] = { &x->size, &x->packed_size, &x->header_at };

    while (len >= 4) {
        uint16_t id = get_le16(extra), n = get_le16(extra + 2);

        if (n > len - 4)
            return contradiction(o, at, "an extra field longer than its place");
        for (int i = 0, used = 0; id == 1 && i < 3; i++) {
            if (!wide[i] || *wide[i] != UINT32_MAX)
                continue;
            if (n - used < 8)
                return contradiction(o, at, "a zip64 field that lacks a number");
            *wide[i] = get_le64(extra + 4 + used);
            wide[i] = NULL;             /* this value is final, because a second zip64 field does not change it */
            used += 8;
        }
        extra += 4 + n;
        len -= 4 + n;
    }
    return len == 0 ? 0 : contradiction(o, at, "an extra field longer than its place");
}

static int check_zip_name(struct zip_opener *o, uint64_t at, const uint8_t *name, uint16_t len)
{
    for (uint16_t i = 0; i < len; i++)
        if (name[i] < ' ' || name[i] == 0x7f)
            return contradiction(o, at, "a record name with control characters");
    return len ? 0 : contradiction(o, at, "a record without a name");
}

/*
 * Parse one central entry at p. The directory ends `left` bytes after p. Returns the length of the entry, or 0 on
 * failure.
 */
static uint64_t read_entry(struct zip_opener *o, struct zip_entry *x, uint64_t at, const uint8_t *p, uint64_t left)
{
    uint16_t nlen, xlen, clen;
    uint64_t len;

    if (left < ZIP_CENTRAL_LEN || get_le32(p) != ZIP_CENTRAL) {
        contradiction(o, at, "no directory entry where one should be");
        return 0;
    }
    nlen = get_le16(p + 28);
    xlen = get_le16(p + 30);
    clen = get_le16(p + 32);
    len = (uint64_t)ZIP_CENTRAL_LEN + nlen + xlen + clen;
    if (len > left) {
        contradiction(o, at, "a directory entry runs past the directory");
        return 0;
    }
    x->method = get_le16(p + 10);
    x->crc = get_le32(p + 16);
    x->packed_size = get_le32(p + 20);
    x->size = get_le32(p + 24);
    x->header_at = get_le32(p + 42);
    if (check_zip_name(o, at, p + ZIP_CENTRAL_LEN, nlen) < 0 ||
        parse_zip64_fields(o, x, at, p + ZIP_CENTRAL_LEN + nlen, xlen) < 0)
        return 0;
    x->name = arena_strndup(o->z->arena, (const char *)p + ZIP_CENTRAL_LEN, nlen);
    if (!x->name) {
        contradiction(o, at, "a directory that needs too much memory");
        return 0;
    }
    if ((get_le16(p + 8) & 1) || get_le16(p + 34) != 0 || (x->method == 0 && x->size != x->packed_size)) {
        err_data(o->e, o->path, at, "record %s is encrypted, on another disk, or stored with two sizes (%llu, %llu)",
                 x->name, (unsigned long long)x->size, (unsigned long long)x->packed_size);
        return 0;
    }
    return len;
}

static int read_directory(struct zip_opener *o)
{
    const uint8_t *p;
    uint8_t *own = NULL;
    uint64_t at = 0;
    int rc = -1;

    if (o->dir_at >= o->tail_at) {
        p = o->tail + (o->dir_at - o->tail_at);
    } else {
        p = own = xmalloc(o->dir_size + 1);
        if (files_read(o->f, o->file, o->dir_at, own, o->dir_size, o->e) < 0)
            goto out;
    }
    if (o->n > o->dir_size / ZIP_CENTRAL_LEN) {
        contradiction(o, o->dir_at, "more records than the directory has room for");
        goto out;
    }
    o->z->dir_crc = crc_bytes(0, p, o->dir_size);
    o->z->entry = arena_alloc(o->z->arena, o->n * sizeof *o->z->entry);
    for (o->z->n = 0; o->z->n < (int)o->n; o->z->n++) {
        uint64_t len = read_entry(o, &o->z->entry[o->z->n], o->dir_at + at, p + at, o->dir_size - at);

        if (len == 0)
            goto out;
        at += len;
    }
    if (at != o->dir_size) {
        contradiction(o, o->dir_at + at, "the directory is longer than its entries");
        goto out;
    }
    rc = 0;
out:
    free(own);
    return rc;
}

/* ---- order, names, offsets ---- */

static int compare_zip_names(const void *a, const void *b, void *zip)
{
    const struct zip *z = zip;

    return strcmp(z->entry[*(const int *)a].name, z->entry[*(const int *)b].name);
}

static int by_place_cmp(const void *a, const void *b, void *zip)
{
    const struct zip *z = zip;
    uint64_t x = z->entry[*(const int *)a].header_at, y = z->entry[*(const int *)b].header_at;

    return x < y ? -1 : x > y;
}

static int *sorted(struct zip *z, int (*cmp)(const void *, const void *, void *))
{
    int *order = arena_alloc(z->arena, (size_t)z->n * sizeof *order);

    for (int i = 0; order && i < z->n; i++)
        order[i] = i;
    if (order)
        qsort_r(order, (size_t)z->n, sizeof *order, cmp, z);
    return order;
}

static int sort_entries(struct zip_opener *o)
{
    struct zip *z = o->z;

    z->by_name = sorted(z, compare_zip_names);
    z->by_place = sorted(z, by_place_cmp);
    if (!z->by_name || !z->by_place)
        return contradiction(o, o->dir_at, "a directory that needs too much memory");
    for (int i = 1; i < z->n; i++) {
        const char *name = z->entry[z->by_name[i]].name;

        if (strcmp(name, z->entry[z->by_name[i - 1]].name) == 0) {
            err_data(o->e, o->path, o->dir_at, "record %s is contained twice in the zip directory", name);
            return -1;
        }
    }
    return 0;
}

/* Find the beginning of an entry's payload. The payload must end at or before `limit`. */
static int place_entry(struct zip_opener *o, struct zip_entry *x, uint64_t limit)
{
    size_t nlen = strlen(x->name);
    uint64_t need = ZIP_LOCAL_LEN + nlen, ahead = min_u64(WINDOW, (uint64_t)o->z->n * HEADER_ABOUT);
    const uint8_t *p;

    if (x->header_at >= limit || limit - x->header_at < need) {
        err_data(o->e, o->path, ERR_NO_BYTE, "record %s claims bytes from %llu but the next thing begins at %llu",
                 x->name, (unsigned long long)x->header_at, (unsigned long long)limit);
        return -1;
    }
    /*
     * The headers of small records that are close together are read at once. The header of a big record takes one small
     * read.
     */
    p = peek_zip_bytes(o, x->header_at, min_u64(need, WINDOW), limit - x->header_at < ahead ? ahead : 0);
    if (!p)
        return -1;
    if (get_le32(p) != ZIP_LOCAL || get_le16(p + 26) != nlen ||
        memcmp(p + ZIP_LOCAL_LEN, x->name, min_u64(need, WINDOW) - ZIP_LOCAL_LEN) != 0) {
        err_data(o->e, o->path, x->header_at, "damaged zip: no local header of record %s here", x->name);
        return -1;
    }
    x->at = x->header_at + need + get_le16(p + 28);
    if (x->at > limit || x->packed_size > limit - x->at) {
        err_data(o->e, o->path, x->header_at, "record %s claims bytes %llu..%llu but the next thing begins at %llu",
                 x->name, (unsigned long long)x->at, (unsigned long long)(x->at + x->packed_size),
                 (unsigned long long)limit);
        return -1;
    }
    if (x->header_at == 0)
        memcpy(o->z->first, p, sizeof o->z->first);
    return 0;
}

static int place_entries(struct zip_opener *o)
{
    struct zip *z = o->z;

    for (int i = 0; i < z->n; i++) {
        uint64_t limit = i + 1 < z->n ? z->entry[z->by_place[i + 1]].header_at : o->dir_at;

        if (place_entry(o, &z->entry[z->by_place[i]], limit) < 0)
            return -1;
    }
    return 0;
}

struct zip *zip_open(struct files *f, int file, struct err *e)
{
    struct zip_opener o = { .f = f, .file = file, .path = files_name(f, file), .size = files_size(f, file), .e = e };
    int rc = -1;

    o.z = xcalloc(1, sizeof *o.z);
    o.z->arena = arena_new(MAX_ARENA);
    o.tail = xmalloc(TAIL + WINDOW);
    o.window = o.tail + TAIL;
    if (check_zip_head(&o) < 0 || read_end(&o) < 0 || read_directory(&o) < 0 || sort_entries(&o) < 0 ||
        place_entries(&o) < 0)
        goto out;
    rc = 0;
out:
    free(o.tail);
    if (rc < 0) {
        zip_close(o.z);
        return NULL;
    }
    return o.z;
}

void zip_close(struct zip *z)
{
    if (!z)
        return;
    arena_free(z->arena);
    free(z);
}

int zip_n(const struct zip *z)
{
    return z->n;
}

const struct zip_entry *zip_entry(const struct zip *z, int i)
{
    return &z->entry[i];
}

const struct zip_entry *zip_find(const struct zip *z, const char *name)
{
    int lo = 0, hi = z->n;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, c = strcmp(name, z->entry[z->by_name[mid]].name);

        if (c == 0)
            return &z->entry[z->by_name[mid]];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

int zip_n_without_crc(const struct zip *z)
{
    int n = 0;

    for (int i = 0; i < z->n; i++)
        n += z->entry[i].size > 0 && z->entry[i].crc == 0;
    return n;
}

uint32_t zip_directory_crc(const struct zip *z)
{
    return z->dir_crc;
}

enum zip_dialect zip_writer(const struct zip *z)
{
    uint16_t need = get_le16(z->first + 4), flags = get_le16(z->first + 6), date = get_le16(z->first + 12);

    if (need == 0 && (flags == 0x0808 || flags == 0x0800))
        return ZIP_TORCH;
    return need && flags == 0x0800 && date == ZIP_OUR_DATE ? ZIP_SHARDKIT : ZIP_FOREIGN;
}
