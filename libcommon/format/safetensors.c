/*
 * safetensors.c - read the header of a .safetensors file
 *
 * The JSON is parsed here, and not by a library, for three reasons: its numbers are unsigned 64-bit, error messages
 * should give the byte offset, and a header of 100 MB must not become a tree of 2 GB. The checks run in this order: the
 * length of the header (before memory is allocated), UTF-8, JSON, and then the tensors in the order of their offsets.
 */
#include "libcommon/format/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/tensor.h"
#include "libcommon/base/text.h"


enum { LENGTH_BYTES = 8, MAX_DEPTH = 64 };

static const struct { const char *name; int bits; enum dtype dtype; } types[] = {
    { "BOOL", 8, DTYPE_BOOL }, { "F4", 4, DTYPE_F4X2 }, { "F6_E2M3", 6, DTYPE_F6_E2M3X4 },
    { "F6_E3M2", 6, DTYPE_F6_E3M2X4 },
    { "U8", 8, DTYPE_U8 }, { "I8", 8, DTYPE_I8 }, { "F8_E5M2", 8, DTYPE_F8_E5M2 }, { "F8_E4M3", 8, DTYPE_F8_E4M3 },
    { "F8_E8M0", 8, DTYPE_F8_E8M0 }, { "F8_E4M3FNUZ", 8, DTYPE_F8_E4M3FNUZ },
    { "F8_E5M2FNUZ", 8, DTYPE_F8_E5M2FNUZ }, { "I16", 16, DTYPE_I16 }, { "U16", 16, DTYPE_U16 },
    { "F16", 16, DTYPE_F16 }, { "BF16", 16, DTYPE_BF16 }, { "I32", 32, DTYPE_I32 }, { "U32", 32, DTYPE_U32 },
    { "F32", 32, DTYPE_F32 }, { "C64", 64, DTYPE_C64 }, { "F64", 64, DTYPE_F64 }, { "I64", 64, DTYPE_I64 },
    { "U64", 64, DTYPE_U64 },
};
enum { N_TYPES = sizeof types / sizeof *types };

struct meta {
    const char *key, *value;
    struct meta *next;
};

struct safetensors_entry {
    struct safetensors_tensor pub;
    int64_t *shape;                     /* the same array as pub.shape, but writable */
    uint64_t begin, end;                /* offsets in the data, as the header states them */
    uint64_t entry_at;                      /* offset of the tensor's entry in the header, for messages */
    int bits;                           /* size of one element in bits */
};

struct safetensors {
    struct arena *arena;
    uint64_t header_bytes;
    int n, cap;
    struct safetensors_entry *entry;    /* sorted by offset */
    struct safetensors_entry **by_name;
    struct meta *meta;
    bool has_meta;
};

/* ---- JSON ---- */

struct scan {
    struct safetensors *st;
    const char *p;
    uint64_t n, at;
    const char *path;
    struct err *e;
    /* may_be_cut: accept a file that ends before its last tensor; cut: this file does */
    bool may_be_cut, cut;
};

static int report_header_error(const struct scan *s, uint64_t at, const char *what)
{
    err_data(s->e, s->path, LENGTH_BYTES + at, "%s", what);
    return -1;
}

static int peek_header_char(const struct scan *s)
{
    return s->at < s->n ? (unsigned char)s->p[s->at] : -1;
}

static void skip_blanks(struct scan *s)
{
    while (s->at < s->n && strchr(" \t\r\n", s->p[s->at]) && s->p[s->at])
        s->at++;
}

/* Skip blanks and then the character c. Fails if another character follows the blanks. */
static int expect_header_char(struct scan *s, char c)
{
    char what[] = "header: expected ' '";

    skip_blanks(s);
    if (peek_header_char(s) == (unsigned char)c) {
        s->at++;
        return 0;
    }
    what[sizeof what - 3] = c;
    return report_header_error(s, s->at, what);
}

/*
 * Continue after an item of an object or array. Returns 1 if another item follows, 0 if `close` ends the object or
 * array, or -1 on failure.
 */
static int more(struct scan *s, char close)
{
    skip_blanks(s);
    if (peek_header_char(s) == ',') {
        s->at++;
        return 1;
    }
    return expect_header_char(s, close);
}

/*
 * Skip the closing bracket of an object or array that has just been opened, if it is empty. Returns true if it is
 * empty.
 */
static bool ends_at_once(struct scan *s, char close)
{
    skip_blanks(s);
    if (peek_header_char(s) != close)
        return false;
    s->at++;
    return true;
}

