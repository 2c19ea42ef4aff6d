/* jsonl.c - parse one line: all of it is validated, but only the requested strings are stored */
#include "libcommon/tokens/jsonl.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/text.h"
#include "libcommon/tokens/bpe.h"

enum { MAX_DEPTH = 500 };

struct jsonl_parser {
    const char *line, *p, *end;
    struct jsonl_fault *fault;
    struct strbuf skipped;              /* receives strings that were not requested */
};

static int PRINTF_LIKE(2, 3) report_jsonl_error(struct jsonl_parser *j, const char *fmt, ...)
{
    va_list ap;

    j->fault->at = (size_t)(j->p - j->line);
    va_start(ap, fmt);
    vsnprintf(j->fault->what, sizeof j->fault->what, fmt, ap);
    va_end(ap);
    return -1;
}

static void blanks(struct jsonl_parser *j)
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\t' || *j->p == '\n' || *j->p == '\r'))
        j->p++;
}

static bool consume_jsonl_char(struct jsonl_parser *j, char c)
{
    blanks(j);
    if (j->p == j->end || *j->p != c)
        return false;
    j->p++;
    return true;
}

/* ---- strings ---- */

/* Returns the value of four hexadecimal digits at p, or -1. */
static int parse_hex4(const char *p, const char *end)
{
    int v = 0;

    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10
              : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;

        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    return v;
}

static void put_char(struct strbuf *out, uint32_t c)
{
    char u[4];

    strbuf_add(out, u, (size_t)utf8_put(u, c));
}

/* Parse one character after "\u". A character above U+FFFF consists of two escapes. */
static int parse_jsonl_unicode(struct jsonl_parser *j, struct strbuf *out, bool wanted)
{
    int c = parse_hex4(j->p, j->end), low;

    if (c < 0)
        return report_jsonl_error(j, "\\u needs four hexadecimal digits");
    if (c >= 0xd800 && c < 0xdc00 && j->end - j->p >= 6 && j->p[4] == '\\' && j->p[5] == 'u') {
        low = parse_hex4(j->p + 6, j->end);
        if (low >= 0xdc00 && low < 0xe000) {
            put_char(out, 0x10000 + ((uint32_t)(c - 0xd800) << 10) + (uint32_t)(low - 0xdc00));
            j->p += 10;
            return 0;
        }
    }
    /*
     * Python accepts a lone surrogate, and fails later, when the text is encoded. In a value that is not requested it
     * does no harm.
     */
    if (c >= 0xd800 && c < 0xe000 && wanted)
        return report_jsonl_error(j, "the lone surrogate \\u%04x is no character", c);
    put_char(out, (uint32_t)c);
    j->p += 4;
    return 0;
}

static int parse_jsonl_escape(struct jsonl_parser *j, struct strbuf *out, bool wanted)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *which;

    if (j->p == j->end)
        return report_jsonl_error(j, "a string has no end");
    if (*j->p == 'u') {
        j->p++;
        return parse_jsonl_unicode(j, out, wanted);
    }
    which = *j->p ? strchr(from, *j->p) : NULL;
    if (!which)
        return report_jsonl_error(j, "an unknown escape");
    strbuf_add(out, &to[which - from], 1);
    j->p++;
    return 0;
}

/* Parse a string and append it, unescaped, to `out`. */
static int parse_jsonl_string(struct jsonl_parser *j, struct strbuf *out, bool wanted)
{
    if (!consume_jsonl_char(j, '"'))
        return report_jsonl_error(j, "expected a string");
    for (;;) {
        const char *run = j->p;

        while (j->p < j->end && *j->p != '"' && *j->p != '\\' && (uint8_t)*j->p >= ' ')
            j->p++;
        strbuf_add(out, run, (size_t)(j->p - run));
        if (j->p == j->end)
            return report_jsonl_error(j, "a string has no end");
        if (*j->p == '"') {
            j->p++;
            return 0;
        }
        if (*j->p != '\\')
            return report_jsonl_error(j, "control character 0x%02x in a string", (uint8_t)*j->p);
        j->p++;
        if (parse_jsonl_escape(j, out, wanted) < 0)
            return -1;
    }
}

/* ---- other values ---- */

static size_t skip_jsonl_digits(struct jsonl_parser *j)
{
    const char *first = j->p;

    while (j->p < j->end && *j->p >= '0' && *j->p <= '9')
        j->p++;
    return (size_t)(j->p - first);
}

static bool skip_jsonl_word(struct jsonl_parser *j, const char *w)
{
    size_t n = strlen(w);

    if ((size_t)(j->end - j->p) < n || memcmp(j->p, w, n) != 0)
        return false;
    j->p += n;
    return true;
}

static int skip_number(struct jsonl_parser *j)
{
    bool zero;

    if (j->p < j->end && *j->p == '-')
        j->p++;
    if (skip_jsonl_word(j, "Infinity"))
        return 0;
    zero = j->p < j->end && *j->p == '0';
    if (zero)
        j->p++;
    else if (skip_jsonl_digits(j) == 0)
        return report_jsonl_error(j, "expected a value");
    if (j->p < j->end && *j->p == '.') {
        j->p++;
        if (skip_jsonl_digits(j) == 0)
            return report_jsonl_error(j, "expected digits");
    }
    if (j->p < j->end && (*j->p == 'e' || *j->p == 'E')) {
        j->p++;
        if (j->p < j->end && (*j->p == '+' || *j->p == '-'))
            j->p++;
        if (skip_jsonl_digits(j) == 0)
            return report_jsonl_error(j, "expected digits");
    }
    return 0;
}

