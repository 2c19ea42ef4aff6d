/* mmidx.c - read and write indexed datasets; an index is checked completely when it is opened */
#include "libcommon/format/mmidx.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mapped.h"
#include "libcommon/base/mem.h"

enum { MMAP_HEADER = 34, LEGACY_HEADER = 56 };

struct mmidx {
    char *prefix;
    struct mapped idx, bin;
    enum mmidx_form form;
    enum mmidx_type type;
    int item;                           /* size of one token in bytes */
    int64_t n, n_doc_entries, tokens;
    /*
     * Offsets of the tables in the .idx. The tables are not aligned, so they are read with get_le32() and
     * get_le64().
     */
    uint64_t at_len, at_place, at_docs;
};

/* ---- types ---- */

static const struct { const char *name; int size; } types[] = {
    [MMIDX_U8] = { "u8", 1 }, [MMIDX_I8] = { "i8", 1 }, [MMIDX_I16] = { "i16", 2 },
    [MMIDX_I32] = { "i32", 4 }, [MMIDX_I64] = { "i64", 8 }, [MMIDX_U16] = { "u16", 2 },
};

/* Return the size of one token in bytes, or 0 if the type code is not valid. */
static int type_size(enum mmidx_type t)
{
    return (size_t)t < sizeof types / sizeof *types ? types[t].size : 0;
}

const char *mmidx_type_name(enum mmidx_type t)
{
    return type_size(t) ? types[t].name : "unknown";
}

enum mmidx_type mmidx_type_for(int64_t vocab_size)
{
    return vocab_size < 65500 ? MMIDX_U16 : MMIDX_I32;
}

/* ---- opening ---- */

static int report_mmidx_mismatch(const struct mmidx *m, uint64_t at, struct err *e, const char *what, uint64_t found,
                                 uint64_t expected)
{
    err_data(e, m->idx.path, at, "%s is %lld, expected %lld", what, (long long)found, (long long)expected);
    return -1;
}

static int cut_short(const struct mmidx *m, uint64_t need, struct err *e)
{
    err_data(e, m->idx.path, m->idx.size, "cut short: %llu bytes expected, the file has %llu",
             (unsigned long long)need, (unsigned long long)m->idx.size);
    return -1;
}

/* Set the token type from its code, which was read at byte `at` of the .idx. */
static int set_mmidx_type(struct mmidx *m, uint64_t code, uint64_t at, struct err *e)
{
    m->item = code < 256 ? type_size((enum mmidx_type)code) : 0;
    if (!m->item) {
        err_data(e, m->idx.path, at, "type code %llu, expected 1 to 5 or 8 (an integer type)",
                 (unsigned long long)code);
        return -1;
    }
    m->type = (enum mmidx_type)code;
    return 0;
}

/*
 * Read the numbers of sequences (N) and of document entries (D). They are limited so that sums of table sizes cannot
 * overflow. Each entry needs at least 8 bytes.
 */
static int read_mmidx_counts(struct mmidx *m, uint64_t at_n, uint64_t at_d, struct err *e)
{
    uint64_t n = get_le64(m->idx.p + at_n), d = get_le64(m->idx.p + at_d);

    if (n > m->idx.size / 12) {
        err_data(e, m->idx.path, at_n, "%llu sequences in a file of %llu bytes", (unsigned long long)n,
                 (unsigned long long)m->idx.size);
        return -1;
    }
    if (d > m->idx.size / 8) {
        err_data(e, m->idx.path, at_d, "%llu document entries in a file of %llu bytes", (unsigned long long)d,
                 (unsigned long long)m->idx.size);
        return -1;
    }
    m->n = (int64_t)n;
    m->n_doc_entries = (int64_t)d;
    return 0;
}

static int read_mmap_header(struct mmidx *m, struct err *e)
{
    uint64_t n, need;

    if (m->idx.size < MMAP_HEADER)
        return cut_short(m, MMAP_HEADER, e);
    if (m->idx.p[8] != 0)
        return report_mmidx_mismatch(m, 8, e, "the magic's last byte", m->idx.p[8], 0);
    if (get_le64(m->idx.p + 9) != 1)
        return report_mmidx_mismatch(m, 9, e, "the version", get_le64(m->idx.p + 9), 1);
    if (set_mmidx_type(m, m->idx.p[17], 17, e) < 0 || read_mmidx_counts(m, 18, 26, e) < 0)
        return -1;
    n = (uint64_t)m->n;
    m->form = MMIDX_MMAP;
    m->at_len = MMAP_HEADER;
    m->at_place = m->at_len + 4 * n;
    m->at_docs = m->at_place + 8 * n;
    need = m->at_docs + 8 * (uint64_t)m->n_doc_entries;
    /* Newer writers of datasets with text and images append one mode byte per sequence. */
    if (m->idx.size < need)
        return cut_short(m, need, e);
    if (m->idx.size != need && m->idx.size != need + n) {
        err_data(e, m->idx.path, need, "%llu bytes after the last table",
                 (unsigned long long)(m->idx.size - need));
        return -1;
    }
    return 0;
}