static int parse_header_hex4(const struct scan *s, uint64_t at, uint32_t *v)
{
    *v = 0;
    for (int i = 0; i < 4; i++, at++) {
        char c = at < s->n ? s->p[at] : 0;

        if (c >= '0' && c <= '9')
            *v = *v << 4 | (uint32_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            *v = *v << 4 | (uint32_t)((c | 32) - 'a' + 10);
        else
            return report_header_error(s, at, "header: expected four hexadecimal digits");
    }
    return 0;
}

/* Decode the escape sequence after a backslash, and append the character to *to as UTF-8. */
static int unescape(struct scan *s, char **to)
{
    static const char from[] = "\"\\/bfnrt", plain[] = "\"\\/\b\f\n\r\t";
    int c = peek_header_char(s);
    const char *found = c > 0 ? strchr(from, c) : NULL;
    uint32_t v, low;

    s->at++;
    if (found) {
        *(*to)++ = plain[found - from];
        return 0;
    }
    if (c != 'u' || parse_header_hex4(s, s->at, &v) < 0)
        return report_header_error(s, s->at - 1, "header: unknown escape");
    s->at += 4;
    if (v >= 0xd800 && v < 0xdc00 && s->at + 6 <= s->n && s->p[s->at] == '\\' && s->p[s->at + 1] == 'u' &&
        parse_header_hex4(s, s->at + 2, &low) == 0 && low >= 0xdc00 && low < 0xe000) {
        v = 0x10000 + ((v - 0xd800) << 10) + (low - 0xdc00);
        s->at += 6;
    }
    if (v == 0 || (v >= 0xd800 && v < 0xe000))
        return report_header_error(s, s->at - 4, v ? "header: half of a surrogate pair" : "header: a NUL in a string");
    *to += utf8_put(*to, v);
    return 0;
}

/*
 * Parse a string, and return its unescaped text in the arena. Returns NULL if the string is not valid or the arena is
 * full.
 */
static const char *string(struct scan *s)
{
    uint64_t begin, end;
    char *text, *to;

    if (expect_header_char(s, '"') < 0)
        return NULL;
    begin = end = s->at;
    while (end < s->n && s->p[end] != '"')
        end += s->p[end] == '\\' ? 2 : 1;
    if (end >= s->n) {
        report_header_error(s, begin, "header: a string without an end");
        return NULL;
    }
    /* An escape sequence is never shorter than the character that it stands for, so this is enough room. */
    text = to = arena_alloc(s->st->arena, end - begin + 1);
    if (!text) {
        report_header_error(s, begin, "header: too large");
        return NULL;
    }
    while (s->at < end) {
        unsigned char c = (unsigned char)s->p[s->at++];

        if (c < 0x20) {
            report_header_error(s, s->at - 1, "header: a control character in a string");
            return NULL;
        }
        if (c != '\\')
            *to++ = (char)c;
        else if (unescape(s, &to) < 0)
            return NULL;
    }
    s->at = end + 1;
    return text;
}

static int parse_header_number(struct scan *s, uint64_t *v)
{
    uint64_t begin;

    skip_blanks(s);
    begin = s->at;
    *v = 0;
    while (peek_header_char(s) >= '0' && peek_header_char(s) <= '9')
        if (!mul_u64(*v, 10, v) || !add_u64(*v, (uint64_t)(s->p[s->at++] - '0'), v))
            return report_header_error(s, begin, "header: a number beyond 64 bits");
    if (s->at == begin || (s->at > begin + 1 && s->p[begin] == '0') ||
        (peek_header_char(s) > 0 && strchr(".eE", peek_header_char(s))))
        return report_header_error(s, begin, "header: expected a whole number, 0 or more");
    return 0;
}

/* Skip a number or a word; its value is not used. */
static int skip_scalar(struct scan *s)
{
    static const char *const words[] = { "null", "true", "false" };
    uint64_t begin = s->at;

    for (int i = 0; i < 3; i++)
        if (s->n - s->at >= strlen(words[i]) && memcmp(s->p + s->at, words[i], strlen(words[i])) == 0) {
            s->at += strlen(words[i]);
            return 0;
        }
    while (peek_header_char(s) > 0 && strchr("+-.eE0123456789", peek_header_char(s)))
        s->at++;
    return s->at > begin ? 0 : report_header_error(s, begin, "header: no JSON value");
}

static int skip_header_value(struct scan *s, int depth)
{
    char close;
    int rc;

    skip_blanks(s);
    if (depth > MAX_DEPTH)
        return report_header_error(s, s->at, "header: nested too deep");
    if (peek_header_char(s) == '"')
        return string(s) ? 0 : -1;
    if (peek_header_char(s) != '{' && peek_header_char(s) != '[')
        return skip_scalar(s);
    close = peek_header_char(s) == '{' ? '}' : ']';
    s->at++;
    if (ends_at_once(s, close))
        return 0;
    do {
        if (close == '}' && (!string(s) || expect_header_char(s, ':') < 0))
            return -1;
        if (skip_header_value(s, depth + 1) < 0)
            return -1;
    } while ((rc = more(s, close)) > 0);
    return rc;
}

/* ---- the header's objects ---- */

static int read_meta(struct scan *s)
{
    int rc;

    if (s->st->has_meta)
        return report_header_error(s, s->at, "header: __metadata__ stands twice");
    s->st->has_meta = true;
    skip_blanks(s);
    if (peek_header_char(s) == 'n')
        return skip_scalar(s);
    if (expect_header_char(s, '{') < 0 || ends_at_once(s, '}'))
        return s->e->kind == ERR_NONE ? 0 : -1;
    do {
        struct meta *m = arena_alloc(s->st->arena, sizeof *m);

        if (!m)
            return report_header_error(s, s->at, "header: too large");
        if (!(m->key = string(s)) || expect_header_char(s, ':') < 0 || !(m->value = string(s)))
            return -1;
        /* safetensors_meta() searches this list from the front, so the last value of a repeated key is found */
        m->next = s->st->meta;
        s->st->meta = m;
    } while ((rc = more(s, '}')) > 0);
    return rc;
}

static int read_header_dtype(struct scan *s, struct safetensors_entry *t)
{
    uint64_t at = s->at;
    const char *name = string(s);

    if (!name)
        return -1;
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].name, name) == 0) {
            t->pub.spelling = types[i].name;
            t->pub.dtype = types[i].dtype;
            t->bits = types[i].bits;
            return 0;
        }
    return report_header_error(s, at, "header: unknown dtype");
}

