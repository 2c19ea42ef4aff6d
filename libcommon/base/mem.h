/*
 * mem.h - small allocations: strings, growing arrays, arenas
 *
 * These functions are not meant for tensor bytes. The x-functions abort with a message if memory is exhausted. An arena
 * may have a ceiling for sizes that were read from a file and may be invalid; arena_alloc() then returns NULL instead
 * of exceeding it.
 */
#ifndef SHARDKIT_BASE_MEM_H
#define SHARDKIT_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
char *str_fmt(const char *fmt, ...) PRINTF_LIKE(1, 2);     /* caller frees */
bool str_starts(const char *s, const char *prefix);
bool str_ends(const char *s, const char *suffix);
/*
 * Compare names in natural order: digits in the names are compared as numbers, so "rank_10" sorts after "rank_2". The
 * result is a total order, which qsort() can use.
 */
int str_natural_cmp(const char *a, const char *b);

/* Grow `array` (a pointer) to hold at least n items. The capacity at least doubles. */
#define ARRAY_ROOM(array, cap, n)                                              \
    do {                                                                       \
        if ((size_t)(n) > (size_t)(cap)) {                                     \
            (cap) = (n) > 2 * (cap) ? (n) : 2 * (cap);                         \
            (array) = xrealloc((array), (size_t)(cap) * sizeof *(array));      \
        }                                                                      \
    } while (0)

/* Return false and leave *out unchanged if the result does not fit in 64 bits. */
MUST_CHECK bool mul_u64(uint64_t a, uint64_t b, uint64_t *out);
MUST_CHECK bool add_u64(uint64_t a, uint64_t b, uint64_t *out);

static inline uint64_t align_up(uint64_t x, uint64_t a) { return (x + a - 1) / a * a; }
static inline uint64_t align_down(uint64_t x, uint64_t a) { return x / a * a; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/*
 * Read and write little-endian numbers at any alignment. Files are decoded with these functions, never by casting a
 * pointer.
 */
uint16_t get_le16(const void *p);
uint32_t get_le32(const void *p);
uint64_t get_le64(const void *p);
void put_le16(void *p, uint16_t v);
void put_le32(void *p, uint32_t v);
void put_le64(void *p, uint64_t v);

/* An arena holds allocations that are all freed together. Only one thread at a time may use an arena. */
struct arena;
struct arena *arena_new(size_t ceiling_bytes);      /* 0: no ceiling, for sizes that can be trusted */
void arena_free(struct arena *a);                   /* NULL is allowed */
/*
 * Returns n bytes of zeroed memory, aligned for any type. Returns NULL if the ceiling would be exceeded. An arena
 * without a ceiling never returns NULL.
 */
void *arena_alloc(struct arena *a, size_t n);
char *arena_strndup(struct arena *a, const char *s, size_t n);  /* returns NULL like arena_alloc() */
/*
 * A position in an arena. arena_release() frees everything that was allocated after arena_mark() returned this
 * position.
 */
struct arena_mark {
    const void *block;
    size_t used, all;
};
struct arena_mark arena_mark(const struct arena *a);
void arena_release(struct arena *a, struct arena_mark to);
char *arena_fmt(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/*
 * A growing byte string. It is NUL-terminated from the first addition on. Initialise it with zeros, and free it with
 * strbuf_free().
 */
struct strbuf {
    char *buf;
    size_t len, cap;
};
void strbuf_add(struct strbuf *sb, const void *p, size_t n);
void strbuf_add_repeated(struct strbuf *sb, char c, size_t n);
/* Add a number in little-endian order. */
void strbuf_add_le16(struct strbuf *sb, uint16_t v);
void strbuf_add_le32(struct strbuf *sb, uint32_t v);
void strbuf_add_le64(struct strbuf *sb, uint64_t v);
void strbuf_addf(struct strbuf *sb, const char *fmt, ...) PRINTF_LIKE(2, 3);
void strbuf_free(struct strbuf *sb);

/*
 * Determine the memory of this host, and how much of it is free now, in bytes. If a control group allows this process
 * less, the limits of the group are used instead. The page cache counts as free. Both numbers are 0 if they cannot be
 * determined.
 */
void mem_host(uint64_t *total, uint64_t *free_now);

/* ---- text from files ---- */

/*
 * Returns the text with escapes such as \n, \x1b or \u009b for control characters and for bytes that are not valid
 * UTF-8. If the text needs no escape, `s` itself is returned. Any other result is valid until this thread has called
 * the function 16 more times.
 */
const char *text_shown(const char *s);

#endif
