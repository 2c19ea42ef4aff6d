/*
 * utf8.h - text as the files spell it
 */
#ifndef SHARDKIT_BASE_UTF8_H
#define SHARDKIT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* The byte where p[0..n) stops being UTF-8, or n. Overlong forms, surrogates and what is beyond U+10FFFF are none. */
size_t utf8_check(const char *p, size_t n);
/* The same, but lone surrogates pass: Python writes them ("surrogatepass"). */
size_t utf8_check_python(const char *p, size_t n);
/* The character c, at most U+10FFFF, to `to`; its length, 1 to 4. */
int utf8_put(char to[4], uint32_t c);

#endif