static int read_legacy_header(struct mmidx *m, struct err *e)
{
    const uint8_t *p = m->idx.p;
    uint64_t n, need;

    if (m->idx.size < LEGACY_HEADER)
        return cut_short(m, LEGACY_HEADER, e);
    if (get_le64(p + 8) != 1)
        return report_mmidx_mismatch(m, 8, e, "the version", get_le64(p + 8), 1);
    if (set_mmidx_type(m, get_le64(p + 16), 16, e) < 0)
        return -1;
    if (get_le64(p + 24) != (uint64_t)m->item)
        return report_mmidx_mismatch(m, 24, e, "the element size", get_le64(p + 24), (uint64_t)m->item);
    if (read_mmidx_counts(m, 32, 48, e) < 0)
        return -1;
    n = (uint64_t)m->n;
    if (get_le64(p + 40) != n)
        return report_mmidx_mismatch(m, 40, e, "the number of sizes", get_le64(p + 40), n);
    m->form = MMIDX_LEGACY;
    m->at_place = LEGACY_HEADER + 8 * (n + 1);
    m->at_len = m->at_place + 8 * (n + 1);
    m->at_docs = m->at_len + 8 * n;
    need = m->at_docs + 8 * (uint64_t)m->n_doc_entries;
    if (m->idx.size < need)
        return cut_short(m, need, e);
    if (m->idx.size != need) {
        err_data(e, m->idx.path, need, "%llu bytes after the last table",
                 (unsigned long long)(m->idx.size - need));
        return -1;
    }
    for (uint64_t i = 0; i <= n; i++)
        if (get_le64(p + LEGACY_HEADER + 8 * i) != i)
            return report_mmidx_mismatch(m, LEGACY_HEADER + 8 * i, e, "a sequence's first size",
                                         get_le64(p + LEGACY_HEADER + 8 * i), i);
    return 0;
}

static uint64_t len_at(const struct mmidx *m, int64_t seq)
{
    return m->form == MMIDX_MMAP ? m->at_len + 4 * (uint64_t)seq : m->at_len + 8 * (uint64_t)seq;
}

/* Return the stored length as an unsigned number, so that a negative length becomes a very large one. */
static uint64_t raw_len(const struct mmidx *m, int64_t seq)
{
    const uint8_t *p = m->idx.p + len_at(m, seq);

    return m->form == MMIDX_MMAP ? (uint64_t)(int64_t)(int32_t)get_le32(p) : get_le64(p);
}

/*
 * Check that the stored position of each sequence is the sum of the lengths of all sequences before it. Positions are
 * in bytes; in the legacy form they are in elements. Also check that the sequences fill the .bin exactly. Sets
 * m->tokens.
 */
static int check_sequences(struct mmidx *m, struct err *e)
{
    uint64_t unit = m->form == MMIDX_MMAP ? (uint64_t)m->item : 1, room = m->bin.size / (uint64_t)m->item;
    int64_t n_places = m->form == MMIDX_MMAP ? m->n : m->n + 1;

    for (int64_t i = 0; i < n_places; i++) {
        uint64_t at = m->at_place + 8 * (uint64_t)i, found = get_le64(m->idx.p + at);

        if (found != (uint64_t)m->tokens * unit)
            return report_mmidx_mismatch(m, at, e, "a sequence's place", found, (uint64_t)m->tokens * unit);
        if (i == m->n)
            break;
        if (raw_len(m, i) > INT32_MAX) {
            err_data(e, m->idx.path, len_at(m, i), "sequence %lld has %lld tokens, expected 0 to %d",
                     (long long)i, (long long)raw_len(m, i), INT32_MAX);
            return -1;
        }
        /* This check also prevents the sums from overflowing. */
        if (raw_len(m, i) > room - (uint64_t)m->tokens) {
            err_data(e, m->idx.path, len_at(m, i), "sequence %lld ends at byte %llu, %s has %llu bytes",
                     (long long)i, (unsigned long long)(((uint64_t)m->tokens + raw_len(m, i)) * (uint64_t)m->item),
                     m->bin.path, (unsigned long long)m->bin.size);
            return -1;
        }
        m->tokens += (int64_t)raw_len(m, i);
    }
    if (m->bin.size != (uint64_t)m->tokens * (uint64_t)m->item) {
        err_data(e, m->bin.path, (uint64_t)m->tokens * (uint64_t)m->item, "%llu bytes follow the last sequence of %s",
                 (unsigned long long)(m->bin.size - (uint64_t)m->tokens * (uint64_t)m->item), m->idx.path);
        return -1;
    }
    return 0;
}

