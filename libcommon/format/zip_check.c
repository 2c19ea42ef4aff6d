/*
 * zip_check.c - compare every byte outside of the payloads with the byte that the writer of the file would have put
 * there
 *
 * Readers ignore the values in local headers, the filler, times and descriptors, so damage in them would remain
 * undetected. These bytes are therefore generated again from the directory, as each known writer would write them, and
 * are compared with the file: first each region between two payloads, then everything after the last payload.
 */
#include "libcommon/format/zip.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/format/zip_bytes.h"

enum { MAX_FINDINGS = 16 };     /* maximum number of differences that are reported; a file of another writer differs
                                 * everywhere */

struct checker {
    struct files *f;
    int file;
    enum zip_dialect d;
    enum severity severity;
    struct report *r;           /* NULL: differences are only counted */
    struct err *e;
    int n_differ;
    struct strbuf want;
    uint8_t *found;
    size_t found_cap;
};

/*
 * A part of a region, for messages. The parts of a region are in order. A part ends at offset `end` of the region.
 * Messages call it `what` of the record `name`.
 */
struct zip_part {
    uint64_t end;
    const char *what, *name;
};

static const char *writer_name(enum zip_dialect d)
{
    return d == ZIP_TORCH ? "torch.save" : "shardkit";
}

static const struct zip_part *part_at(const struct zip_part *part, uint64_t at)
{
    while (part->end <= at && part->end != UINT64_MAX)
        part++;
    return part;
}

/* Returns true if differences are reported, and none at this offset is reported yet. */
static bool is_new_difference(const struct checker *c, uint64_t at)
{
    return c->r && !report_has(c->r, "container", files_name(c->f, c->file), at);
}

static void report_container_byte(struct checker *c, uint64_t at, uint64_t i, const struct zip_part *part)
{
    const struct zip_part *p = part_at(part, i);

    if (c->n_differ++ < MAX_FINDINGS && is_new_difference(c, at + i))
        report_add(c->r, c->severity, "container", files_name(c->f, c->file), at + i, NULL,
                   "%s%s: 0x%02x expected (as %s writes it), 0x%02x found", p->what, p->name,
                   (uint8_t)c->want.buf[i], writer_name(c->d), c->found[i]);
}

static void report_container_length(struct checker *c, uint64_t at, uint64_t len, const struct zip_part *part)
{
    const struct zip_part *p = part_at(part, min_u64(len, c->want.len));

    if (c->n_differ++ < MAX_FINDINGS && is_new_difference(c, at + min_u64(len, c->want.len)))
        report_add(c->r, c->severity, "container", files_name(c->f, c->file), at + min_u64(len, c->want.len), NULL,
                   "%s%s: %llu bytes expected here (as %s writes them), %llu found", p->what, p->name,
                   (unsigned long long)c->want.len, writer_name(c->d), (unsigned long long)len);
}

/* Compare bytes [at, at + len) of the file with c->want, and report the first difference. */
static int compare_container_bytes(struct checker *c, uint64_t at, uint64_t len, const struct zip_part *part)
{
    uint64_t n = min_u64(len, c->want.len);

    ARRAY_ROOM(c->found, c->found_cap, n + 1);
    if (files_read(c->f, c->file, at, c->found, n, c->e) < 0)
        return -1;
    for (uint64_t i = 0; i < n; i++)
        if ((uint8_t)c->want.buf[i] != c->found[i]) {
            report_container_byte(c, at, i, part);
            return 0;
        }
    if (len != c->want.len)
        report_container_length(c, at, len, part);
    return 0;
}

static struct zip_item zip_entry_item(const struct zip_entry *x, uint64_t header_at)
{
    return (struct zip_item){ .name = x->name, .size = x->size, .crc = x->crc, .header_at = header_at };
}

/*
 * Check the region before the payload of x. The region begins at the end of the previous payload, that of `prev`, or at
 * the start of the file if `prev` is NULL.
 */
static int check_local(struct checker *c, const struct zip_item *prev, struct zip_item *it,
                       const struct zip_entry *x, uint64_t from)
{
    struct zip_part part[3] = { {0, "data descriptor of record ", prev ? prev->name : ""},
                                {0, "local header of record ", x->name},
                                {UINT64_MAX, "filler before record ", x->name} };

    c->want.len = 0;
    if (prev)
        zip_put_descriptor(&c->want, c->d, prev);
    part[0].end = c->want.len;
    *it = zip_entry_item(x, from + c->want.len);
    zip_put_local(&c->want, c->d, it);
    part[1].end = part[0].end + ZIP_LOCAL_LEN + strlen(x->name);
    return compare_container_bytes(c, from, x->at - from, part);
}

