/*
 * mem.c - strings, buffers and arenas; aborts if memory is exhausted
 */
#include "libcommon/base/mem.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void no_memory(size_t n)
{
    fprintf(stderr, "out of memory (asked for %zu bytes)\n", n);
    abort();
}

void *xmalloc(size_t n)
{
    void *p = malloc(n ? n : 1);

    if (!p)
        no_memory(n);
    return p;
}

void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size ? size : 1);

    if (!p)
        no_memory(n * size);
    return p;
}

void *xrealloc(void *old, size_t n)
{
    void *p = realloc(old, n ? n : 1);

    if (!p)
        no_memory(n);
    return p;
}

char *xstrdup(const char *s)
{
    size_t n = strlen(s) + 1;

    return memcpy(xmalloc(n), s, n);
}

char *str_fmt(const char *fmt, ...)
{
    va_list ap;
    char *s;

    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        no_memory(strlen(fmt));
    va_end(ap);
    return s;
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix)
{
    size_t n = strlen(s), k = strlen(suffix);

    return n >= k && strcmp(s + n - k, suffix) == 0;
}

/*
 * Compare two runs of decimal digits of any length as numbers. Leading zeros are skipped. Then the longer run is the
 * larger number.
 */
static int digits_cmp(const char **a, const char **b)
{
    const char *p, *q;
    size_t n, k;
    int d;

    while (**a == '0')
        ++*a;
    while (**b == '0')
        ++*b;
    for (p = *a; isdigit((unsigned char)*p); p++)
        ;
    for (q = *b; isdigit((unsigned char)*q); q++)
        ;
    n = (size_t)(p - *a);
    k = (size_t)(q - *b);
    d = n != k ? (n < k ? -1 : 1) : memcmp(*a, *b, n);
    *a = p;
    *b = q;
    return d;
}

int str_natural_cmp(const char *a, const char *b)
{
    const char *x = a, *y = b;

    while (*x && *y) {
        if (isdigit((unsigned char)*x) && isdigit((unsigned char)*y)) {
            int d = digits_cmp(&x, &y);

            if (d)
                return d;
        } else if (*x != *y) {
            return (unsigned char)*x < (unsigned char)*y ? -1 : 1;
        } else {
            x++;
            y++;
        }
    }
    if (*x || *y)
        return *x ? 1 : -1;
    /* "01" and "1" are equal as numbers but different as strings; comparing them as strings gives a total order */
    return strcmp(a, b);
}

bool mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t v;

    if (__builtin_mul_overflow(a, b, &v))
        return false;
    *out = v;
    return true;
}

bool add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t v;

    if (__builtin_add_overflow(a, b, &v))
        return false;
    *out = v;
    return true;
}

uint16_t get_le16(const void *p)
{
    const uint8_t *b = p;

    return (uint16_t)(b[0] | b[1] << 8);
}

