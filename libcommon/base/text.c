/* text.c - validate and write UTF-8; invalid bytes are escaped, so that every name can be written as a JSON string */
#include "libcommon/base/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"

/* ---- UTF-8 ---- */

/*
 * Returns the length of the UTF-8 character at p, or 0 if it is invalid. The range of the second byte excludes overlong
 * forms, surrogates and code points above U+10FFFF.
 */
static size_t char_length(const uint8_t *p, size_t n, bool surrogates)
{
    uint8_t c = p[0];
    uint8_t least = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    uint8_t most = c == 0xed && !surrogates ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    size_t len = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    if (len <= 1 || len > n)
        return len > n ? 0 : len;
    if (p[1] < least || p[1] > most)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return len;
}

static size_t find_invalid_utf8(const char *p, size_t n, bool surrogates)
{
    size_t i = 0;

    while (i < n) {
        uint64_t v;
        size_t len;

        if (i + 8 <= n) {               /* fast path for eight ASCII characters, because most text is ASCII */
            memcpy(&v, p + i, 8);
            if (!(v & 0x8080808080808080u)) {
                i += 8;
                continue;
            }
        }
        len = char_length((const uint8_t *)p + i, n - i, surrogates);
        if (len == 0)
            return i;
        i += len;
    }
    return n;
}

size_t utf8_check(const char *p, size_t n) { return find_invalid_utf8(p, n, false); }
size_t utf8_check_python(const char *p, size_t n) { return find_invalid_utf8(p, n, true); }

int utf8_put(char to[4], uint32_t c)
{
    static const uint8_t lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

    for (int i = n - 1; i > 0; i--, c >>= 6)
        to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(lead[n] | c);
    return n;
}

/* ---- JSON ---- */

json_t *text_json(const char *s)
{
    json_t *o = s ? json_string(s) : json_null();
    struct strbuf sb = {0};

    if (o)
        return o;
    while (*s) {
        size_t n = utf8_check(s, strlen(s));

        strbuf_add(&sb, s, n);
        s += n;
        if (*s)
            strbuf_addf(&sb, "\\x%02x", (unsigned char)*s++);
    }
    o = json_string(sb.buf);
    strbuf_free(&sb);
    return o;
}

json_t *text_notes(const struct report *notes)
{
    json_t *list = json_array();

    for (int i = 0; i < report_n(notes); i++) {
        char *text = finding_text(report_get(notes, i));

        json_array_append_new(list, json_pack("{s:s, s:o}", "code", report_get(notes, i)->code, "text",
                                              text_json(text)));
        free(text);
    }
    return list;
}

/* ---- numbers ---- */

/*
 * Append a real number in the format of jansson: it has a decimal point or an exponent. The exponent has neither a plus
 * sign nor leading zeros.
 */
static void append_jansson_real(struct strbuf *out, double v)
{
    char buf[40], *e;
    int digits = 15;

    do
        snprintf(buf, sizeof buf, "%.*g", digits, v);
    while (strtod(buf, NULL) != v && digits++ < 17);
    e = strchr(buf, 'e');
    strbuf_add(out, buf, e ? (size_t)(e - buf) : strlen(buf));
    if (!e && !strchr(buf, '.'))
        strbuf_addf(out, ".0");
    if (e)
        strbuf_addf(out, "e%d", atoi(e + 1));
}

/* Returns the end of the JSON string that begins at s. */
static const char *string_end(const char *s)
{
    for (s++; *s && *s != '"'; s++)
        if (*s == '\\' && s[1])
            s++;
    return *s ? s + 1 : s;
}

char *text_dump(const json_t *o, size_t flags)
{
    char *text = o ? json_dumps(o, flags | JSON_REAL_PRECISION(17)) : NULL;
    struct strbuf out = {0};

    for (const char *s = text, *next; s && *s; s = next) {
        const size_t n = strspn(s, "+-.0123456789eE");

        next = *s == '"' ? string_end(s) : n ? s + n : s + 1;
        /*
         * A number begins with a digit or '-'. This must be tested, too, because words such as "false" contain an 'e'.
         */
        if (strchr("-0123456789", *s) && strcspn(s, ".eE") < n)
            append_jansson_real(&out, strtod(s, NULL));
        else
            strbuf_add(&out, s, (size_t)(next - s));
    }
    free(text);
    return out.buf;
}