/*
 * Check the document entries. They are not checked in the legacy form, because the reference implementation stored
 * wrong entries when it merged such files, and no program reads these entries.
 */
static int check_documents(const struct mmidx *m, struct err *e)
{
    uint64_t last = 0;

    if (m->form == MMIDX_LEGACY)
        return 0;
    if (m->n_doc_entries < 1)
        return report_mmidx_mismatch(m, 26, e, "the number of document entries", 0, 1);
    for (int64_t i = 0; i < m->n_doc_entries; i++) {
        uint64_t at = m->at_docs + 8 * (uint64_t)i, doc = get_le64(m->idx.p + at);

        if (i == 0 && doc != 0)
            return report_mmidx_mismatch(m, at, e, "the first document's sequence", doc, 0);
        if (i == m->n_doc_entries - 1 && doc != (uint64_t)m->n)
            return report_mmidx_mismatch(m, at, e, "the last document entry", doc, (uint64_t)m->n);
        if (doc < last || doc > (uint64_t)m->n) {
            err_data(e, m->idx.path, at, "document %lld starts at sequence %lld, expected %lld to %lld",
                     (long long)i, (long long)doc, (long long)last, (long long)m->n);
            return -1;
        }
        last = doc;
    }
    return 0;
}

static int read_mmidx_header(struct mmidx *m, struct err *e)
{
    if (m->idx.size >= 8 && memcmp(m->idx.p, "MMIDIDX\0", 8) == 0)
        return read_mmap_header(m, e);
    if (m->idx.size >= 8 && memcmp(m->idx.p, "TNTIDX\0\0", 8) == 0)
        return read_legacy_header(m, e);
    err_data(e, m->idx.path, 0, "no dataset index: it begins with neither MMIDIDX nor TNTIDX");
    return -1;
}

static int check_all(void *arg, struct err *e)
{
    struct mmidx *m = arg;

    return read_mmidx_header(m, e) < 0 || check_sequences(m, e) < 0 ? -1 : check_documents(m, e);
}

struct mmidx *mmidx_open(const char *prefix, struct err *e)
{
    struct mmidx *m = xcalloc(1, sizeof *m);
    char *idx = str_fmt("%s.idx", prefix), *bin = str_fmt("%s.bin", prefix);

    m->prefix = xstrdup(prefix);
    if (mapped_open(&m->idx, idx, e) < 0 || mapped_open(&m->bin, bin, e) < 0 || mapped_use(check_all, m, e) < 0) {
        mmidx_close(m);
        m = NULL;
    }
    free(idx);
    free(bin);
    return m;
}

void mmidx_close(struct mmidx *m)
{
    if (!m)
        return;
    mapped_close(&m->idx);
    mapped_close(&m->bin);
    free(m->prefix);
    free(m);
}

int mmidx_check(const struct mmidx *m, struct err *e)
{
    return mapped_check(&m->idx, e) < 0 ? -1 : mapped_check(&m->bin, e);
}

/* ---- reading ---- */

const char *mmidx_prefix(const struct mmidx *m) { return m->prefix; }
enum mmidx_form mmidx_form(const struct mmidx *m) { return m->form; }
enum mmidx_type mmidx_type(const struct mmidx *m) { return m->type; }
int64_t mmidx_n(const struct mmidx *m) { return m->n; }
int64_t mmidx_n_docs(const struct mmidx *m) { return m->n_doc_entries - 1; }
int64_t mmidx_tokens(const struct mmidx *m) { return m->tokens; }

int64_t mmidx_len(const struct mmidx *m, int64_t seq)
{
    assert(seq >= 0 && seq < m->n);
    return (int64_t)raw_len(m, seq);
}

