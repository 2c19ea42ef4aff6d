/*
 * pack_direct.c - read and write whole blocks with O_DIRECT
 */
#include "libcommon/format/pack/pack_direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "libcommon/base/mem.h"

uint8_t *pack_direct_new(size_t n)
{
    uint8_t *p = aligned_alloc(PACK_ALIGN, align_up(n, PACK_ALIGN) + PACK_ALIGN);

    if (!p)
        abort();                /* a few MiB could not be allocated: abort like xmalloc() */
    return p;
}

uint8_t *pack_direct_place(uint8_t *room, uint64_t at)
{
    return room + at % PACK_ALIGN;
}

/* ---- reading ---- */

/*
 * Read up to `most` bytes at offset `at`. Returns the number of bytes read, which is less than `most` only at the end
 * of the file. Returns -1 on error.
 */
static ssize_t pread_blocks(int fd, uint8_t *p, size_t most, uint64_t at)
{
    size_t n = 0;

    while (n < most) {
        ssize_t k = pread(fd, p + n, most - n, (off_t)(at + n));

        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return -1;
        n += (size_t)k;
        /*
         * A read that returns no bytes is at the end of the file. After a read that does not end at a block, O_DIRECT
         * cannot continue.
         */
        if (k == 0 || n % PACK_ALIGN)
            break;
    }
    return (ssize_t)n;
}

uint8_t *pack_direct_read(struct files *f, int file, uint64_t at, size_t n, uint8_t *room, struct err *e)
{
    uint8_t *p = pack_direct_place(room, at);
    uint64_t base = 0, from, to;
    ssize_t got = -1;
    int fd = -1;

    if (n >= PACK_ALIGN && files_path(f, file, &base) && base % PACK_ALIGN == 0)
        fd = files_fd(f, file, true, e);
    if (fd >= 0) {
        from = align_down(base + at, PACK_ALIGN);
        to = align_up(base + at + n, PACK_ALIGN);
        got = pread_blocks(fd, room, to - from, from);
        files_fd_done(f, file);
        if (got >= 0 && (uint64_t)got >= base + at + n - from)
            return p;
    }
    /* If O_DIRECT was refused or failed, files_read() reads the bytes or reports the error. */
    return e->kind != ERR_NONE || files_read(f, file, at, p, n, e) < 0 ? NULL : p;
}

/* ---- writing ---- */

int pack_direct_open(struct pack_direct_file *f, const char *path)
{
    f->fd = open(path, O_WRONLY | O_CLOEXEC);
    f->fd_direct = f->fd < 0 ? -1 : open(path, O_WRONLY | O_CLOEXEC | O_DIRECT);
    return f->fd < 0 ? -1 : 0;
}

int pack_direct_write(const struct pack_direct_file *f, const uint8_t *p, size_t n, uint64_t at)
{
    uint64_t first = align_up(at, PACK_ALIGN), last = align_down(at + n, PACK_ALIGN);

    if (f->fd_direct < 0 || first >= last)
        return write_all_at(f->fd, p, n, at);
    /*
     * EINVAL means that the file system requires larger blocks. In this case write everything through the page cache.
     */
    if (write_all_at(f->fd_direct, p + (first - at), last - first, first) < 0)
        return errno == EINVAL ? write_all_at(f->fd, p, n, at) : -1;
    if (write_all_at(f->fd, p, first - at, at) < 0)
        return -1;
    return write_all_at(f->fd, p + (last - at), at + n - last, last);
}

int pack_direct_close(struct pack_direct_file *f)
{
    int rc = f->fd < 0 ? 0 : fsync(f->fd), saved = errno;

    if (f->fd_direct >= 0)
        close(f->fd_direct);
    if (f->fd >= 0)
        close(f->fd);
    *f = (struct pack_direct_file){ -1, -1 };
    errno = saved;
    return rc;
}
