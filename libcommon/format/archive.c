/*
 * archive.c - two uses of libarchive: list a tar, and decompress the compressed records of a zip
 *
 * Only the formats and filters named in this file are enabled. None of them runs another program.
 */
#include "libcommon/format/archive.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/mem.h"

enum { TAR_BLOCK = 512, PAX_MAX = 1 << 20, BUFFER = 1 << 20, MAX_MEMBERS = 1 << 20 };

/* ---- spool files ---- */

/* Free space, in bytes, that must remain in the spool file's file system. */
#define SPOOL_RESERVE ((uint64_t)64 << 20)

const char archive_stdin[] = "standard input";

struct spool {
    int fd;
    const char *dir;
    /*
     * size: bytes written so far; room: bytes that may still be written, according to the last check of the free space
     */
    uint64_t size, room;
};

/*
 * Open a temporary file without a name. The kernel frees the file when its last descriptor is closed, even if the
 * process crashes.
 */
static int spool_open(struct spool *s, struct err *e)
{
    char *path;

    s->dir = getenv("TMPDIR");
    if (!s->dir || !*s->dir)
        s->dir = "/tmp";
    s->fd = open(s->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (s->fd >= 0)
        return 0;
    path = path_join(s->dir, "shardkit-XXXXXX");        /* NFS and some other file systems do not support O_TMPFILE, so
                                                         * a named file is created */
    s->fd = mkostemp(path, O_CLOEXEC);
    if (s->fd < 0)
        err_sys(e, path, "cannot create a temporary file");
    else
        unlink(path);
    free(path);
    return s->fd < 0 ? -1 : 0;
}

/*
 * Check that n more bytes fit into the file system of the spool file. The free space is queried about once per GiB, not
 * for every block. Returns -1 with ENOSPC if the space is insufficient.
 */
static int spool_room(struct spool *s, uint64_t n, struct err *e)
{
    struct statvfs v;
    uint64_t free_bytes;

    if (s->room >= n) {
        s->room -= n;
        return 0;
    }
    if (fstatvfs(s->fd, &v) < 0) {
        err_sys(e, s->dir, "cannot see the free space");
        return -1;
    }
    free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    if (free_bytes < n || free_bytes - n < SPOOL_RESERVE) {
        errno = ENOSPC;
        err_sys(e, s->dir, "unpacking needs %llu bytes more, %llu are free; set TMPDIR to a larger file system",
                (unsigned long long)n, (unsigned long long)free_bytes);
        return -1;
    }
    s->room = min_u64(free_bytes - n - SPOOL_RESERVE, (uint64_t)1 << 30);
    return 0;
}

static int spool_write(struct spool *s, const void *p, size_t n, struct err *e)
{
    if (spool_room(s, n, e) < 0)
        return -1;
    if (write_all_at(s->fd, p, n, s->size) < 0) {
        err_sys(e, s->dir, "cannot write %zu bytes to a temporary file", n);
        return -1;
    }
    s->size += n;
    return 0;
}

/* Size and CRC of the bytes that spool_entry() wrote. */
struct spooled {
    uint64_t size;
    uint32_t crc;
};

/*
 * Copy the rest of the current entry to the spool file. Returns -1 if the entry is longer than w->size bytes or cannot
 * be decompressed.
 */
static int spool_entry(struct spool *s, struct archive *a, const char *path, const struct archive_want *w,
                       struct spooled *got, struct err *e)
{
    uint8_t *buf = xmalloc(BUFFER);
    int rc = -1;
    la_ssize_t n;

    *got = (struct spooled){0};
    while ((n = archive_read_data(a, buf, BUFFER)) > 0) {
        if ((uint64_t)n > w->size - got->size) {
            err_data(e, path, ERR_NO_BYTE, "record %s is longer than the %llu bytes it should have", w->name,
                     (unsigned long long)w->size);
            goto out;
        }
        if (spool_write(s, buf, (size_t)n, e) < 0)
            goto out;
        got->crc = crc_bytes(got->crc, buf, (size_t)n);
        got->size += (uint64_t)n;
    }
    if (n < 0) {
        err_data(e, path, ERR_NO_BYTE, "record %s cannot be decompressed: %s", w->name, archive_error_string(a));
        goto out;
    }
    rc = 0;
out:
    free(buf);
    return rc;
}

/*
 * Return the name of the entry as the archive stores it. In a C locale, archive_entry_pathname() supports only ASCII.
 */
static const char *entry_name(struct archive_entry *x)
{
    const char *name = archive_entry_pathname_utf8(x);

    return name ? name : archive_entry_pathname(x);
}

/* ---- tar ---- */

static bool tar_checksum_ok(const uint8_t *h)
{
    unsigned sum = 0;

    for (int i = 0; i < TAR_BLOCK; i++)
        sum += i >= 148 && i < 156 ? ' ' : h[i];
    return h[0] && strtoul((const char[]){ (char)h[148], (char)h[149], (char)h[150], (char)h[151], (char)h[152],
                                           (char)h[153], (char)h[154], 0 }, NULL, 8) == sum;
}

bool archive_is_tar(const char *path)
{
    static const struct { uint8_t n, magic[6]; } packed[] = {
        {2, {0x1f, 0x8b}}, {4, {0x28, 0xb5, 0x2f, 0xfd}}, {6, {0xfd, '7', 'z', 'X', 'Z', 0}},
        {3, {'B', 'Z', 'h'}}, {4, {0x04, 0x22, 0x4d, 0x18}},
    };
    uint8_t head[TAR_BLOCK] = {0};
    struct stat st;
    ssize_t n = -1;
    int fd = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;

    if (fd < 0)
        return false;
    n = pread(fd, head, sizeof head, 0);
    close(fd);
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        if (n >= packed[i].n && memcmp(head, packed[i].magic, packed[i].n) == 0)
            return true;
    return n == TAR_BLOCK && tar_checksum_ok(head);
}

struct lister {
    struct files *f;
    const char *path;
    struct err *e;
    struct archive *a;
    int whole;                          /* number of the archive itself in struct files */
    bool packed;
    struct spool spool;
    struct archive_member *member;
    uint64_t *at, *size;                /* offset and size of each member in the archive or the spool file */
    int n, cap, cap_at, cap_size;
};

static int bad_tar(struct lister *l, const char *what)
{
    int64_t at = archive_read_header_position(l->a);

    /*
     * If the archive is truncated, libarchive steps back by more bytes than it has read, and the position becomes
     * negative.
     */
    err_data(l->e, l->path, at < 0 ? ERR_NO_BYTE : (uint64_t)at, "damaged archive: %s", what);
    return -1;
}

/* Check that the name of a member stays inside a folder, because callers append the name to the path of a folder. */
static int check_member_name(struct lister *l, const char *name)
{
    const char *p = name;

    if (!name || !*name || *name == '/')
        return bad_tar(l, "a member with an absolute name or none");
    for (; *p; p++)
        if ((uint8_t)*p < ' ' || *p == 0x7f)
            return bad_tar(l, "a member name with control characters");
    for (p = name; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == '\0'))
            return bad_tar(l, "a member name with '..'");
    return 0;
}

