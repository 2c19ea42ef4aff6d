/*
 * delta_read.c - open a delta file and apply its blocks
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/format/delta/delta_block.h"
#include "libcommon/format/delta/delta_index.h"

struct delta {
    char *path;
    struct files *files;
    int file;
    struct arena *arena;
    struct delta_index x;
    uint32_t index_crc;
};

bool delta_is_file(const char *path)
{
    uint8_t head[DELTA_HEAD_BYTES];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool is = fd >= 0 && pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head && delta_is_head(head);

    if (fd >= 0)
        close(fd);
    return is;
}

static int read_delta_tail(const struct delta *d, struct delta_tail *t, struct err *e)
{
    const uint64_t size = files_size(d->files, d->file), least = DELTA_HEAD_BYTES + DELTA_TAIL_BYTES;
    uint8_t head[DELTA_HEAD_BYTES], tail[DELTA_TAIL_BYTES];

    if (size >= DELTA_HEAD_BYTES && files_read(d->files, d->file, 0, head, sizeof head, e) < 0)
        return -1;
    if (size < DELTA_HEAD_BYTES || !delta_is_head(head)) {
        err_data(e, d->path, 0, "is not a patch of version 1; 'ckpt-inspect diff --patch' writes patches");
        return -1;
    }
    if (size >= least && files_read(d->files, d->file, size - sizeof tail, tail, sizeof tail, e) < 0)
        return -1;
    if (size < least || !delta_get_tail(tail, t) || t->index_at < DELTA_HEAD_BYTES || t->index_len > size - least ||
        t->index_at != size - DELTA_TAIL_BYTES - t->index_len) {
        err_data(e, d->path, size, "the patch is cut short or does not end with its index; copy it again");
        return -1;
    }
    return 0;
}

static int read_delta_index(struct delta *d, const struct delta_tail *t, struct err *e)
{
    uint8_t *p = xmalloc(t->index_len + 1);
    int rc = files_read(d->files, d->file, t->index_at, p, t->index_len, e);

    if (rc == 0 && crc_bytes(0, p, t->index_len) != t->index_crc) {
        err_data(e, d->path, t->index_at, "the index of the patch has a wrong checksum");
        rc = -1;
    }
    if (rc == 0)
        rc = delta_get_index(&d->x, d->arena, p, t, d->path, e);
    d->index_crc = t->index_crc;
    free(p);
    return rc;
}

struct delta *delta_open(const char *path, struct err *e)
{
    struct delta *d;
    struct delta_tail t;
    struct stat st;

    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        err_data(e, path, ERR_NO_BYTE, "is a folder, not a patch of 'ckpt-inspect diff --patch'; the arguments of "
                                       "'ckpt-edit apply' are PATCH IN OUT");
        return NULL;
    }
    d = xcalloc(1, sizeof *d);
    d->path = xstrdup(path);
    d->files = files_new();
    d->arena = arena_new(0);
    d->file = files_add_path(d->files, path, e);
    if (d->file < 0 || read_delta_tail(d, &t, e) < 0 || read_delta_index(d, &t, e) < 0) {
        delta_close(d);
        return NULL;
    }
    return d;
}

void delta_close(struct delta *d)
{
    if (!d)
        return;
    arena_free(d->arena);
    files_free(d->files);
    free(d->path);
    free(d);
}

const struct delta_index *delta_index(const struct delta *d)
{
    return &d->x;
}

const char *delta_path(const struct delta *d)
{
    return d->path;
}

uint32_t delta_digest(const struct delta *d)
{
    return d->index_crc;
}

int delta_apply(const struct delta *d, struct delta_coder *k, const struct delta_tensor *t, uint64_t at,
                uint8_t *bytes, struct err *e)
{
    const uint32_t n = delta_block_bytes(t, at);
    const struct delta_block *b = &d->x.block[t->first_block + at / DELTA_BLOCK];
    uint8_t *packed;
    int rc;

    if (b->len == 0)
        return 0;
    packed = xmalloc(b->len);
    rc = files_read(d->files, d->file, b->at, packed, b->len, e);
    if (rc == 0 && (crc_bytes(0, packed, b->len) != b->crc ||
                    delta_block_unpack(k, t->dtype, packed, b->len, bytes, n) < 0)) {
        err_data(e, d->path, b->at, "the block for bytes %llu to %llu of %s %s is damaged", (unsigned long long)at,
                 (unsigned long long)(at + n - 1), t->name, state_name(t->state));
        rc = -1;
    }
    free(packed);
    return rc;
}