static int skip_string(struct jsonl_parser *j)
{
    j->skipped.len = 0;
    return parse_jsonl_string(j, &j->skipped, false);
}

static int skip_jsonl_value(struct jsonl_parser *j, int depth);

/* Skip the items of an array or object whose opening bracket has been read. */
static int skip_items(struct jsonl_parser *j, char close, int depth)
{
    if (depth == MAX_DEPTH)
        return report_jsonl_error(j, "more than %d levels", MAX_DEPTH);
    if (consume_jsonl_char(j, close))
        return 0;
    do {
        if (close == '}' &&
            (skip_string(j) < 0 || (!consume_jsonl_char(j, ':') && report_jsonl_error(j, "expected ':'") < 0)))
            return -1;
        if (skip_jsonl_value(j, depth + 1) < 0)
            return -1;
    } while (consume_jsonl_char(j, ','));
    return consume_jsonl_char(j, close) ? 0 : report_jsonl_error(j, "expected ',' or '%c'", close);
}

static int skip_jsonl_value(struct jsonl_parser *j, int depth)
{
    blanks(j);
    if (j->p == j->end)
        return report_jsonl_error(j, "the line ends where a value is expected");
    switch (*j->p) {
    case '"':
        return skip_string(j);
    case '{':
        j->p++;
        return skip_items(j, '}', depth);
    case '[':
        j->p++;
        return skip_items(j, ']', depth);
    }
    if (skip_jsonl_word(j, "true") || skip_jsonl_word(j, "false") || skip_jsonl_word(j, "null") ||
        skip_jsonl_word(j, "NaN"))
        return 0;
    return skip_number(j);
}

/* ---- the whole line ---- */

static int parse_jsonl_value(struct jsonl_parser *j, struct strbuf *text, const char *key, struct jsonl_value *v)
{
    blanks(j);
    if (j->p == j->end || *j->p != '"')
        return report_jsonl_error(j, "the value of \"%s\" is no string", key);
    v->at = text->len;
    if (parse_jsonl_string(j, text, true) < 0)
        return -1;
    v->len = text->len - v->at;
    v->found = true;
    return 0;
}

static int parse_jsonl_member(struct jsonl_parser *j, const struct jsonl_wanted *w)
{
    if (skip_string(j) < 0)
        return -1;
    for (int i = 0; i < w->n; i++)
        if (strlen(w->keys[i]) == j->skipped.len && memcmp(w->keys[i], j->skipped.buf, j->skipped.len) == 0)
            return consume_jsonl_char(j, ':') ? parse_jsonl_value(j, w->text, w->keys[i], &w->value[i])
                                              : report_jsonl_error(j, "expected ':'");
    return consume_jsonl_char(j, ':') ? skip_jsonl_value(j, 1) : report_jsonl_error(j, "expected ':'");
}

static int parse_jsonl_object(struct jsonl_parser *j, const struct jsonl_wanted *w)
{
    if (!consume_jsonl_char(j, '{'))
        return report_jsonl_error(j, "expected a JSON object");
    if (!consume_jsonl_char(j, '}')) {
        do {
            if (parse_jsonl_member(j, w) < 0)
                return -1;
        } while (consume_jsonl_char(j, ','));
        if (!consume_jsonl_char(j, '}'))
            return report_jsonl_error(j, "expected ',' or '}'");
    }
    blanks(j);
    return j->p == j->end ? 0 : report_jsonl_error(j, "something follows the object");
}

int jsonl_read(const char *line, size_t len, const struct jsonl_wanted *w, struct jsonl_fault *fault)
{
    struct jsonl_parser j = { .line = line, .p = line, .end = line + len, .fault = fault };
    size_t sound = utf8_check(line, len);
    int rc;

    memset(w->value, 0, (size_t)w->n * sizeof *w->value);
    if (sound < len) {
        j.p = line + sound;
        return report_jsonl_error(&j, "not UTF-8 (byte 0x%02x)", (uint8_t)line[sound]);
    }
    strbuf_add(&j.skipped, "", 0);
    rc = parse_jsonl_object(&j, w);
    for (int i = 0; i < w->n && rc == 0; i++)
        if (!w->value[i].found) {
            j.p = line;
            rc = report_jsonl_error(&j, "no key \"%s\"", w->keys[i]);
        }
    strbuf_free(&j.skipped);
    return rc;
}

/* ---- writing ---- */

size_t jsonl_quote(struct strbuf *out, const char *text, size_t len)
{
    size_t sound = utf8_check(text, len), n_bad = 0, run = 0;

    strbuf_add(out, "\"", 1);
    for (size_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)text[i];

        if (i != sound && c >= ' ' && c != '"' && c != '\\')
            continue;
        strbuf_add(out, text + run, i - run);
        run = i + 1;
        if (i == sound) {
            strbuf_add(out, "\xef\xbf\xbd", 3);
            n_bad++;
            sound = i + 1 + utf8_check(text + i + 1, len - i - 1);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            strbuf_add(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", 2);
        } else if (c == '"' || c == '\\') {
            strbuf_addf(out, "\\%c", c);
        } else {
            strbuf_addf(out, "\\u%04x", c);
        }
    }
    strbuf_add(out, text + run, len - run);
    strbuf_add(out, "\"", 1);
    return n_bad;
}