static void add_archive_member(struct lister *l, const char *name, uint64_t at, uint64_t size)
{
    ARRAY_ROOM(l->member, l->cap, l->n + 1);
    ARRAY_ROOM(l->at, l->cap_at, l->n + 1);
    ARRAY_ROOM(l->size, l->cap_size, l->n + 1);
    l->member[l->n] = (struct archive_member){ .name = xstrdup(name), .file = -1 };
    l->at[l->n] = at;
    l->size[l->n++] = size;
}

/*
 * Compute the offset of the last member of a plain tar. libarchive is now positioned after this member, so the member's
 * padded bytes end at this position.
 */
static int place_last(struct lister *l)
{
    uint64_t end = (uint64_t)archive_read_header_position(l->a), size = l->size[l->n - 1];
    uint64_t padded = size + (TAR_BLOCK - size % TAR_BLOCK) % TAR_BLOCK;
    uint8_t head[TAR_BLOCK];

    if (padded < size || end < padded + TAR_BLOCK)
        return bad_tar(l, "a member longer than the archive");
    l->at[l->n - 1] = end - padded;
    /* The member's header must be directly before its bytes. If it is not, the archive was misread. */
    if (files_read(l->f, l->whole, end - padded - TAR_BLOCK, head, sizeof head, l->e) < 0)
        return -1;
    if (!tar_checksum_ok(head) || !strchr("07", head[156] ? head[156] : '0'))
        return bad_tar(l, "a member whose bytes are not where they should be");
    return 0;
}

