/* tar.c - compute the layout of a .tar and write it; libarchive makes the headers */
#include "tools/ckpt-backup/place/tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/crc.h"
#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"

enum { BLOCK = 512, END_BYTES = 2 * BLOCK, WRITE_BYTES = 1 << 20 };
static const uint8_t zeros[END_BYTES];

struct collector {
    struct strbuf *into;                /* NULL: output is refused */
};

static la_ssize_t collect_tar_header(struct archive *a, void *ctx, const void *p, size_t n)
{
    struct collector *c = ctx;

    if (!c->into) {
        archive_set_error(a, ECANCELED, "the header is all that was asked for");
        return -1;
    }
    strbuf_add(c->into, p, n);
    return (la_ssize_t)n;
}

/* Returns true if the name has control characters. Programs that read archives do not accept them in names. */
static bool has_control(const char *name)
{
    for (; *name; name++)
        if ((uint8_t)*name < ' ' || *name == 0x7f)
            return true;
    return false;
}

/*
 * Select the character set of the header. If the name is not UTF-8, or no locale on this machine can represent it, it
 * is stored as raw bytes, and the header states this.
 */
static int set_charset(struct archive *a, const char *name, locale_t utf8)
{
    bool plain = utf8 != (locale_t)0 && utf8_check(name, strlen(name)) == strlen(name);

    for (const char *p = name; !plain && *p; p++)
        if ((uint8_t)*p >= 0x80)
            return archive_write_set_format_option(a, "pax", "hdrcharset", "BINARY");
    return ARCHIVE_OK;
}

/*
 * Append the header that libarchive writes before the bytes of a member. If the locale `utf8` exists, it must be the
 * current one.
 */
static int make_header(struct strbuf *sb, const struct receipt *r, const struct receipt_file *f, locale_t utf8,
                       struct err *e)
{
    struct archive *a = archive_write_new();
    struct archive_entry *x = archive_entry_new();
    char *name = str_fmt("%s/%s", r->tag, f->name);
    struct collector c = { sb };
    int rc = -1;

    if (has_control(name)) {
        err_data(e, name, ERR_NO_BYTE, "cannot be stored in a tar archive, because its name has a control character; "
                                       "use ckpt-backup copy, with or without --pack");
        goto out;
    }

    archive_entry_set_pathname(x, name);
    archive_entry_set_filetype(x, AE_IFREG);
    archive_entry_set_perm(x, f->mode);
    archive_entry_set_size(x, (la_int64_t)f->size_bytes);
    archive_entry_set_mtime(x, f->mtime_ns / 1000000000, 0);
    if (archive_write_set_format_pax_restricted(a) == ARCHIVE_OK && set_charset(a, name, utf8) == ARCHIVE_OK &&
        archive_write_set_bytes_per_block(a, 0) == ARCHIVE_OK &&
        archive_write_open(a, &c, NULL, collect_tar_header, NULL) == ARCHIVE_OK &&
        archive_write_header(a, x) == ARCHIVE_OK)
        rc = 0;
    else {
        errno = archive_errno(a) > 0 ? archive_errno(a) : EINVAL;
        err_sys(e, name, "cannot be stored in a tar archive");
    }
out:
    /*
     * archive_write_free() would write zeros in place of the member's bytes, which are written elsewhere. If c.into is
     * NULL, collect_tar_header() refuses them. archive_write_fail() would also prevent this, but leaks memory.
     */
    c.into = NULL;
    archive_write_free(a);
    archive_entry_free(x);
    free(name);
    return rc;
}

int tar_place(struct tar *t, struct receipt *r, struct err *e)
{
    locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = uselocale((locale_t)0);
    uint64_t at = 0;
    int rc = 0;

    if (utf8)
        uselocale(utf8);                /* libarchive encodes names according to the locale of this thread */
    *t = (struct tar){ .head = xcalloc((size_t)r->n_files + 1, sizeof *t->head) };
    for (int i = 0; i < r->n_files && rc == 0; i++) {
        struct tar_head *h = &t->head[t->n++];

        h->at = at;
        rc = make_header(&h->bytes, r, &r->file[i], utf8, e);
        r->file[i].at = at + h->bytes.len;
        at = align_up(r->file[i].at + r->file[i].size_bytes, BLOCK);
    }
    t->head[t->n].at = at;
    strbuf_add(&t->head[t->n++].bytes, zeros, END_BYTES);
    t->size_bytes = at + END_BYTES;
    uselocale(before);
    if (utf8)
        freelocale(utf8);
    if (rc < 0)
        tar_free(t);
    return rc;
}

void tar_free(struct tar *t)
{
    for (int i = 0; i < t->n; i++)
        strbuf_free(&t->head[i].bytes);
    free(t->head);
    *t = (struct tar){0};
}

uint32_t tar_crc(const struct tar *t, const struct receipt *r)
{
    struct crc_sum sum = {0};

    for (int i = 0; i < t->n; i++) {
        const struct tar_head *h = &t->head[i];
        uint64_t end;

        crc_sum_add(&sum, t->size_bytes, h->at, h->bytes.len, crc_bytes(0, h->bytes.buf, h->bytes.len));
        if (i == r->n_files)
            break;
        end = r->file[i].at + r->file[i].size_bytes;
        crc_sum_add(&sum, t->size_bytes, r->file[i].at, r->file[i].size_bytes, r->file[i].crc);
        crc_sum_add(&sum, t->size_bytes, end, t->head[i + 1].at - end, crc_bytes(0, zeros, t->head[i + 1].at - end));
    }
    return sum.acc;
}

static int send_tar_bytes(const char *path, int to, const void *p, size_t n, struct err *e)
{
    if (write_all(to, p, n) == 0)
        return 0;
    err_sys(e, path, "cannot write to rclone");
    return -1;
}

/* Write the bytes of the file at `path` to the descriptor `to`. buf must have WRITE_BYTES bytes. */
static int write_member(const char *path, uint64_t size_bytes, uint8_t *buf, int to, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = 0;

    if (fd < 0) {
        err_sys(e, path, "cannot open");
        return -1;
    }
    for (uint64_t left = size_bytes; left > 0 && rc == 0;) {
        ssize_t n = read(fd, buf, min_u64(left, WRITE_BYTES));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            err_sys(e, path, "cannot read");
        else if (n == 0)
            err_data(e, path, size_bytes - left, "became shorter while it was uploaded");
        rc = n <= 0 ? -1 : send_tar_bytes(path, to, buf, (size_t)n, e);
        left -= n > 0 ? (uint64_t)n : 0;
    }
    close(fd);
    return rc;
}

int tar_write(const struct tar *t, const struct receipt *r, const char *folder, int to, struct err *e)
{
    uint8_t *buf = xmalloc(WRITE_BYTES);
    int rc = 0;

    for (int i = 0; i < t->n && rc == 0; i++) {
        const struct tar_head *h = &t->head[i];
        const char *name = i < r->n_files ? r->file[i].name : r->name;
        char *path = path_join(folder, name);
        uint64_t end;

        rc = send_tar_bytes(path, to, h->bytes.buf, h->bytes.len, e);
        if (rc == 0 && i < r->n_files) {
            end = r->file[i].at + r->file[i].size_bytes;
            rc = write_member(path, r->file[i].size_bytes, buf, to, e);
            rc = rc < 0 ? -1 : send_tar_bytes(path, to, zeros, t->head[i + 1].at - end, e);
        }
        free(path);
    }
    free(buf);
    return rc;
}
