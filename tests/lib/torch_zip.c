/*
 * torch_zip.c - the byte layout of torch.save (miniz in streaming mode)
 *
 *   local header   30 bytes, flags 0x0808 (0x0800 if empty), crc and sizes zero
 *   name           <prefix>/<record>
 *   extra          [0001 zip64]  'F' 'B' u16 n, n bytes 'Z': payload at a multiple of 64
 *   payload
 *   descriptor     504b0708 crc sizes: 16 bytes, 24 when a zip64 field was needed, none if empty
 *   ...
 *   directory      46-byte headers with the true crc and sizes
 *   zip64 end record (56), its locator (20), end record (22): always all three
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tests/lib/torch_zip.h"

#define BUF_BYTES   (4u << 20)  /* a multiple of 64: payload alignment in file and buffer agree */
#define BLOCK       4096u       /* O_DIRECT requires lengths and offsets that are multiples of this */
#define U32_FULL    0xffffffffu
#define FLAG_DESCRIPTOR 0x0008
#define FLAG_UTF8   0x0800

struct entry {
    char *name;
    uint64_t header_at, size;
    uint32_t crc;
};

struct torch_zip {
    char *path, *prefix;
    int fd;
    bool direct, finished;
    uint8_t *buf;
    size_t used;                /* bytes in buf */
    uint64_t flushed;           /* bytes of the file before buf */
    struct entry *entry;
    int n, cap;
    uint64_t left;              /* payload bytes still missing from the open record */
};

static uint64_t cursor(const struct torch_zip *z) { return z->flushed + z->used; }

struct torch_zip *torch_zip_create(const char *path, const char *prefix, uint64_t size_hint, struct err *e)
{
    struct torch_zip *z = xcalloc(1, sizeof *z);
    void *buf;

    z->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (z->fd < 0) {
        err_sys(e, path, "cannot create");
        free(z);
        return NULL;
    }
    z->path = xstrdup(path);
    z->prefix = xstrdup(prefix);
    if (posix_memalign(&buf, BLOCK, BUF_BYTES) != 0)
        abort();
    z->buf = buf;
    /* Allocation is optional: file systems without fallocate still write the file. */
    if (size_hint > BUF_BYTES && fallocate(z->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size_hint) < 0)
        errno = 0;
    return z;
}

/*
 * Write the buffer to the file. The first full buffer shows that the file is large and turns O_DIRECT on, so that a
 * set larger than memory does not evict everything else from the page cache.
 */
static int flush(struct torch_zip *z, struct err *e)
{
    bool whole_blocks = z->used % BLOCK == 0;

    if (z->used == BUF_BYTES && z->flushed == 0)
        z->direct = fcntl(z->fd, F_SETFL, O_DIRECT) == 0;
    if (z->direct && !whole_blocks) {
        z->direct = false;
        if (fcntl(z->fd, F_SETFL, 0) < 0) {
            err_sys(e, z->path, "cannot turn O_DIRECT off");
            return -1;
        }
    }
    if (write_all_at(z->fd, z->buf, z->used, z->flushed) < 0) {
        err_sys(e, z->path, "cannot write %zu bytes", z->used);
        return -1;
    }
    z->flushed += z->used;
    z->used = 0;
    return 0;
}

static int put(struct torch_zip *z, const void *p, size_t n, struct err *e)
{
    const uint8_t *from = p;

    while (n > 0) {
        size_t k = min_u64(n, BUF_BYTES - z->used);

        memcpy(z->buf + z->used, from, k);
        z->used += k;
        from += k;
        n -= k;
        if (z->used == BUF_BYTES && flush(z, e) < 0)
            return -1;
    }
    return 0;
}

static bool is_zip64(const struct entry *x)
{
    return x->size >= U32_FULL || x->header_at >= U32_FULL;
}

/* Write the local extra field to out (at most 32 + 64 bytes). Returns its length. */
static size_t local_extra(const struct entry *x, size_t name_len, uint8_t *out)
{
    size_t n = 0;
    uint64_t start;

    if (is_zip64(x)) {
        n = 4;
        if (x->size >= U32_FULL) {
            put_le64(out + n, x->size);
            put_le64(out + n + 8, 0);       /* sic: the packed size stays 0 in local headers */
            n += 16;
        }
        if (x->header_at >= U32_FULL) {
            put_le64(out + n, x->header_at);
            n += 8;
        }
        put_le16(out, 1);
        put_le16(out + 2, n - 4);
    }
    start = x->header_at + 30 + name_len + n + 4;
    out[n] = 'F';
    out[n + 1] = 'B';
    put_le16(out + n + 2, align_up(start, 64) - start);
    memset(out + n + 4, 'Z', align_up(start, 64) - start);
    return n + 4 + (align_up(start, 64) - start);
}

int torch_zip_begin(struct torch_zip *z, const char *record, uint64_t size, struct err *e)
{
    struct entry *x;
    uint8_t head[30] = { 'P', 'K', 3, 4 }, extra[96];
    size_t name_len, extra_len;

    ARRAY_ROOM(z->entry, z->cap, z->n + 1);
    x = &z->entry[z->n++];
    *x = (struct entry){ .name = str_fmt("%s/%s", z->prefix, record), .header_at = cursor(z), .size = size };
    z->left = size;

    name_len = strlen(x->name);
    extra_len = local_extra(x, name_len, extra);
    put_le16(head + 6, FLAG_UTF8 | (size ? FLAG_DESCRIPTOR : 0));
    put_le16(head + 26, name_len);
    put_le16(head + 28, extra_len);
    if (put(z, head, sizeof head, e) < 0 || put(z, x->name, name_len, e) < 0)
        return -1;
    return put(z, extra, extra_len, e);
}