/*
 * Refuse a member name that contains a NUL. libarchive returns a name only up to its first NUL. The rest of the name
 * may be in the extended pax header, which precedes the member's header, in a record "LENGTH path=NAME\n". This header
 * can be read only if the tar is read in place.
 */
static int check_pax_name(struct lister *l)
{
    uint64_t at = (uint64_t)archive_read_header_position(l->a), size;
    char head[TAR_BLOCK + 1] = "", *text, *p;
    int rc = 0;

    if (at + TAR_BLOCK > files_size(l->f, l->whole) || files_read(l->f, l->whole, at, head, TAR_BLOCK, l->e) < 0)
        return l->e->kind == ERR_NONE ? 0 : -1;
    size = strtoull(head + 124, NULL, 8);
    if (head[156] != 'x' || size > PAX_MAX || at + TAR_BLOCK + size > files_size(l->f, l->whole))
        return 0;
    text = xcalloc(size + 1, 1);
    if (files_read(l->f, l->whole, at + TAR_BLOCK, text, size, l->e) < 0)
        rc = -1;
    for (p = text; rc == 0 && p < text + size;) {
        char *key;
        uint64_t len = strtoull(p, &key, 10);

        if (len == 0 || len > (uint64_t)(text + size - p) || len < (uint64_t)(key - p))
            break;                      /* libarchive has already reported this damage */
        if (str_starts(key, " path=") && memchr(p, '\0', len))
            rc = bad_tar(l, "a member name with a NUL");
        p += len;
    }
    free(text);
    return rc;
}

static int list_tar_entry(struct lister *l, struct archive_entry *x)
{
    const char *name = entry_name(x);
    struct archive_want want = { .size = (uint64_t)archive_entry_size(x) };
    struct spooled got = { .size = want.size };
    uint64_t at = l->spool.size;

    while (name && str_starts(name, "./"))
        name += 2;
    if (archive_entry_filetype(x) == AE_IFDIR)
        return 0;
    if (check_member_name(l, name) < 0 || (!l->packed && check_pax_name(l) < 0))
        return -1;
    if (archive_entry_filetype(x) != AE_IFREG || archive_entry_hardlink(x) || archive_entry_sparse_count(x) > 0)
        return bad_tar(l, "a link, device or sparse file");
    if (l->n == MAX_MEMBERS)
        return bad_tar(l, "more members than supported");
    want.name = name;
    if (l->packed && spool_entry(&l->spool, l->a, l->path, &want, &got, l->e) < 0)
        return -1;
    add_archive_member(l, name, at, got.size);
    return 0;
}

static int list_tar_entries(struct lister *l)
{
    struct archive_entry *x;
    int rc, before = 0;

    for (;;) {
        rc = archive_read_next_header(l->a, &x);
        if (rc < ARCHIVE_WARN)          /* a warning means that the locale cannot represent a name */
            return bad_tar(l, archive_error_string(l->a));
        if (!l->packed && l->n > before && place_last(l) < 0)
            return -1;
        before = l->n;
        if (rc == ARCHIVE_EOF)
            return 0;
        if (l->n == 0 && archive_filter_code(l->a, 0) != ARCHIVE_FILTER_NONE && !l->packed) {
            l->packed = true;
            if (spool_open(&l->spool, l->e) < 0)
                return -1;
        }
        if (list_tar_entry(l, x) < 0)
            return -1;
    }
}

static int compare_member_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_duplicates(struct lister *l)
{
    const char **name = xcalloc((size_t)l->n + 1, sizeof *name);
    int rc = 0;

    for (int i = 0; i < l->n; i++)
        name[i] = l->member[i].name;
    qsort(name, (size_t)l->n, sizeof *name, compare_member_names);
    for (int i = 1; i < l->n && rc == 0; i++)
        if (strcmp(name[i - 1], name[i]) == 0) {
            err_data(l->e, l->path, ERR_NO_BYTE, "member %s is contained twice in the archive", name[i]);
            rc = -1;
        }
    free(name);
    return rc;
}