static int read_shape(struct scan *s, struct safetensors_entry *t)
{
    int64_t dims[SAFETENSORS_MAX_DIM], *shape;
    int n = 0, rc = 0;
    uint64_t v;

    if (expect_header_char(s, '[') < 0)
        return -1;
    if (!ends_at_once(s, ']'))
        do {
            if (n == SAFETENSORS_MAX_DIM)
                return report_header_error(s, s->at, "header: too many dimensions");
            if (parse_header_number(s, &v) < 0)
                return -1;
            if (v > INT64_MAX)
                return report_header_error(s, s->at, "header: a dimension beyond 63 bits");
            dims[n++] = (int64_t)v;
        } while ((rc = more(s, ']')) > 0);
    shape = rc < 0 ? NULL : arena_alloc(s->st->arena, (size_t)n * sizeof *shape + 1);
    if (!shape)
        return rc < 0 ? -1 : report_header_error(s, s->at, "header: too large");
    memcpy(shape, dims, (size_t)n * sizeof *shape);
    t->pub.ndim = n;
    t->pub.shape = t->shape = shape;
    return 0;
}

static int read_offsets(struct scan *s, struct safetensors_entry *t)
{
    if (expect_header_char(s, '[') < 0 || parse_header_number(s, &t->begin) < 0 || expect_header_char(s, ',') < 0 ||
        parse_header_number(s, &t->end) < 0)
        return -1;
    return expect_header_char(s, ']');
}

static int parse_header_tensor(struct scan *s, struct safetensors_entry *t)
{
    static const char *const keys[] = { "dtype", "shape", "data_offsets" };
    static int (*const read[])(struct scan *, struct safetensors_entry *) = { read_header_dtype, read_shape,
                                                                              read_offsets };
    unsigned seen = 0;
    int rc = 0;

    if (expect_header_char(s, '{') < 0)
        return -1;
    if (!ends_at_once(s, '}'))
        do {
            const char *key = string(s);
            int k = 0;

            if (!key || expect_header_char(s, ':') < 0)
                return -1;
            while (k < 3 && strcmp(keys[k], key) != 0)
                k++;
            if (k < 3 && seen & 1u << k)
                return report_header_error(s, s->at, "header: a field stands twice in one tensor");
            skip_blanks(s);
            if ((k < 3 ? read[k](s, t) : skip_header_value(s, 0)) < 0)
                return -1;
            seen |= k < 3 ? 1u << k : 0;
        } while ((rc = more(s, '}')) > 0);
    return rc < 0      ? -1
           : seen == 7 ? 0
                       : report_header_error(s, t->entry_at, "header: a tensor without dtype, shape or data_offsets");
}