/* Return the address of a sequence's tokens. The sequence must not be empty. */
static const uint8_t *sequence_bytes(const struct mmidx *m, int64_t seq)
{
    uint64_t place = get_le64(m->idx.p + m->at_place + 8 * (uint64_t)seq);

    return m->bin.p + (m->form == MMIDX_LEGACY ? place * (uint64_t)m->item : place);
}

void mmidx_read(const struct mmidx *m, int64_t seq, int64_t first, int64_t n, int64_t *out)
{
    const uint8_t *p;

    assert(first >= 0 && n >= 0 && first + n <= mmidx_len(m, seq));
    if (n == 0)
        return;
    p = sequence_bytes(m, seq) + (uint64_t)first * (uint64_t)m->item;
    for (int64_t i = 0; i < n; i++, p += m->item)
        switch (m->type) {
        case MMIDX_U8: out[i] = *p; break;
        case MMIDX_I8: out[i] = (int8_t)*p; break;
        case MMIDX_I16: out[i] = (int16_t)get_le16(p); break;
        case MMIDX_U16: out[i] = get_le16(p); break;
        case MMIDX_I32: out[i] = (int32_t)get_le32(p); break;
        case MMIDX_I64: out[i] = (int64_t)get_le64(p); break;
        }
}

/* ---- writing ---- */

enum { BUF_BYTES = 1 << 20 };

/* An output file, which has a temporary name until it is published. */
struct mmidx_out {
    char *path, *tmp;
    int fd;                             /* -1: not created, or closed */
    uint8_t *buf;
    size_t used;
    uint64_t done;                      /* number of bytes already written to fd */
};

struct mmidx_writer {
    struct mmidx_out bin;
    char *prefix;
    enum mmidx_form form;
    enum mmidx_type type;
    int64_t min, max;                   /* smallest and largest token that the type can store */
    int32_t *len;
    int64_t *doc;
    int64_t n, n_docs, cap, cap_docs;
};

static int mmidx_out_open(struct mmidx_out *o, const char *prefix, const char *suffix, struct err *e)
{
    o->path = str_fmt("%s%s", prefix, suffix);
    o->tmp = str_fmt("%s.%ld.part", o->path, (long)getpid());
    o->fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (o->fd < 0) {
        err_sys(e, o->tmp, "cannot create");
        return -1;
    }
    o->buf = xmalloc(BUF_BYTES);
    return 0;
}

static int out_flush(struct mmidx_out *o, struct err *e)
{
    const uint8_t *p = o->buf;

    while (o->used) {
        ssize_t k = write(o->fd, p, o->used);

        if (k < 0) {
            if (errno == EINTR)
                continue;
            err_sys(e, o->tmp, "cannot write at byte %llu", (unsigned long long)o->done);
            return -1;
        }
        p += k;
        o->used -= (size_t)k;
        o->done += (uint64_t)k;
    }
    return 0;
}

/* Make sure that the buffer has room for n bytes; n must be at most 8. */
static int out_room(struct mmidx_out *o, size_t n, struct err *e)
{
    return o->used + n > BUF_BYTES ? out_flush(o, e) : 0;
}

static int out_u64(struct mmidx_out *o, uint64_t v, struct err *e)
{
    if (out_room(o, 8, e) < 0)
        return -1;
    put_le64(o->buf + o->used, v);
    o->used += 8;
    return 0;
}

static int out_u32(struct mmidx_out *o, uint32_t v, struct err *e)
{
    if (out_room(o, 4, e) < 0)
        return -1;
    put_le32(o->buf + o->used, v);
    o->used += 4;
    return 0;
}

static int out_sync(struct mmidx_out *o, struct err *e)
{
    if (out_flush(o, e) < 0)
        return -1;
    if (fsync(o->fd) < 0) {
        err_sys(e, o->tmp, "cannot write");
        return -1;
    }
    return 0;
}

/* Close the file and free o. If `keep` is false, the temporary file is removed. */
static void mmidx_out_close(struct mmidx_out *o, bool keep)
{
    if (o->fd >= 0) {
        close(o->fd);
        if (!keep)
            unlink(o->tmp);
    }
    free(o->buf);
    free(o->tmp);
    free(o->path);
}

