/*
 * edit_items.c - update the CRCs in a changed .distcp file
 *
 * Each tensor in a .distcp file is an item: a zip archive, which stores the CRCs of its records. Changed records are
 * read back from the new file. Their CRC is written to the item's central directory, and to the local header or the
 * descriptor after the payload, if the original writer stored it there as well.
 */
#include "libcommon/layout/edit/edit_items.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/ckpt/checkpoint.h"

enum { DIR_ENTRY = 46, DIR_CRC = 16, LOCAL_FLAGS = 6, LOCAL_CRC = 14, LOCAL_HEADER = 30, AT_A_TIME = 1 << 20 };
enum { HAS_DESCRIPTOR = 8, DESCRIPTOR_CRC = 4 };

/* One item of the new file. */
struct edit_item {
    int fd;
    const char *path;
    uint64_t base, size;        /* offset of the item in the file, and its size */
    uint8_t *dir;  /* the bytes of the item after the last payload: the central directory and the end records */
    uint64_t dir_at, dir_len;   /* offset in the item */
    /* the source's files. `was` is the original file among these; put_crc() reads the bytes there that it replaces */
    struct files *files;
    int was;
    uint32_t delta;             /* XOR of the changes of the file's CRC so far */
};

static uint32_t get16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
    return get16(p) | get16(p + 2) << 16;
}

static int put_crc(struct edit_item *it, uint64_t at, uint32_t crc, struct err *e)
{
    const uint8_t b[4] = { (uint8_t)crc, (uint8_t)(crc >> 8), (uint8_t)(crc >> 16), (uint8_t)(crc >> 24) };
    const uint64_t place = it->base + at;
    uint8_t old[4];

    /*
     * Read the old bytes from the source. In the new file, an earlier run that was killed may already have replaced
     * them.
     */
    if (files_read(it->files, it->was, place, old, sizeof old, e) < 0)
        return -1;
    it->delta ^= crc_shift(crc_bytes(0, old, sizeof old) ^ crc_bytes(0, b, sizeof b),
                           files_size(it->files, it->was) - place - sizeof b);
    if (write_all_at(it->fd, b, sizeof b, place) == 0)
        return 0;
    err_sys(e, it->path, "cannot write");
    return -1;
}

static int get(const struct edit_item *it, uint64_t at, void *buf, size_t n, struct err *e)
{
    if (pread(it->fd, buf, n, (off_t)(it->base + at)) == (ssize_t)n)
        return 0;
    err_sys(e, it->path, "cannot read back %zu bytes", n);
    return -1;
}

static int new_crc(const struct edit_item *it, const struct zip_entry *en, uint32_t *crc, struct err *e)
{
    uint8_t *buf = xmalloc(AT_A_TIME);
    int rc = 0;

    *crc = 0;
    for (uint64_t at = 0; at < en->size && rc == 0; at += AT_A_TIME) {
        const size_t n = (size_t)min_u64(AT_A_TIME, en->size - at);

        rc = get(it, en->at + at, buf, n, e);
        *crc = rc == 0 ? crc_bytes(*crc, buf, n) : 0;
    }
    free(buf);
    return rc;
}

/*
 * Returns the offset in the item of the CRC that the central directory stores for the record `name`. Returns 0 if the
 * name is not found. The directory is valid, because zip_open() has checked it in the source.
 */
static uint64_t dir_place(const struct edit_item *it, const char *name)
{
    const size_t len = strlen(name);

    for (uint64_t at = 0; at + DIR_ENTRY <= it->dir_len; at++)
        if (get32(it->dir + at) == 0x02014b50 && get16(it->dir + at + 28) == len &&
            at + DIR_ENTRY + len <= it->dir_len && memcmp(it->dir + at + DIR_ENTRY, name, len) == 0)
            return it->dir_at + at + DIR_CRC;
    return 0;
}

static int seal_record(struct edit_item *it, const struct zip_entry *en, struct err *e)
{
    const uint64_t place = dir_place(it, en->name);
    uint8_t local[LOCAL_HEADER], behind[DESCRIPTOR_CRC];
    uint32_t crc;

    if (!place || en->method != 0) {
        err_data(e, it->path, it->base + en->header_at,
                 "record %s is compressed, or the directory of its file does not list it",
                 en->name);
        return -1;
    }
    if (new_crc(it, en, &crc, e) < 0 || get(it, en->header_at, local, sizeof local, e) < 0)
        return -1;
    if (get16(local + LOCAL_FLAGS) & HAS_DESCRIPTOR) {
        if (get(it, en->at + en->size, behind, sizeof behind, e) < 0 ||
            (get32(behind) == 0x08074b50 && put_crc(it, en->at + en->size + DESCRIPTOR_CRC, crc, e) < 0))
            return -1;
    }
    if (get32(local + LOCAL_CRC) && put_crc(it, en->header_at + LOCAL_CRC, crc, e) < 0)
        return -1;
    return put_crc(it, place, crc, e);
}

/* Returns true if a change overlaps bytes [at, at + len) of the file. */
static bool touched(const struct edit_file *f, uint64_t at, uint64_t len)
{
    for (int i = 0; i < f->n_runs; i++)
        if (f->run[i].at < at + len && f->run[i].at + f->run[i].len > at)
            return true;
    return false;
}

static int seal_item(const struct edit *x, const struct edit_file *f, struct edit_item *it, int file, struct err *e)
{
    struct zip *z = zip_open(x->s->files, file, e);
    int rc = z ? 0 : -1;

    for (int i = 0; z && i < zip_n(z); i++)
        it->dir_at = max_u64(it->dir_at, zip_entry(z, i)->at + zip_entry(z, i)->packed_size);
    if (rc == 0) {
        it->dir_len = it->size - it->dir_at;
        it->dir = xmalloc(it->dir_len + 1);
        rc = get(it, it->dir_at, it->dir, it->dir_len, e);
    }
    for (int i = 0; rc == 0 && i < zip_n(z); i++) {
        const struct zip_entry *en = zip_entry(z, i);

        if (touched(f, it->base + en->at, en->packed_size))
            rc = seal_record(it, en, e);
    }
    free(it->dir);
    zip_close(z);
    return rc;
}

int edit_items_seal(const struct edit *x, const struct edit_file *f, const char *path, uint32_t *delta, struct err *e)
{
    uint64_t ignored;
    const char *of = files_path(x->s->files, f->file, &ignored);
    int fd = open(path, O_RDWR | O_CLOEXEC), rc = fd < 0 ? -1 : 0;

    if (rc < 0)
        err_sys(e, path, "cannot open");
    for (int i = 0; i < x->s->n_items && rc == 0; i++) {
        const struct source_item *item = &x->s->item[i];
        struct edit_item it = { .fd = fd, .path = path, .files = x->s->files, .was = f->file, .size = item->len };
        const bool here = strcmp(files_path(x->s->files, item->file, &it.base), of) == 0;

        it.base += item->at;
        if (here && touched(f, it.base, it.size))
            rc = seal_item(x, f, &it, files_add_item(x->s->files, item->file, item->at, item->len, path), e);
        *delta ^= it.delta;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}