static int parse_safetensors_header(struct scan *s)
{
    int rc = 0;

    if (peek_header_char(s) != '{')
        return report_header_error(s, 0, "header: does not begin with '{'");
    s->at++;
    if (!ends_at_once(s, '}'))
        do {
            uint64_t at = s->at;
            const char *name = string(s);
            struct safetensors_entry *t;

            if (!name || expect_header_char(s, ':') < 0)
                return -1;
            if (strcmp(name, "__metadata__") == 0) {
                if (read_meta(s) < 0)
                    return -1;
                continue;
            }
            if (!*name)
                return report_header_error(s, at, "header: a tensor without a name");
            ARRAY_ROOM(s->st->entry, s->st->cap, s->st->n + 1);
            t = &s->st->entry[s->st->n++];
            *t = (struct safetensors_entry){ .pub.name = name, .entry_at = at };
            if (parse_header_tensor(s, t) < 0)
                return -1;
        } while ((rc = more(s, '}')) > 0);
    if (rc < 0)
        return -1;
    skip_blanks(s);
    return s->at == s->n ? 0 : report_header_error(s, s->at, "header: bytes after its end");
}

/* ---- checks of the contents ---- */

static int compare_tensor_offsets(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;

    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin) : (x->end > y->end) - (x->end < y->end);
}

static int bad_tensor(const struct scan *s, const struct safetensors_entry *t, const char *fmt, ...)
{
    char what[160];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    err_data(s->e, s->path, LENGTH_BYTES + t->entry_at, "tensor %.200s: %s", t->pub.name, what);
    return -1;
}

/* Compute the size of a tensor in bytes. */
static int count_entry_bytes(const struct scan *s, const struct safetensors_entry *t, uint64_t *len)
{
    const int64_t n = shape_count(t->pub.ndim, t->pub.shape);
    uint64_t bits = 0;

    if (n < 0)
        return bad_tensor(s, t, "more elements than 64 bits count");
    if (!mul_u64((uint64_t)n, (uint64_t)t->bits, &bits))
        return bad_tensor(s, t, "more bits than 64 bits count");
    if (bits % 8)
        return bad_tensor(s, t, "%llu bits do not fill bytes", (unsigned long long)bits);
    *len = bits / 8;
    return 0;
}

/*
 * For types of less than 8 bits, convert the length of the last dimension to bytes, as torch does for F4. Two F4
 * numbers are one byte, and four F6 numbers are three bytes. If the numbers of a row do not fill whole bytes, or if
 * there is no dimension, the type is set to DTYPE_N.
 */
static void count_packed_bytes(struct safetensors_entry *t)
{
    const int numbers = t->pub.dtype == DTYPE_F4X2 ? 2 : 4, bytes = t->pub.dtype == DTYPE_F4X2 ? 1 : 3;
    int64_t *last = t->pub.ndim ? &t->shape[t->pub.ndim - 1] : NULL;

    if (last && *last % numbers == 0)
        *last = *last / numbers * bytes;
    else
        t->pub.dtype = DTYPE_N;
}

static int check_places(struct scan *s, uint64_t file_size)
{
    struct safetensors *st = s->st;
    uint64_t data = LENGTH_BYTES + s->n, at = 0;

    if (st->n)
        qsort(st->entry, (size_t)st->n, sizeof *st->entry, compare_tensor_offsets);
    for (int i = 0; i < st->n; i++) {
        struct safetensors_entry *t = &st->entry[i];
        uint64_t len = 0;

        if (t->begin != at || t->end < t->begin)
            return bad_tensor(s, t,
                              "data_offsets %llu to %llu where one tensor before ends at %llu: a gap or an overlap",
                              (unsigned long long)t->begin, (unsigned long long)t->end, (unsigned long long)at);
        if (count_entry_bytes(s, t, &len) < 0)
            return -1;
        if (t->end - t->begin != len)
            return bad_tensor(s, t, "its shape needs %llu bytes, its data_offsets hold %llu", (unsigned long long)len,
                              (unsigned long long)(t->end - t->begin));
        if (t->pub.dtype == DTYPE_F4X2 || !dtype_is_in_torch(t->pub.dtype))
            count_packed_bytes(t);
        t->pub.at = data + t->begin;
        t->pub.len = len;
        at = t->end;
    }
    /* The subtraction cannot overflow, because check_header_length() has ensured that data <= file_size. */
    if (at == file_size - data)
        return 0;
    err_data(s->e, s->path, data, "the tensors need %llu bytes, the file has %llu: %s", (unsigned long long)at,
             (unsigned long long)(file_size - data), at < file_size - data ? "bytes after them" : "cut short");
    s->cut = at > file_size - data;
    return s->cut && s->may_be_cut ? 0 : -1;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct safetensors_entry *const *)a)->pub.name, (*(struct safetensors_entry *const *)b)->pub.name);
}