struct mmidx_writer *mmidx_create(const char *prefix, enum mmidx_form form, enum mmidx_type type, struct err *e)
{
    static const int64_t max[] = {
        [MMIDX_U8] = UINT8_MAX, [MMIDX_I8] = INT8_MAX, [MMIDX_I16] = INT16_MAX, [MMIDX_I32] = INT32_MAX,
        [MMIDX_I64] = INT32_MAX, [MMIDX_U16] = UINT16_MAX,
    };
    struct mmidx_writer *w = xcalloc(1, sizeof *w);

    assert(type_size(type));
    w->bin.fd = -1;
    w->prefix = xstrdup(prefix);
    w->form = form;
    w->type = type;
    w->max = max[type];
    w->min = type == MMIDX_U8 || type == MMIDX_U16 ? 0 : -w->max - 1;
    ARRAY_ROOM(w->doc, w->cap_docs, 64);
    w->doc[w->n_docs++] = 0;
    if (mmidx_out_open(&w->bin, prefix, ".bin", e) < 0) {
        mmidx_writer_free(w);
        return NULL;
    }
    return w;
}

static void put_token(uint8_t *p, int size, int32_t token)
{
    switch (size) {
    case 1: *p = (uint8_t)token; break;
    case 2: put_le16(p, (uint16_t)token); break;
    case 4: put_le32(p, (uint32_t)token); break;
    case 8: put_le64(p, (uint64_t)(int64_t)token); break;
    }
}

int mmidx_put(struct mmidx_writer *w, const int32_t *tokens, int64_t n, struct err *e)
{
    int size = type_size(w->type);

    if (n > INT32_MAX) {
        err_data(e, w->bin.path, ERR_NO_BYTE, "sequence %lld would have %lld tokens, at most %d can be stored",
                 (long long)w->n, (long long)n, INT32_MAX);
        return -1;
    }
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < w->min || tokens[i] > w->max) {
            err_data(e, w->bin.path, ERR_NO_BYTE, "token %d does not fit into %s", tokens[i],
                     mmidx_type_name(w->type));
            return -1;
        }
        if (out_room(&w->bin, (size_t)size, e) < 0)
            return -1;
        put_token(w->bin.buf + w->bin.used, size, tokens[i]);
        w->bin.used += (size_t)size;
    }
    ARRAY_ROOM(w->len, w->cap, w->n + 1);
    w->len[w->n++] = (int32_t)n;
    return 0;
}

void mmidx_end_document(struct mmidx_writer *w)
{
    ARRAY_ROOM(w->doc, w->cap_docs, w->n_docs + 1);
    w->doc[w->n_docs++] = w->n;
}

/* Write n bytes, which may be more than the buffer holds. */
static int out_bytes(struct mmidx_out *o, const uint8_t *p, size_t n, struct err *e)
{
    while (n) {
        size_t k = BUF_BYTES - o->used < n ? BUF_BYTES - o->used : n;

        memcpy(o->buf + o->used, p, k);
        o->used += k;
        p += k;
        n -= k;
        if (o->used == BUF_BYTES && out_flush(o, e) < 0)
            return -1;
    }
    return 0;
}

struct mmidx_appending {
    struct mmidx_writer *w;
    const struct mmidx *m;
};

/* Append all sequences and documents. Called through mapped_use(). */
static int append_all(void *arg, struct err *e)
{
    const struct mmidx_appending *a = arg;
    struct mmidx_writer *w = a->w;
    const struct mmidx *m = a->m;
    int64_t first = w->n;

    ARRAY_ROOM(w->len, w->cap, w->n + m->n);
    ARRAY_ROOM(w->doc, w->cap_docs, w->n_docs + m->n_doc_entries);
    for (int64_t i = 0; i < m->n; i++) {
        int64_t n = mmidx_len(m, i);

        if (n && out_bytes(&w->bin, sequence_bytes(m, i), (size_t)n * (size_t)m->item, e) < 0)
            return -1;
        w->len[w->n++] = (int32_t)n;
    }
    for (int64_t i = 1; i < m->n_doc_entries; i++)
        w->doc[w->n_docs++] = first + (int64_t)get_le64(m->idx.p + m->at_docs + 8 * (uint64_t)i);
    return 0;
}

int mmidx_append(struct mmidx_writer *w, const struct mmidx *m, struct err *e)
{
    struct mmidx_appending a = { w, m };

    if (m->type != w->type) {
        err_data(e, m->idx.path, ERR_NO_BYTE, "tokens of type %s, expected %s as in %s", mmidx_type_name(m->type),
                 mmidx_type_name(w->type), w->bin.path);
        return -1;
    }
    return mapped_use(append_all, &a, e) < 0 || mmidx_check(m, e) < 0 ? -1 : 0;
}