/*
 * Add every member to the table of files. Each member is a part of the tar, or of the spool file that holds all
 * members.
 */
static void number_members(struct lister *l)
{
    int in = l->whole;

    if (l->packed) {
        in = files_add_fd(l->f, l->spool.fd, l->spool.size, l->path);
        l->spool.fd = -1;
    }
    for (int i = 0; i < l->n; i++) {
        char *shown = str_fmt("%s:%s", l->path, l->member[i].name);

        l->member[i].file = files_add_part(l->f, in, l->at[i], l->size[i], shown);
        free(shown);
    }
}

static struct archive *new_reader(void)
{
    struct archive *a = archive_read_new();

    if (!a) {
        fprintf(stderr, "out of memory\n");
        abort();
    }
    return a;
}

/*
 * Open the archive. A pipe can be read only once, so the members of a piped archive are copied to the spool file while
 * they are read.
 */
static int open_tar_input(struct lister *l)
{
    bool piped = l->path == archive_stdin;
    int rc;

    if (piped && isatty(STDIN_FILENO)) {
        err_usage(l->e, "%s is a terminal; a tar archive is expected there", l->path);
        return -1;
    }
    if (piped ? spool_open(&l->spool, l->e) < 0 : (l->whole = files_add_path(l->f, l->path, l->e)) < 0)
        return -1;
    l->packed = piped;
    rc = piped ? archive_read_open_fd(l->a, STDIN_FILENO, BUFFER) : archive_read_open_filename(l->a, l->path, BUFFER);
    if (rc == ARCHIVE_OK)
        return 0;
    err_data(l->e, l->path, ERR_NO_BYTE, "not a tar archive: %s", archive_error_string(l->a));
    return -1;
}

int archive_list(struct files *f, const char *path, struct archive_member **out, struct err *e)
{
    struct lister l = { .f = f, .path = path, .e = e, .spool.fd = -1 };
    int rc = -1;

    *out = NULL;
    l.a = new_reader();
    archive_read_support_filter_gzip(l.a);
    archive_read_support_filter_zstd(l.a);
    archive_read_support_filter_xz(l.a);
    archive_read_support_filter_bzip2(l.a);
    archive_read_support_filter_lz4(l.a);
    archive_read_support_format_tar(l.a);
    if (open_tar_input(&l) < 0)
        goto out;
    if (list_tar_entries(&l) < 0 || check_duplicates(&l) < 0)
        goto out;
    number_members(&l);
    rc = 0;
out:
    if (l.spool.fd >= 0)
        close(l.spool.fd);
    archive_read_free(l.a);
    free(l.at);
    free(l.size);
    if (rc < 0) {
        archive_list_free(l.member, l.n);
        return -1;
    }
    *out = l.member;
    return l.n;
}

void archive_list_free(struct archive_member *m, int n)
{
    for (int i = 0; i < n; i++)
        free(m[i].name);
    free(m);
}

/* ---- compressed records of a zip ---- */

/* Deflate cannot compress data to less than 1/1032 of its size. */
enum { MAX_RATIO = 1100 };

/*
 * Context of the callbacks through which libarchive reads the zip. The callbacks also allow a zip that is in memory or
 * inside a tar.
 */
struct archive_stream {
    struct files *f;
    int file;
    uint64_t at, size;
    struct err *e;
    uint8_t buf[64 << 10];
};

static la_ssize_t archive_stream_read(struct archive *a, void *ctx, const void **buf)
{
    struct archive_stream *s = ctx;
    uint64_t n = min_u64(sizeof s->buf, s->size - s->at);

    if (files_read(s->f, s->file, s->at, s->buf, n, s->e) < 0) {
        archive_set_error(a, EIO, "cannot read");
        return -1;
    }
    s->at += n;
    *buf = s->buf;
    return (la_ssize_t)n;
}