/*
 * Check the region between the last payload and the end of the archive. It contains the last descriptor, the directory
 * and the end records.
 */
static int check_end(struct checker *c, const struct zip *z, const struct zip_item *item, uint64_t from)
{
    const int n = z->n;
    struct zip_part part[3] = { {0, "data descriptor of record ", item[n - 1].name},
                                {0, "zip directory", ""},
                                {UINT64_MAX, "zip end records", ""} };

    c->want.len = 0;
    zip_put_descriptor(&c->want, c->d, &item[n - 1]);
    part[0].end = c->want.len;
    for (int i = 0; i < n; i++)
        zip_put_central(&c->want, c->d, &item[i]);
    part[1].end = c->want.len;
    zip_put_end(&c->want, c->d, (uint64_t)n, from + part[0].end, part[1].end - part[0].end);
    return compare_container_bytes(c, from, min_u64(z->end, files_size(c->f, c->file)) - from, part);
}

/* Compare the whole file with the bytes that writer c->d produces for the same records. */
static int check_as(const struct zip *z, struct checker *c)
{
    struct zip_item *item = xcalloc((size_t)z->n, sizeof *item);
    uint64_t from = 0;
    int rc = 0;

    c->n_differ = 0;
    for (int i = 0; i < z->n && rc == 0; i++) {
        const struct zip_entry *x = &z->entry[z->by_place[i]];

        rc = check_local(c, i ? &item[i - 1] : NULL, &item[i], x, from);
        from = x->at + x->packed_size;
    }
    if (rc == 0)
        rc = check_end(c, z, item, from);
    free(item);
    return rc;
}

/* Returns the severity of bytes that no reader uses and that differ from those that a writer writes. */
static enum severity container_severity(const struct zip *z)
{
    return zip_n_without_crc(z) ? SEV_ERROR : SEV_WARNING;
}

void zip_check_end(const struct zip *z, const struct files *f, int file, struct report *r)
{
    const uint64_t size = files_size(f, file);
    const char *name = files_name(f, file);

    if (z->end < size && !report_has(r, "container", name, z->end))
        report_add(r, container_severity(z), "container", name, z->end, NULL,
                   "%llu bytes after the end of the zip archive, which torch.load ignores",
                   (unsigned long long)(size - z->end));
}

void zip_check_crcs(const struct zip *z, const struct files *f, int file, struct report *r)
{
    const int n = zip_n_without_crc(z);

    if (n && !report_has(r, "no_crc", files_name(f, file), ERR_NO_BYTE))
        report_add(r, SEV_WARNING, "no_crc", files_name(f, file), ERR_NO_BYTE, NULL,
                   "%d records have no checksum stored, damage in them cannot be seen", n);
}

int zip_check_container(const struct zip *z, struct files *f, int file, struct report *r, struct err *e)
{
    struct checker c = { .f = f, .file = file, .severity = container_severity(z), .e = e };
    enum zip_dialect best = ZIP_TORCH;
    int rc, fewest;

    /*
     * The writer with the fewest differences is assumed. Recognising the writer by a single byte would fail if that
     * byte is damaged.
     */
    zip_check_end(z, f, file, r);
    c.d = ZIP_TORCH;
    rc = check_as(z, &c);
    fewest = c.n_differ;
    if (rc == 0 && fewest) {
        c.d = ZIP_SHARDKIT;
        rc = check_as(z, &c);
        if (c.n_differ < fewest) {
            best = ZIP_SHARDKIT;
            fewest = c.n_differ;
        }
    }
    if (rc == 0 && fewest) {
        c.d = best;
        c.r = r;
        rc = check_as(z, &c);
        if (c.n_differ > MAX_FINDINGS)
            report_add(r, c.severity, "container", files_name(f, file), ERR_NO_BYTE, NULL,
                       "%d more container regions are not as %s writes them", c.n_differ - MAX_FINDINGS,
                       writer_name(best));
    }
    strbuf_free(&c.want);
    free(c.found);
    return rc;
}
