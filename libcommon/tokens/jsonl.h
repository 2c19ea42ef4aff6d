/*
 * jsonl.h - read one line of JSONL: the strings under a few keys of its object
 *
 * jansson builds a tree of everything at 50 MB/s, which is slower than tokenizing the text. This parser reads each
 * byte once and keeps only the requested strings. The whole line is validated, as strictly as by Python's
 * json.loads (which accepts NaN and Infinity).
 */
#ifndef SHARDKIT_TOKENS_JSONL_H
#define SHARDKIT_TOKENS_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/mem.h"

struct jsonl_value {
    size_t at, len;                     /* location of the value in the text */
    bool found;
};

struct jsonl_fault {
    size_t at;                          /* byte offset in the line */
    char what[160];
};

/* The keys that are requested from a line, and their values. */
struct jsonl_wanted {
    int n;
    const char *const *keys;            /* [n] */
    struct jsonl_value *value;          /* [n]: set by jsonl_read() */
    struct strbuf *text;                /* the bytes of the values are appended to it */
};

/*
 * Parse the object in line[0..len), and append the values of the requested keys, unescaped, to w->text. If a key occurs
 * twice, the last one counts. Returns -1 and fills *fault if the line is not a JSON object, is not valid UTF-8, lacks a
 * requested key, or has a value for it that is not a string or contains an escaped lone surrogate.
 */
MUST_CHECK int jsonl_read(const char *line, size_t len, const struct jsonl_wanted *w, struct jsonl_fault *fault);
/*
 * Append text[0..len) as a JSON string, including quotes. Each invalid UTF-8 byte is replaced by U+FFFD. Returns
 * the number of replacements.
 */
size_t jsonl_quote(struct strbuf *out, const char *text, size_t len);

#endif
