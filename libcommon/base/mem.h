/*
 * mem.h - small memory: strings, growing arrays, arenas
 *
 * Nothing here is for tensor bytes. The x-functions abort with a message when the
 * machine has no memory for a few bytes; arena_alloc() instead returns NULL at the
 * arena's ceiling, because there the size came from a file and may be a lie.
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
/* Numbers in file names: compares "rank_10" after "rank_2"; for qsort of strings. */
int str_natural_cmp(const char *a, const char *b);

/* Grow `array` (a pointer) so that it holds at least n items; doubles. */
#define ARRAY_ROOM(array, cap, n)                                              \
    do {                                                                       \
        if ((size_t)(n) > (size_t)(cap)) {                                     \
            (cap) = (n) > 2 * (cap) ? (n) : 2 * (cap);                         \
            (array) = xrealloc((array), (size_t)(cap) * sizeof *(array));      \
        }                                                                      \
    } while (0)

/* false when the true result does not fit; *out is untouched then. */
MUST_CHECK bool mul_u64(uint64_t a, uint64_t b, uint64_t *out);
MUST_CHECK bool add_u64(uint64_t a, uint64_t b, uint64_t *out);

static inline uint64_t align_up(uint64_t x, uint64_t a) { return (x + a - 1) / a * a; }
static inline uint64_t align_down(uint64_t x, uint64_t a) { return x / a * a; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Little-endian numbers at any address; files are read byte by byte, never by a cast. */
uint16_t get_le16(const void *p);
uint32_t get_le32(const void *p);
uint64_t get_le64(const void *p);
void put_le16(void *p, uint16_t v);
void put_le32(void *p, uint32_t v);
void put_le64(void *p, uint64_t v);

/* Allocations that live and die together. One thread at a time. */
struct arena;
struct arena *arena_new(size_t ceiling_bytes);      /* 0 = no ceiling (trusted contents) */
void arena_free(struct arena *a);                   /* NULL is fine */
/* Zeroed, aligned for any type; NULL when the ceiling would be passed. With no ceiling never NULL. */
void *arena_alloc(struct arena *a, size_t n);
char *arena_strndup(struct arena *a, const char *s, size_t n);  /* NULL like arena_alloc */
char *arena_fmt(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A growing byte string, always NUL-terminated. Zero-initialise; strbuf_free ends it. */
struct strbuf {
    char *buf;
    size_t len, cap;
};
void strbuf_add(struct strbuf *sb, const void *p, size_t n);
void strbuf_addf(struct strbuf *sb, const char *fmt, ...) PRINTF_LIKE(2, 3);
void strbuf_free(struct strbuf *sb);

/*
 * Bytes of memory that this host has, and has free now; where a control group gives the process less, that. What only
 * keeps files at hand counts as free. 0: not known.
 */
void mem_host(uint64_t *total, uint64_t *free_now);

#endif