uint32_t get_le32(const void *p)
{
    const uint8_t *b = p;

    return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t get_le64(const void *p)
{
    const uint8_t *b = p;

    return get_le32(b) | (uint64_t)get_le32(b + 4) << 32;
}

void put_le16(void *p, uint16_t v)
{
    uint8_t *b = p;

    b[0] = (uint8_t)v;
    b[1] = (uint8_t)(v >> 8);
}

void put_le32(void *p, uint32_t v)
{
    put_le16(p, (uint16_t)v);
    put_le16((uint8_t *)p + 2, (uint16_t)(v >> 16));
}

void put_le64(void *p, uint64_t v)
{
    put_le32(p, (uint32_t)v);
    put_le32((uint8_t *)p + 4, (uint32_t)(v >> 32));
}

/* ---- arena ---- */

enum { ARENA_BLOCK = 16 << 10, ARENA_ALIGN = 16 };

struct arena_block {
    struct arena_block *next;
    size_t used, size;
    _Alignas(ARENA_ALIGN) char bytes[];
};

struct arena {
    struct arena_block *block;          /* the newest block; only this one has free space */
    size_t ceiling, used;
};

struct arena *arena_new(size_t ceiling_bytes)
{
    struct arena *a = xcalloc(1, sizeof *a);

    a->ceiling = ceiling_bytes;
    return a;
}

void arena_free(struct arena *a)
{
    struct arena_block *b, *next;

    if (!a)
        return;
    for (b = a->block; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

/*
 * Add a block. The sizes of blocks double up to 1 MiB. A small arena therefore occupies only 16 KiB, and a large arena
 * needs few calls of malloc().
 */
static void new_block(struct arena *a, size_t n)
{
    size_t size = a->block ? 2 * a->block->size : ARENA_BLOCK;
    struct arena_block *b;

    if (size > 1 << 20)
        size = 1 << 20;
    if (size < n)
        size = n;
    b = xcalloc(1, sizeof *b + size);
    b->size = size;
    b->next = a->block;
    a->block = b;
}

void *arena_alloc(struct arena *a, size_t n)
{
    void *p;

    if (n > SIZE_MAX - ARENA_ALIGN)
        return NULL;
    n = (n + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->ceiling && (n > a->ceiling || a->used > a->ceiling - n))
        return NULL;
    if (!a->block || n > a->block->size - a->block->used)
        new_block(a, n);
    p = a->block->bytes + a->block->used;
    a->block->used += n;
    a->used += n;
    return p;
}

struct arena_mark arena_mark(const struct arena *a)
{
    return (struct arena_mark){ a->block, a->block ? a->block->used : 0, a->used };
}

void arena_release(struct arena *a, struct arena_mark to)
{
    while (a->block && a->block != to.block) {
        struct arena_block *b = a->block;

        a->block = b->next;
        free(b);
    }
    if (a->block) {
        memset(a->block->bytes + to.used, 0, a->block->used - to.used);
        a->block->used = to.used;
    }
    a->used = to.all;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;

    if (p && n)
        memcpy(p, s, n);
    return p;
}

char *arena_fmt(struct arena *a, const char *fmt, ...)
{
    va_list ap;
    char *s, *p;

    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        no_memory(strlen(fmt));
    va_end(ap);
    p = arena_strndup(a, s, strlen(s));
    free(s);
    return p;
}

/* ---- strbuf ---- */

static void strbuf_room(struct strbuf *sb, size_t n)
{
    ARRAY_ROOM(sb->buf, sb->cap, sb->len + n + 1);
}

void strbuf_add(struct strbuf *sb, const void *p, size_t n)
{
    strbuf_room(sb, n);
    if (n)
        memcpy(sb->buf + sb->len, p, n);
    sb->len += n;
    sb->buf[sb->len] = '\0';
}

void strbuf_add_repeated(struct strbuf *sb, char c, size_t n)
{
    strbuf_room(sb, n);
    memset(sb->buf + sb->len, c, n);
    sb->len += n;
    sb->buf[sb->len] = '\0';
}

void strbuf_add_le16(struct strbuf *sb, uint16_t v)
{
    uint8_t b[2];

    put_le16(b, v);
    strbuf_add(sb, b, sizeof b);
}

void strbuf_add_le32(struct strbuf *sb, uint32_t v)
{
    uint8_t b[4];

    put_le32(b, v);
    strbuf_add(sb, b, sizeof b);
}

void strbuf_add_le64(struct strbuf *sb, uint64_t v)
{
    uint8_t b[8];

    put_le64(b, v);
    strbuf_add(sb, b, sizeof b);
}

void strbuf_addf(struct strbuf *sb, const char *fmt, ...)
{
    va_list ap;
    char *s;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&s, fmt, ap);
    va_end(ap);
    if (n < 0)
        no_memory(strlen(fmt));
    strbuf_add(sb, s, (size_t)n);
    free(s);
}

void strbuf_free(struct strbuf *sb)
{
    free(sb->buf);
    sb->buf = NULL;
    sb->len = sb->cap = 0;
}

/* ---- memory of the host ---- */

/*
 * Find a line of the file that begins with `key`, and return the number after `key`. Returns UINT64_MAX if there is
 * none.
 */
static uint64_t read_keyed_number(const char *path, const char *key)
{
    FILE *f = fopen(path, "r");
    char line[256];
    unsigned long long v = UINT64_MAX;

    while (f && v == UINT64_MAX && fgets(line, sizeof line, f))
        if (str_starts(line, key) && sscanf(line + strlen(key), " %llu", &v) != 1)
            v = UINT64_MAX;             /* the value is not a number but "max" */
    if (f)
        fclose(f);
    return v;
}

static uint64_t read_dir_keyed_number(const char *dir, const char *name, const char *key)
{
    char *path = str_fmt("%s/%s", dir, name);
    const uint64_t v = read_keyed_number(path, key);

    free(path);
    return v;
}

/*
 * Apply the memory limits of control groups (version 2) to both numbers. A limit of a group also applies to all groups
 * below it.
 */
static void obey_groups(char *dir, uint64_t *total, uint64_t *free_now)
{
    const size_t root = strlen("/sys/fs/cgroup");

    for (char *end; strlen(dir) >= root; *end = '\0') {
        const uint64_t limit = read_dir_keyed_number(dir, "memory.max", ""),
                       used = read_dir_keyed_number(dir, "memory.current", "");
        uint64_t kept = read_dir_keyed_number(dir, "memory.stat", "inactive_file ");

        if (kept == UINT64_MAX)
            kept = 0;
        if (limit != UINT64_MAX && used != UINT64_MAX) {
            *total = min_u64(*total, limit);
            *free_now = min_u64(*free_now, limit - min_u64(limit, used - min_u64(used, kept)));
        }
        end = strrchr(dir, '/');
    }
}

void mem_host(uint64_t *total, uint64_t *free_now)
{
    const uint64_t all = read_keyed_number("/proc/meminfo", "MemTotal:"),
                   left = read_keyed_number("/proc/meminfo", "MemAvailable:");
    FILE *f = fopen("/proc/self/cgroup", "r");
    char line[1024];

    *total = all == UINT64_MAX ? 0 : all << 10;
    *free_now = left == UINT64_MAX ? 0 : left << 10;
    while (f && fgets(line, sizeof line, f))
        if (str_starts(line, "0::")) {
            char *dir = str_fmt("/sys/fs/cgroup%.*s", (int)strcspn(line + 3, "\n"), line + 3);

            if (str_ends(dir, "/"))
                dir[strlen(dir) - 1] = '\0';
            obey_groups(dir, total, free_now);
            free(dir);
        }
    if (f)
        fclose(f);
}

/* ---- text from files ---- */

/*
 * Returns the length of the UTF-8 character at p. Returns 0 if the bytes are not a lead byte followed by the
 * continuation bytes it requires.
 */
static size_t character_length(const char *p)
{
    const uint8_t c = (uint8_t)p[0];
    const size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

/* Returns true if the character is one of U+0080 to U+009F. Terminals interpret these like ESC followed by a letter. */
static bool is_c1(const char *p, size_t len)
{
    return len == 2 && (uint8_t)p[0] == 0xc2 && (uint8_t)p[1] < 0xa0;
}

/* Returns the length of the character at p, or 0 if the character cannot be printed without an escape. */
static size_t printable_length(const char *p)
{
    const size_t len = character_length(p);

    return (uint8_t)p[0] < ' ' || p[0] == 0x7f || is_c1(p, len) ? 0 : len;
}

/* Append the escape of the bytes at p. Returns the number of bytes escaped. */
static size_t add_escape(struct strbuf *sb, const char *p)
{
    const size_t len = character_length(p);

    if (*p == '\n' || *p == '\r' || *p == '\t')
        strbuf_addf(sb, "\\%c", *p == '\n' ? 'n' : *p == '\r' ? 'r' : 't');
    else if (is_c1(p, len))
        strbuf_addf(sb, "\\u%04x", (uint8_t)p[1]);
    else
        strbuf_addf(sb, "\\x%02x", (uint8_t)p[0]);
    return is_c1(p, len) ? len : 1;
}

const char *text_shown(const char *s)
{
    enum { KEPT = 16 };
    static _Thread_local char *kept[KEPT];
    static _Thread_local unsigned next;
    const char *p = s;
    struct strbuf sb = {0};
    size_t len;

    while (*p && (len = printable_length(p)))
        p += len;
    if (!*p)
        return s;
    for (p = s; *p; p += len) {
        len = printable_length(p);
        if (len)
            strbuf_add(&sb, p, len);
        else
            len = add_escape(&sb, p);
    }
    strbuf_add(&sb, "", 1);
    free(kept[next % KEPT]);
    return kept[next++ % KEPT] = sb.buf;
}
