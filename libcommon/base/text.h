/*
 * text.h - UTF-8, and conversion of arbitrary names to JSON strings
 *
 * JSON text is UTF-8, whereas file names are arbitrary bytes.
 */
#ifndef SHARDKIT_BASE_TEXT_H
#define SHARDKIT_BASE_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/report.h"

/*
 * Returns `s` as a JSON string, or JSON null for NULL. Bytes that are not valid UTF-8 are written as \xHH. Never
 * fails.
 */
json_t *text_json(const char *s);
/*
 * Write `o` like json_dumps(), but write each real number with as few digits as are needed to restore its value. For
 * example, 0.1 is written as 0.1, and 1/3 with 16 digits. The caller frees the result. Returns NULL if `o` is NULL.
 */
char *text_dump(const json_t *o, size_t flags);
/* Returns all findings of a report as a JSON list of objects with the keys code and text. */
json_t *text_notes(const struct report *notes);

/*
 * Returns the offset of the first byte of p[0..n) that is not valid UTF-8, or n if all are valid. Overlong forms,
 * surrogates and code points above U+10FFFF are invalid.
 */
size_t utf8_check(const char *p, size_t n);
/*
 * Check UTF-8 like utf8_check(), but accept lone surrogates, because Python writes them with the error handler
 * "surrogatepass".
 */
size_t utf8_check_python(const char *p, size_t n);
/* Encode the code point c, which is at most U+10FFFF, as UTF-8 in `to`. Returns the number of bytes, 1 to 4. */
int utf8_put(char to[4], uint32_t c);

#endif