static int index_names(struct scan *s)
{
    struct safetensors *st = s->st;

    st->by_name = xmalloc((size_t)st->n * sizeof *st->by_name + 1);
    for (int i = 0; i < st->n; i++)
        st->by_name[i] = &st->entry[i];
    if (st->n)
        qsort(st->by_name, (size_t)st->n, sizeof *st->by_name, by_name);
    for (int i = 1; i < st->n; i++)
        if (strcmp(st->by_name[i - 1]->pub.name, st->by_name[i]->pub.name) == 0)
            return bad_tensor(s, st->by_name[i], "stands twice");
    return 0;
}

/* ---- open ---- */

static int check_header_length(struct files *f, int file, uint64_t *n, struct err *e)
{
    uint64_t size = files_size(f, file);
    uint8_t raw[LENGTH_BYTES];

    if (size < LENGTH_BYTES) {
        err_data(e, files_name(f, file), 0, "%llu bytes: too short for a safetensors file", (unsigned long long)size);
        return -1;
    }
    if (files_read(f, file, 0, raw, sizeof raw, e) < 0)
        return -1;
    *n = get_le64(raw);
    if (*n <= SAFETENSORS_MAX_HEADER && *n <= size - LENGTH_BYTES)
        return 0;
    err_data(e, files_name(f, file), 0,
             "a header of %llu bytes, at most %llu are possible: no safetensors file, or cut short",
             (unsigned long long)*n, (unsigned long long)min_u64(size - LENGTH_BYTES, SAFETENSORS_MAX_HEADER));
    return -1;
}

struct safetensors *safetensors_open(struct files *f, int file, struct err *e)
{
    return safetensors_open_cut(f, file, NULL, e);
}

struct safetensors *safetensors_open_cut(struct files *f, int file, bool *cut, struct err *e)
{
    struct safetensors *st;
    struct scan s = { .path = files_name(f, file), .e = e, .may_be_cut = cut != NULL };
    uint64_t n, bad;
    char *text;
    int rc = -1;

    if (check_header_length(f, file, &n, e) < 0)
        return NULL;
    st = xcalloc(1, sizeof *st);
    st->header_bytes = n;
    /*
     * A string is never longer than its text in the header, and the tables are not much larger than the text that
     * describes them.
     */
    st->arena = arena_new(16 * n + (1 << 16));
    text = xmalloc(n + 1);
    s.st = st;
    s.p = text;
    s.n = n;
    if (files_read(f, file, LENGTH_BYTES, text, n, e) < 0)
        goto out;
    bad = utf8_check(text, n);
    if (bad < n)
        rc = report_header_error(&s, bad, "header: not UTF-8");
    else if (parse_safetensors_header(&s) == 0 && check_places(&s, files_size(f, file)) == 0)
        rc = index_names(&s);
out:
    free(text);
    if (cut)
        *cut = rc == 0 && s.cut;
    if (rc == 0)
        return st;
    safetensors_close(st);
    return NULL;
}

void safetensors_close(struct safetensors *st)
{
    if (!st)
        return;
    free(st->entry);
    free(st->by_name);
    arena_free(st->arena);
    free(st);
}

int safetensors_n(const struct safetensors *st)
{
    return st->n;
}

const struct safetensors_tensor *safetensors_tensor(const struct safetensors *st, int i)
{
    return &st->entry[i].pub;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    const struct safetensors_entry key = { .pub.name = name }, *k = &key;
    struct safetensors_entry **found = NULL;

    if (st->n)
        found = bsearch(&k, st->by_name, (size_t)st->n, sizeof *st->by_name, by_name);
    return found ? &(*found)->pub : NULL;
}

const char *safetensors_meta(const struct safetensors *st, const char *key)
{
    for (const struct meta *m = st->meta; m; m = m->next)
        if (strcmp(m->key, key) == 0)
            return m->value;
    return NULL;
}

uint64_t safetensors_header_bytes(const struct safetensors *st)
{
    return st->header_bytes;
}