static la_int64_t stream_seek(struct archive *a, void *ctx, la_int64_t offset, int whence)
{
    struct archive_stream *s = ctx;
    la_int64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? (la_int64_t)s->at : (la_int64_t)s->size;

    if (offset < -from || (uint64_t)(from + offset) > s->size) {
        archive_set_error(a, EINVAL, "seek outside the file");
        return ARCHIVE_FATAL;
    }
    s->at = (uint64_t)(from + offset);
    return (la_int64_t)s->at;
}

static int by_want_cmp(const void *pa, const void *pb)
{
    return strcmp((*(struct archive_want *const *)pa)->name, (*(struct archive_want *const *)pb)->name);
}

/* Decompress one wanted record into the spool file, and check its size and CRC. */
static int unpack_zip_record(struct spool *s, struct archive *a, const char *path, struct archive_want *w,
                             struct err *e)
{
    struct spooled got;

    w->at = s->size;
    if (spool_entry(s, a, path, w, &got, e) < 0)
        return -1;
    if (got.size != w->size || (w->crc && got.crc != w->crc)) {
        err_data(e, path, ERR_NO_BYTE, "record %s unpacks to %llu bytes with crc %08x, expected %llu with %08x",
                 w->name, (unsigned long long)got.size, got.crc, (unsigned long long)w->size, w->crc);
        return -1;
    }
    return 0;
}

/* Decompress all wanted records in one pass over the zip. `by_name` lists the records, sorted by name. */
static int unpack_all(struct spool *s, struct archive *a, const char *path, struct archive_want **by_name, int n,
                      struct err *e)
{
    struct archive_entry *x;
    int rc, left = n;           /* left: number of wanted records that have not been found yet */

    while (left && (rc = archive_read_next_header(a, &x)) >= ARCHIVE_WARN && rc != ARCHIVE_EOF) {
        struct archive_want key = { .name = entry_name(x) }, *k = &key, **hit;

        hit = key.name ? bsearch(&k, by_name, (size_t)n, sizeof *by_name, by_want_cmp) : NULL;
        if (!hit)
            continue;
        if (unpack_zip_record(s, a, path, *hit, e) < 0)
            return -1;
        left--;
    }
    if (left) {
        err_data(e, path, ERR_NO_BYTE, "%d compressed records cannot be decompressed: %s", left,
                 archive_error_string(a) ? archive_error_string(a) : "not found");
        return -1;
    }
    return 0;
}

int archive_unpack(struct files *f, int file, struct archive_want *want, int n, struct err *e)
{
    struct archive_want **by_name = xcalloc((size_t)n + 1, sizeof *by_name);
    struct archive_stream *in = xcalloc(1, sizeof *in);
    struct archive *a = new_reader();
    struct spool s = { .fd = -1 };
    const char *path = files_name(f, file);
    int number = -1;
    uint64_t total = 0;

    for (int i = 0; i < n; i++) {
        by_name[i] = &want[i];
        if (!add_u64(total, want[i].size, &total))
            total = UINT64_MAX;
    }
    qsort(by_name, (size_t)n, sizeof *by_name, by_want_cmp);
    in->f = f;
    in->file = file;
    in->size = files_size(f, file);
    in->e = e;
    archive_read_support_format_zip_seekable(a);
    archive_read_set_read_callback(a, archive_stream_read);
    archive_read_set_seek_callback(a, stream_seek);
    archive_read_set_callback_data(a, in);
    if (archive_read_open1(a) != ARCHIVE_OK) {
        err_data(e, path, ERR_NO_BYTE, "compressed records cannot be decompressed: %s", archive_error_string(a));
        goto out;
    }
    if (total / MAX_RATIO > in->size) {
        err_data(e, path, ERR_NO_BYTE, "compressed records state a size of %llu bytes, but %llu bytes cannot "
                 "unpack to so many", (unsigned long long)total, (unsigned long long)in->size);
        goto out;
    }
    if (spool_open(&s, e) < 0 || spool_room(&s, total, e) < 0 || unpack_all(&s, a, path, by_name, n, e) < 0)
        goto out;
    number = files_add_fd(f, s.fd, s.size, path);
    s.fd = -1;
out:
    if (s.fd >= 0)
        close(s.fd);
    archive_read_free(a);
    free(in);
    free(by_name);
    return number;
}
