/*
 * jsonl.h - one line of JSONL: the strings under a few keys of its object
 *
 * jansson builds a tree of everything at 50 MB/s, more slowly than the text is tokenized;
 * this looks at each byte once and keeps only what was asked for. The line is checked
 * completely, as strictly as Python's json.loads does (which takes NaN and Infinity).
 */
#ifndef SHARDKIT_TOKENS_JSONL_H
#define SHARDKIT_TOKENS_JSONL_H

#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/mem.h"

struct jsonl_value {
    size_t at, len;                     /* its bytes in the text */
    bool found;
};

struct jsonl_fault {
    size_t at;                          /* byte of the line */
    char what[160];
};

/* What is asked of a line, and the answer. */
struct jsonl_wanted {
    int n;
    const char *const *keys;            /* [n] */
    struct jsonl_value *value;          /* [n]: filled */
    struct strbuf *text;                /* the values' bytes are appended */
};

/*
 * The wanted keys' values in the object that is line[0..len), unescaped.
 * Of a key that stands there twice the last counts. -1 and *fault: no JSON object, no UTF-8,
 * a key is missing, its value is no string, or a lone surrogate is escaped in it.
 */
MUST_CHECK int jsonl_read(const char *line, size_t len, const struct jsonl_wanted *w, struct jsonl_fault *fault);
/* Append text[0..len) as a JSON string, quotes included. What is no UTF-8 becomes U+FFFD; returns how often. */
size_t jsonl_quote(struct strbuf *out, const char *text, size_t len);

#endif