void *torch_zip_room(struct torch_zip *z, size_t *n_bytes)
{
    *n_bytes = min_u64(BUF_BYTES - z->used, z->left);
    return z->buf + z->used;
}

int torch_zip_wrote(struct torch_zip *z, size_t n, struct err *e)
{
    struct entry *x = &z->entry[z->n - 1];

    x->crc = crc_bytes(x->crc, z->buf + z->used, n);
    z->used += n;
    z->left -= n;
    return z->used == BUF_BYTES ? flush(z, e) : 0;
}

int torch_zip_put(struct torch_zip *z, const void *bytes, size_t n, struct err *e)
{
    struct entry *x = &z->entry[z->n - 1];

    x->crc = crc_bytes(x->crc, bytes, n);
    z->left -= n;
    return put(z, bytes, n, e);
}

int torch_zip_end(struct torch_zip *z, struct err *e)
{
    const struct entry *x = &z->entry[z->n - 1];
    uint8_t d[24] = { 'P', 'K', 7, 8 };

    if (z->left != 0)
        abort();                /* an error of the test: the record does not have the declared length */
    if (x->size == 0)
        return 0;
    put_le32(d + 4, x->crc);
    if (is_zip64(x)) {
        put_le64(d + 8, x->size);
        put_le64(d + 16, x->size);
        return put(z, d, 24, e);
    }
    put_le32(d + 8, x->size);
    put_le32(d + 12, x->size);
    return put(z, d, 16, e);
}

int torch_zip_record(struct torch_zip *z, const char *record, const void *bytes, size_t n, struct err *e)
{
    if (torch_zip_begin(z, record, n, e) < 0 || torch_zip_put(z, bytes, n, e) < 0)
        return -1;
    return torch_zip_end(z, e);
}

/* Write one header of the central directory. Its extra field holds only the values that do not fit into 32 bits. */
static int put_directory_entry(struct torch_zip *z, const struct entry *x, struct err *e)
{
    uint8_t h[46] = { 'P', 'K', 1, 2 }, extra[28];
    size_t name_len = strlen(x->name), n = 4;
    bool big = x->size >= U32_FULL, far = x->header_at >= U32_FULL;

    if (big) {
        put_le64(extra + n, x->size);
        put_le64(extra + n + 8, x->size);
        n += 16;
    }
    if (far) {
        put_le64(extra + n, x->header_at);
        n += 8;
    }
    put_le16(extra, 1);
    put_le16(extra + 2, n - 4);
    if (!big && !far)
        n = 0;
    put_le16(h + 8, FLAG_UTF8 | (x->size ? FLAG_DESCRIPTOR : 0));
    put_le32(h + 16, x->crc);
    put_le32(h + 20, big ? U32_FULL : x->size);
    put_le32(h + 24, big ? U32_FULL : x->size);
    put_le16(h + 28, name_len);
    put_le16(h + 30, n);
    put_le32(h + 42, far ? U32_FULL : x->header_at);
    if (put(z, h, sizeof h, e) < 0 || put(z, x->name, name_len, e) < 0)
        return -1;
    return put(z, extra, n, e);
}

static int put_end_records(struct torch_zip *z, uint64_t dir_at, struct err *e)
{
    uint64_t end_at = cursor(z), dir_len = end_at - dir_at;
    uint8_t t[56 + 20 + 22] = { 'P', 'K', 6, 6 };
    uint8_t *loc = t + 56, *end = t + 76;

    put_le64(t + 4, 44);
    put_le16(t + 12, 0x031e);       /* "made by", as miniz writes it */
    put_le16(t + 14, 45);
    put_le64(t + 24, z->n);
    put_le64(t + 32, z->n);
    put_le64(t + 40, dir_len);
    put_le64(t + 48, dir_at);
    memcpy(loc, "PK\6\7", 4);
    put_le64(loc + 8, end_at);
    put_le32(loc + 16, 1);
    memcpy(end, "PK\5\6", 4);
    put_le16(end + 8, min_u64(z->n, 0xffff));
    put_le16(end + 10, min_u64(z->n, 0xffff));
    put_le32(end + 12, min_u64(dir_len, U32_FULL));
    put_le32(end + 16, min_u64(dir_at, U32_FULL));
    return put(z, t, sizeof t, e);
}

int torch_zip_finish(struct torch_zip *z, struct err *e)
{
    uint64_t dir_at = cursor(z);

    for (int i = 0; i < z->n; i++)
        if (put_directory_entry(z, &z->entry[i], e) < 0)
            return -1;
    if (put_end_records(z, dir_at, e) < 0 || flush(z, e) < 0)
        return -1;
    /* The allocation was an estimate, so release the space after the end. */
    if (ftruncate(z->fd, (off_t)z->flushed) < 0) {
        err_sys(e, z->path, "cannot set its length");
        return -1;
    }
    z->finished = true;
    return 0;
}

void torch_zip_free(struct torch_zip *z)
{
    if (!z)
        return;
    close(z->fd);
    if (!z->finished)
        unlink(z->path);
    for (int i = 0; i < z->n; i++)
        free(z->entry[i].name);
    free(z->entry);
    free(z->buf);
    free(z->prefix);
    free(z->path);
    free(z);
}
