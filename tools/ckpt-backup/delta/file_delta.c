/* file_delta.c - write and read the differences of files from those of a base */
#include "tools/ckpt-backup/delta/file_delta.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/format/pack/planes.h"

#define DELTA_MAGIC "SKDELTA1"

enum { DELTA_FRAME = 1 << 20, HEAD_BYTES = 16, ROW_BYTES = 24, FRAME_HEAD_BYTES = 8 };

/* A delta that is written or read from its beginning to its end. */
struct delta_stream {
    struct file_delta *d;
    int fd;
    uint64_t at;
    uint32_t crc;               /* of the bytes before `at` */
    struct planes *planes;
    uint8_t *raw, *base, *packed;
};

/* A file of one of the folders. */
struct compared_file {
    char *path;
    int fd;
    uint64_t size_bytes, at;
    uint32_t crc;               /* of the bytes before `at` */
};

static int stream_open(struct delta_stream *s, struct file_delta *d, int flags, struct err *e)
{
    *s = (struct delta_stream){ .d = d, .fd = open(d->path, flags | O_CLOEXEC, 0666) };
    if (s->fd < 0) {
        err_sys(e, d->path, "cannot open");
        return -1;
    }
    posix_fadvise(s->fd, 0, 0, POSIX_FADV_DONTNEED);    /* what is read comes from the disk */
    s->planes = planes_new(DELTA_FRAME);
    s->raw = xmalloc(DELTA_FRAME);
    s->base = xmalloc(DELTA_FRAME);
    s->packed = xmalloc(planes_bound(DELTA_FRAME));
    return 0;
}

static void stream_close(struct delta_stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    planes_free(s->planes);
    free(s->raw);
    free(s->base);
    free(s->packed);
}

static int stream_put(struct delta_stream *s, const void *p, size_t n, struct err *e)
{
    if (write_all_at(s->fd, p, n, s->at) < 0) {
        err_sys(e, s->d->path, "cannot write");
        return -1;
    }
    s->crc = crc_bytes(s->crc, p, n);
    s->at += n;
    return 0;
}

static int refuse_damaged_delta(const struct delta_stream *s, const char *what, struct err *e)
{
    err_data(e, s->d->path, s->at, "%s; the delta is damaged", what);
    return -1;
}

static int stream_get(struct delta_stream *s, void *p, size_t n, struct err *e)
{
    if (n > s->d->size_bytes - s->at)
        return refuse_damaged_delta(s, "ends in the middle of a frame", e);
    if (read_all_at(s->fd, p, n, s->at) < 0) {
        err_sys(e, s->d->path, "cannot read");
        return -1;
    }
    s->crc = crc_bytes(s->crc, p, n);
    s->at += n;
    return 0;
}

static int input_open(struct compared_file *in, const char *folder, const char *name, uint64_t size_bytes,
                      struct err *e)
{
    struct stat st;

    *in = (struct compared_file){ .path = path_join(folder, name), .size_bytes = size_bytes };
    in->fd = file_open_regular(in->path, &st, e);
    if (in->fd < 0)
        return -1;
    if ((uint64_t)st.st_size != size_bytes) {
        err_data(e, in->path, ERR_NO_BYTE, "has %lld bytes, expected %" PRIu64, (long long)st.st_size, size_bytes);
        return -1;
    }
    posix_fadvise(in->fd, 0, 0, POSIX_FADV_DONTNEED);
    return 0;
}

static void input_close(struct compared_file *in)
{
    if (in->path && in->fd >= 0)
        close(in->fd);
    free(in->path);
}

/* Read the next bytes of the file, at most `most`. Sets *n to their number. */
static int input_next(struct compared_file *in, uint8_t *to, uint32_t most, uint32_t *n, struct err *e)
{
    *n = in->size_bytes - in->at < most ? (uint32_t)(in->size_bytes - in->at) : most;
    if (read_all_at(in->fd, to, *n, in->at) < 0) {
        err_sys(e, in->path, "cannot read");
        return -1;
    }
    in->crc = crc_bytes(in->crc, to, *n);
    in->at += *n;
    return 0;
}

/* Read the rest of a file of the base, and compare its CRC-32. */
static int finish_base(struct delta_stream *s, struct compared_file *base, const struct delta_file *f, struct err *e)
{
    uint32_t n;

    while (base->at < base->size_bytes)
        if (input_next(base, s->base, DELTA_FRAME, &n, e) < 0)
            return -1;
    if (base->crc == f->base_crc)
        return 0;
    err_data(e, base->path, ERR_NO_BYTE, "has CRC-32 %08x, but the delta %s needs a base with CRC-32 %08x; the base is "
                                         "damaged or another one", base->crc, s->d->path, f->base_crc);
    return -1;
}

