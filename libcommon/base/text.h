/*
 * text.h - UTF-8, and names from outside as JSON strings
 *
 * JSON is UTF-8, file names are bytes.
 */
#ifndef SHARDKIT_BASE_TEXT_H
#define SHARDKIT_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/report.h"

/* `s` as a JSON string; bytes that are no UTF-8 stand as \xHH, and null for NULL. Never fails. */
json_t *text_json(const char *s);
/*
 * json_dumps() with the reals as short as brings each back: 0.1 stays 0.1, 1/3 takes 16 digits. Caller frees; NULL for
 * NULL.
 */
char *text_dump(const json_t *o, size_t flags);
/* All findings of a report: a list of {code, text}. */
json_t *text_notes(const struct report *notes);

/* The byte where p[0..n) stops being UTF-8, or n. Overlong forms, surrogates and what is beyond U+10FFFF are none. */
size_t utf8_check(const char *p, size_t n);
/* The same, but lone surrogates pass: Python writes them ("surrogatepass"). */
size_t utf8_check_python(const char *p, size_t n);
/* The character c, at most U+10FFFF, to `to`; its length, 1 to 4. */
int utf8_put(char to[4], uint32_t c);

#endif