int64_t mmidx_written(const struct mmidx_writer *w)
{
    int64_t idx = w->form == MMIDX_MMAP ? MMAP_HEADER + 12 * w->n : LEGACY_HEADER + 16 * (w->n + 1) + 8 * w->n;

    return (int64_t)(w->bin.done + w->bin.used) + idx + 8 * w->n_docs;
}

static int put_mmap_index(const struct mmidx_writer *w, struct mmidx_out *o, struct err *e)
{
    uint64_t place = 0, size = (uint64_t)type_size(w->type);

    memcpy(o->buf, "MMIDIDX\0\0", 9);
    put_le64(o->buf + 9, 1);
    o->buf[17] = (uint8_t)w->type;
    put_le64(o->buf + 18, (uint64_t)w->n);
    put_le64(o->buf + 26, (uint64_t)w->n_docs);
    o->used = MMAP_HEADER;
    for (int64_t i = 0; i < w->n; i++)
        if (out_u32(o, (uint32_t)w->len[i], e) < 0)
            return -1;
    for (int64_t i = 0; i < w->n; i++) {
        if (out_u64(o, place, e) < 0)
            return -1;
        place += (uint64_t)w->len[i] * size;
    }
    return 0;
}

static int put_legacy_index(const struct mmidx_writer *w, struct mmidx_out *o, struct err *e)
{
    uint64_t place = 0;
    const uint64_t head[] = { 1, (uint64_t)w->type, (uint64_t)type_size(w->type), (uint64_t)w->n,
                              (uint64_t)w->n, (uint64_t)w->n_docs };

    memcpy(o->buf, "TNTIDX\0\0", 8);
    o->used = 8;
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        if (out_u64(o, head[i], e) < 0)
            return -1;
    for (int64_t i = 0; i <= w->n; i++)
        if (out_u64(o, (uint64_t)i, e) < 0)
            return -1;
    for (int64_t i = 0; i <= w->n; i++) {
        if (out_u64(o, place, e) < 0)
            return -1;
        place += i < w->n ? (uint64_t)w->len[i] : 0;
    }
    for (int64_t i = 0; i < w->n; i++)
        if (out_u64(o, (uint64_t)w->len[i], e) < 0)
            return -1;
    return 0;
}

static int put_documents(const struct mmidx_writer *w, struct mmidx_out *o, struct err *e)
{
    for (int64_t i = 0; i < w->n_docs; i++)
        if (out_u64(o, (uint64_t)w->doc[i], e) < 0)
            return -1;
    return 0;
}

/*
 * Rename both files from their temporary names to their final names. Both must have been synced to disk. The old index
 * is removed first, so that a new .bin is never paired with an old .idx.
 */
static int publish_mmidx_files(struct mmidx_out *bin, struct mmidx_out *idx, struct err *e)
{
    if (unlink(idx->path) < 0 && errno != ENOENT) {
        err_sys(e, idx->path, "cannot replace");
        return -1;
    }
    if (rename(bin->tmp, bin->path) < 0) {
        err_sys(e, bin->path, "cannot rename from %s", bin->tmp);
        return -1;
    }
    if (rename(idx->tmp, idx->path) < 0) {
        err_sys(e, idx->path, "cannot rename from %s", idx->tmp);
        return -1;
    }
    return dir_sync(idx->path, e);
}

int mmidx_commit(struct mmidx_writer *w, struct err *e)
{
    struct mmidx_out idx = { .fd = -1 };
    int rc = -1;

    if (mmidx_out_open(&idx, w->prefix, ".idx", e) < 0)
        goto out;
    if ((w->form == MMIDX_MMAP ? put_mmap_index : put_legacy_index)(w, &idx, e) < 0 ||
        put_documents(w, &idx, e) < 0)
        goto out;
    if (out_sync(&w->bin, e) < 0 || out_sync(&idx, e) < 0 || publish_mmidx_files(&w->bin, &idx, e) < 0)
        goto out;
    close(w->bin.fd);
    w->bin.fd = -1;
    rc = 0;
out:
    mmidx_out_close(&idx, rc == 0);
    return rc;
}

void mmidx_writer_free(struct mmidx_writer *w)
{
    if (!w)
        return;
    mmidx_out_close(&w->bin, false);
    free(w->prefix);
    free(w->len);
    free(w->doc);
    free(w);
}