static int frame_width(uint32_t n)
{
    return n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1;
}

/* Exchange raw[n] and its difference from the next bytes of the base. The base may have fewer bytes, or none. */
static int apply_base(struct delta_stream *s, struct compared_file *base, uint32_t n, struct err *e)
{
    uint32_t n_base = 0;

    if (base->path && input_next(base, s->base, n, &n_base, e) < 0)
        return -1;
    for (uint32_t i = 0; i < n_base; i++)
        s->raw[i] ^= s->base[i];
    return 0;
}

static bool is_delta_stopped(const struct file_delta *d, struct err *e)
{
    if (!d->stopped || !d->stopped())
        return false;
    err_stop(e);
    return true;
}

/* ---- writing ---- */

static int write_frames(struct delta_stream *s, struct compared_file *in, struct compared_file *base, struct err *e)
{
    uint8_t head[FRAME_HEAD_BYTES];
    uint32_t n, len;

    while (in->at < in->size_bytes) {
        if (is_delta_stopped(s->d, e) || input_next(in, s->raw, DELTA_FRAME, &n, e) < 0 ||
            apply_base(s, base, n, e) < 0)
            return -1;
        len = planes_pack(s->planes, s->raw, n, frame_width(n), s->packed);
        put_le32(head, len);
        put_le32(head + 4, crc_bytes(0, s->packed, len));
        if (stream_put(s, head, sizeof head, e) < 0 || stream_put(s, s->packed, len, e) < 0)
            return -1;
        progress_add(s->d->progress, n);
    }
    return 0;
}

static int write_delta_file(struct delta_stream *s, const struct delta_file *f, struct err *e)
{
    struct compared_file in = { .fd = -1 }, base = { .fd = -1 };
    int rc = input_open(&in, s->d->folder, f->name, f->size_bytes, e);

    if (rc == 0 && f->has_base)
        rc = input_open(&base, s->d->base, f->name, f->base_bytes, e);
    if (rc == 0)
        rc = write_frames(s, &in, &base, e);
    if (rc == 0 && f->has_base)
        rc = finish_base(s, &base, f, e);
    if (rc == 0 && in.crc != f->crc) {
        err_data(e, in.path, ERR_NO_BYTE, "changed while it was copied");
        rc = -1;
    }
    input_close(&in);
    input_close(&base);
    return rc;
}

static void put_row(const struct delta_file *f, uint8_t row[ROW_BYTES])
{
    put_le64(row, f->size_bytes);
    put_le64(row + 8, f->has_base ? f->base_bytes : 0);
    put_le32(row + 16, f->has_base ? f->base_crc : 0);
    put_le32(row + 20, f->has_base);
}

static int write_table(struct delta_stream *s, struct err *e)
{
    const size_t n = (size_t)s->d->n * ROW_BYTES;
    uint8_t head[HEAD_BYTES] = DELTA_MAGIC, *rows = xcalloc(n + 1, 1);
    int rc;

    for (int i = 0; i < s->d->n; i++)
        put_row(&s->d->file[i], rows + (size_t)i * ROW_BYTES);
    put_le32(head + 8, (uint32_t)s->d->n);
    put_le32(head + 12, crc_bytes(0, rows, n));
    rc = stream_put(s, head, sizeof head, e) < 0 ? -1 : stream_put(s, rows, n, e);
    free(rows);
    return rc;
}

int delta_write(struct file_delta *d, struct err *e)
{
    struct delta_stream s;
    int rc = stream_open(&s, d, O_WRONLY | O_CREAT | O_TRUNC, e);

    if (rc == 0)
        rc = write_table(&s, e);
    for (int i = 0; i < d->n && rc == 0; i++)
        rc = write_delta_file(&s, &d->file[i], e);
    if (rc == 0 && fsync(s.fd) < 0) {
        err_sys(e, d->path, "cannot write");
        rc = -1;
    }
    d->size_bytes = s.at;
    d->crc = s.crc;
    stream_close(&s);
    return rc;
}

/* ---- reading ---- */

/* Take what the row of a file states about the base. Returns false if it does not fit the file in the receipt. */
static bool get_row(struct delta_file *f, const uint8_t row[ROW_BYTES])
{
    f->base_bytes = get_le64(row + 8);
    f->base_crc = get_le32(row + 16);
    f->has_base = get_le32(row + 20) == 1;
    return get_le64(row) == f->size_bytes && get_le32(row + 20) <= 1;
}

