/*
 * stream.c - read plain files with read(), gzip with zlib, and the other formats with libarchive
 *
 * gzip is read with zlib, because libarchive's gzip reader checks neither the length nor the CRC. The filters of
 * libarchive get their input from the buffer in which the format was detected, because standard input cannot be read
 * twice.
 */
#include "libcommon/format/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include "libcommon/base/mem.h"

enum { BUFFER = 256 << 10, MAGIC = 10 };

struct packing {
    const char *name;
    size_t at, n;                       /* offset and length of the magic */
    const char *magic;
    int (*filter)(struct archive *);    /* the filter of libarchive; NULL: zlib is used */
    const char *refused;                /* name of a program that decompresses this format, which stream_open() refuses;
                                         * NULL: the format is supported */
};

struct stream {
    const char *path;                   /* name of the file in messages */
    char *copy;
    int fd;
    bool (*stopped)(void);
    const struct packing *packing;      /* NULL: the file is not compressed */
    uint8_t *in;                        /* [BUFFER], bytes of the file */
    size_t at, len;                     /* in[at..len) has not been used yet */
    bool file_end, ended;
    uint64_t taken;
    /* error of the current call; libarchive's callbacks have no argument for it */
    struct err *e;
    z_stream z;
    bool z_open, z_between;             /* z_between: one gzip member has ended, and the next one has not begun */
    struct archive *a;
};

/* ---- the file ---- */

/* Read more bytes and append them to in[0..len). Returns 1 on success, 0 at the end of the file, or -1 on failure. */
static int read_stream_input(struct stream *s, struct err *e)
{
    ssize_t n;

    do {
        if (s->stopped && s->stopped()) {
            err_stop(e);
            return -1;
        }
        n = read(s->fd, s->in + s->len, BUFFER - s->len);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        err_sys(e, s->path, "cannot read at byte %llu", (unsigned long long)s->taken);
        return -1;
    }
    s->len += (size_t)n;
    s->taken += (uint64_t)n;
    s->file_end = n == 0;
    return n > 0;
}

/*
 * Read new bytes if all bytes of in[] have been used. Returns 1 if there are bytes, 0 at the end of the file, or -1 on
 * failure.
 */
static int refill_stream_input(struct stream *s, struct err *e)
{
    if (s->at < s->len)
        return 1;
    if (s->file_end)
        return 0;
    s->at = s->len = 0;
    return read_stream_input(s, e);
}

/*
 * Read enough bytes to detect the format. More than one read may be needed, because a pipe may deliver the first bytes
 * one at a time.
 */
static int read_stream_magic(struct stream *s, struct err *e)
{
    while (s->len < MAGIC && !s->file_end)
        if (read_stream_input(s, e) < 0)
            return -1;
    return 0;
}

/* ---- gzip ---- */

static int report_stream_damage(const struct stream *s, size_t left, const char *what, struct err *e)
{
    err_data(e, s->path, s->taken - left, "%s: the file is damaged or was cut short; download it again", what);
    return -1;
}

static int open_gzip(struct stream *s, struct err *e)
{
    if (inflateInit2(&s->z, 15 + 16) != Z_OK) {
        err_data(e, s->path, 0, "zlib cannot begin");
        return -1;
    }
    s->z_open = true;
    return 0;
}

/*
 * Continue after a gzip member. Zeros that pad a block are skipped, and the next member is started. Returns 1 if there
 * is another member, 0 at the end of the file, or -1 on failure.
 */
static int next_member(struct stream *s, struct err *e)
{
    int more;

    while ((more = refill_stream_input(s, e)) > 0 && s->in[s->at] == 0)
        s->at++;
    if (more <= 0)
        return more;
    if (inflateReset(&s->z) != Z_OK)
        return report_stream_damage(s, s->len - s->at, "gzip", e);
    s->z_between = false;
    return 1;
}

static ssize_t read_gzip(struct stream *s, void *buf, size_t n, struct err *e)
{
    s->z.next_out = buf;
    s->z.avail_out = (uInt)(n > 1 << 30 ? 1 << 30 : n);
    n = s->z.avail_out;
    while (s->z.avail_out == n) {
        int rc, more = s->z_between ? next_member(s, e) : refill_stream_input(s, e);

        if (more < 0)
            return -1;
        if (more == 0)
            return s->z_between ? 0 : report_stream_damage(s, 0, "gzip: no end", e);
        s->z.next_in = s->in + s->at;
        s->z.avail_in = (uInt)(s->len - s->at);
        rc = inflate(&s->z, Z_NO_FLUSH);
        s->at = s->len - s->z.avail_in;
        if (rc == Z_STREAM_END)
            s->z_between = true;
        else if (rc != Z_OK)
            return report_stream_damage(s, s->z.avail_in, s->z.msg ? s->z.msg : "gzip", e);
    }
    return (ssize_t)(n - s->z.avail_out);
}

/* ---- libarchive ---- */

static la_ssize_t feed_archive_filter(struct archive *a, void *ctx, const void **buf)
{
    struct stream *s = ctx;
    int more = refill_stream_input(s, s->e);
    size_t n = s->len - s->at;

    if (more < 0) {
        archive_set_error(a, EIO, "the file cannot be read");
        return -1;
    }
    *buf = s->in + s->at;
    s->at = s->len;
    return more ? (la_ssize_t)n : 0;
}