static int read_table(struct delta_stream *s, struct err *e)
{
    const size_t n = (size_t)s->d->n * ROW_BYTES;
    uint8_t head[HEAD_BYTES], *rows = xcalloc(n + 1, 1);
    bool fits = true;
    int rc = stream_get(s, head, sizeof head, e);

    if (rc == 0 && (memcmp(head, DELTA_MAGIC, 8) != 0 || get_le32(head + 8) != (uint32_t)s->d->n))
        rc = refuse_damaged_delta(s, "does not begin with a table of the files in its receipt", e);
    if (rc == 0)
        rc = stream_get(s, rows, n, e);
    for (int i = 0; i < s->d->n && rc == 0; i++)
        fits = get_row(&s->d->file[i], rows + (size_t)i * ROW_BYTES) && fits;
    if (rc == 0 && (!fits || crc_bytes(0, rows, n) != get_le32(head + 12)))
        rc = refuse_damaged_delta(s, "the table before this byte has a wrong CRC-32 or other files than the receipt",
                                  e);
    free(rows);
    return rc;
}

/* Read the next frame, which has n bytes of a file, to s->raw. */
static int read_delta_frame(struct delta_stream *s, uint32_t n, struct err *e)
{
    uint8_t head[FRAME_HEAD_BYTES];
    uint32_t len;

    if (stream_get(s, head, sizeof head, e) < 0)
        return -1;
    len = get_le32(head);
    if (len > planes_bound(n))
        return refuse_damaged_delta(s, "a frame is longer than its contents can be", e);
    if (stream_get(s, s->packed, len, e) < 0)
        return -1;
    if (crc_bytes(0, s->packed, len) != get_le32(head + 4) ||
        planes_unpack(s->planes, s->packed, len, frame_width(n), s->raw, n) < 0)
        return refuse_damaged_delta(s, "a frame that ends here has a wrong CRC-32", e);
    return 0;
}

static int read_frames(struct delta_stream *s, const struct delta_file *f, struct compared_file *base, int out,
                       struct err *e)
{
    uint32_t crc = 0, n;

    for (uint64_t at = 0; at < f->size_bytes; at += n) {
        n = f->size_bytes - at < DELTA_FRAME ? (uint32_t)(f->size_bytes - at) : DELTA_FRAME;
        if (is_delta_stopped(s->d, e) || read_delta_frame(s, n, e) < 0 || apply_base(s, base, n, e) < 0)
            return -1;
        crc = crc_bytes(crc, s->raw, n);
        if (out >= 0 && write_all_at(out, s->raw, n, at) < 0) {
            err_sys(e, s->d->folder, "cannot write %s", f->name);
            return -1;
        }
        progress_add(s->d->progress, n);
    }
    if (f->has_base && finish_base(s, base, f, e) < 0)
        return -1;
    if (crc == f->crc)
        return 0;
    err_data(e, s->d->path, ERR_NO_BYTE, "gives %s with CRC-32 %08x, but the receipt lists %08x; the delta is damaged",
             f->name, crc, f->crc);
    return -1;
}

static int read_delta_file(struct delta_stream *s, const struct delta_file *f, struct err *e)
{
    char *path = s->d->folder ? path_join(s->d->folder, f->name) : NULL;
    struct compared_file base = { .fd = -1 };
    int out = path ? open(path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    int rc = path && out < 0 ? -1 : 0;

    if (rc < 0)
        err_sys(e, path, "cannot open");
    if (rc == 0 && f->has_base)
        rc = input_open(&base, s->d->base, f->name, f->base_bytes, e);
    if (rc == 0)
        rc = read_frames(s, f, &base, out, e);
    if (rc == 0 && out >= 0 && fsync(out) < 0) {
        err_sys(e, path, "cannot write");
        rc = -1;
    }
    if (out >= 0)
        close(out);
    input_close(&base);
    free(path);
    return rc;
}

int delta_read(struct file_delta *d, struct err *e)
{
    struct delta_stream s;
    struct stat st;
    int rc = stream_open(&s, d, O_RDONLY | O_NOFOLLOW, e);

    if (rc == 0 && (fstat(s.fd, &st) < 0 || (uint64_t)st.st_size != d->size_bytes))
        rc = refuse_damaged_delta(&s, "has another size than its receipt lists", e);
    if (rc == 0)
        rc = read_table(&s, e);
    for (int i = 0; i < d->n && rc == 0; i++)
        rc = read_delta_file(&s, &d->file[i], e);
    if (rc == 0 && (s.at != d->size_bytes || s.crc != d->crc))
        rc = refuse_damaged_delta(&s, "its bytes have another CRC-32 than its receipt lists", e);
    stream_close(&s);
    return rc;
}