/*
 * Set *e after a failure of libarchive. If read_stream_input() has failed, its error is kept; otherwise damage is
 * reported. Returns -1.
 */
static int archive_fault(struct stream *s, struct err *e)
{
    if (e->kind == ERR_NONE) {
        const char *what = archive_error_string(s->a);
        char *text = str_fmt("%s: %s", s->packing->name, what ? what : "no sound data");

        report_stream_damage(s, 0, text, e);
        free(text);
    }
    return -1;
}

static int open_filter(struct stream *s, int (*filter)(struct archive *), struct err *e)
{
    struct archive_entry *entry;

    s->a = archive_read_new();
    s->e = e;
    filter(s->a);
    archive_read_support_format_raw(s->a);
    archive_read_support_format_empty(s->a);
    if (archive_read_open(s->a, s, NULL, feed_archive_filter, NULL) != ARCHIVE_OK)
        return archive_fault(s, e);
    switch (archive_read_next_header(s->a, &entry)) {
    case ARCHIVE_OK: break;
    case ARCHIVE_EOF: s->ended = true; break;           /* the compressed data is empty */
    default: return archive_fault(s, e);
    }
    /*
     * If the input is too short for its filter, libarchive passes it through unchanged. Report such input as damaged.
     */
    if (archive_filter_code(s->a, 0) == ARCHIVE_FILTER_NONE)
        return report_stream_damage(s, 0, s->packing->name, e);
    return 0;
}

static ssize_t read_filter(struct stream *s, void *buf, size_t n, struct err *e)
{
    la_ssize_t k;

    s->e = e;
    k = archive_read_data(s->a, buf, n);
    return k < 0 ? archive_fault(s, e) : (ssize_t)k;
}

/* ---- all ---- */

static const struct packing packings[] = {
    { "gzip", 0, 2, "\x1f\x8b", NULL, NULL },
    { "zstd", 0, 4, "\x28\xb5\x2f\xfd", archive_read_support_filter_zstd, NULL },
    { "xz", 0, 6, "\xfd" "7zXZ\0", archive_read_support_filter_xz, NULL },
    /*
     * bzip2 is refused. A file may consist of several bzip2 streams, and libarchive treats a damaged second stream as
     * the end of the file.
     */
    { "bzip2", 4, 6, "1AY&SY", NULL, "bzcat" },
    { "lz4", 0, 4, "\x04\x22\x4d\x18", NULL, "lz4 -dc" },
    { "zip", 0, 4, "PK\3\4", NULL, "unzip -p" },
};

static int unpack_begin(struct stream *s, struct err *e)
{
    for (size_t i = 0; !s->packing && i < sizeof packings / sizeof *packings; i++) {
        const struct packing *p = &packings[i];

        if (s->len >= p->at + p->n && memcmp(s->in + p->at, p->magic, p->n) == 0)
            s->packing = p;
    }
    if (!s->packing)
        return 0;
    if (s->packing->refused) {
        err_data(e, s->path, 0, "packed by %s, which is not read here: %s FILE | ... --input -", s->packing->name,
                 s->packing->refused);
        return -1;
    }
    return s->packing->filter ? open_filter(s, s->packing->filter, e) : open_gzip(s, e);
}

struct stream *stream_open(const char *path, bool (*stopped)(void), struct err *e)
{
    struct stream *s = xcalloc(1, sizeof *s);
    bool piped = strcmp(path, "-") == 0;

    s->path = s->copy = xstrdup(piped ? "standard input" : path);
    s->stopped = stopped;
    s->fd = piped ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0) {
        err_sys(e, path, "cannot open");
        stream_close(s);
        return NULL;
    }
    s->in = xmalloc(BUFFER);
    if (read_stream_magic(s, e) < 0 || unpack_begin(s, e) < 0) {
        stream_close(s);
        return NULL;
    }
    return s;
}

void stream_close(struct stream *s)
{
    if (!s)
        return;
    if (s->fd > STDIN_FILENO)
        close(s->fd);
    if (s->z_open)
        inflateEnd(&s->z);
    if (s->a)
        archive_read_free(s->a);
    free(s->in);
    free(s->copy);
    free(s);
}

static ssize_t read_plain(struct stream *s, void *buf, size_t n, struct err *e)
{
    int more = refill_stream_input(s, e);
    size_t have = s->len - s->at;

    if (more <= 0)
        return more;
    if (n > have)
        n = have;
    memcpy(buf, s->in + s->at, n);
    s->at += n;
    return (ssize_t)n;
}

ssize_t stream_read(struct stream *s, void *buf, size_t n, struct err *e)
{
    ssize_t k = 0;

    if (s->ended || n == 0)
        return 0;
    if (!s->packing)
        k = read_plain(s, buf, n, e);
    else if (s->packing->filter)
        k = read_filter(s, buf, n, e);
    else
        k = read_gzip(s, buf, n, e);
    s->ended = k == 0;
    return k;
}

uint64_t stream_input_bytes(const struct stream *s) { return s->taken; }
const char *stream_packing(const struct stream *s) { return s->packing ? s->packing->name : NULL; }
