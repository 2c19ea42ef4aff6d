/* pickle_text.c - format a tree as JSON text, for `ckpt-inspect args` and for messages */
#include "libcommon/format/pickle/pickle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/format/pickle/pickle_classes.h"

/* Integers with more bytes are not printed in decimal, because the conversion takes quadratic time. */
enum { MAX_DIGITS_BYTES = 64 };

static void text_string(struct strbuf *out, const char *s, uint64_t len)
{
    strbuf_add(out, "\"", 1);
    for (uint64_t i = 0; i < len; i++) {
        uint8_t c = (uint8_t)s[i];

        if (c == '"' || c == '\\')
            strbuf_addf(out, "\\%c", c);
        else if (c == '\n')
            strbuf_add(out, "\\n", 2);
        else if (c == '\t')
            strbuf_add(out, "\\t", 2);
        else if (c < ' ' || c == 0x7f)
            strbuf_addf(out, "\\u%04x", c);
        /*
         * The bytes ED A0..BF xx encode a lone surrogate. Only Python accepts this as UTF-8, so the surrogate is
         * printed as an escape.
         */
        else if (c == 0xed && (uint8_t)s[i + 1] >= 0xa0) {
            strbuf_addf(out, "\\u%04x", 0xd000 | ((uint8_t)s[i + 1] & 0x3f) << 6 | ((uint8_t)s[i + 2] & 0x3f));
            i += 2;
        } else
            strbuf_add(out, &s[i], 1);
    }
    strbuf_add(out, "\"", 1);
}

/* Append the shortest decimal number that parses as the same double. It always has a point or an exponent. */
static void text_float(struct strbuf *out, double f)
{
    char buf[40];

    if (!isfinite(f)) {
        strbuf_addf(out, "\"%s\"", isnan(f) ? "NaN" : f > 0 ? "Infinity" : "-Infinity");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, f);
        if (strtod(buf, NULL) == f)
            break;
    }
    strbuf_addf(out, "%s%s", buf, strpbrk(buf, ".e") ? "" : ".0");
}

/* Append a big integer in decimal by repeated division by ten. */
static void text_bigint(struct strbuf *out, const struct pk *v)
{
    uint8_t mag[MAX_DIGITS_BYTES];
    char digits[MAX_DIGITS_BYTES * 5 / 2 + 2];
    bool negative = (uint8_t)v->str[v->len - 1] >= 0x80;
    int n = (int)v->len, at = sizeof digits;
    unsigned carry = 1;

    if (v->len > MAX_DIGITS_BYTES) {
        strbuf_addf(out, "\"<integer of %llu bytes>\"", (unsigned long long)v->len);
        return;
    }
    for (int i = 0; i < n; i++) {
        carry += (uint8_t)~v->str[i];
        mag[i] = negative ? (uint8_t)carry : (uint8_t)v->str[i];
        carry >>= 8;
    }
    while (n) {
        unsigned rest = 0;

        for (int i = n - 1; i >= 0; i--) {
            rest = rest << 8 | mag[i];
            mag[i] = (uint8_t)(rest / 10);
            rest %= 10;
        }
        digits[--at] = (char)('0' + rest);
        while (n && mag[n - 1] == 0)
            n--;
    }
    strbuf_addf(out, "%s%.*s", negative ? "-" : "", (int)sizeof digits - at, digits + at);
}

static void text_items(struct strbuf *out, struct pk **item, uint32_t n)
{
    strbuf_add(out, "[", 1);
    for (uint32_t i = 0; i < n; i++) {
        if (i)
            strbuf_add(out, ", ", 2);
        pk_text(item[i], out);
    }
    strbuf_add(out, "]", 1);
}

/* Append pairs as a JSON object. JSON keys are strings, so the text of a key that is not a string is used in quotes. */
static void text_pairs(struct strbuf *out, struct pk **item, uint32_t n)
{
    strbuf_add(out, "{", 1);
    for (uint32_t i = 0; i < n; i++) {
        const struct pk *key = item[2 * i];

        if (i)
            strbuf_add(out, ", ", 2);
        if (key->type == PK_STR) {
            text_string(out, key->str, key->len);
        } else {
            struct strbuf text = {0};

            pk_text(key, &text);
            text_string(out, text.buf, text.len);
            strbuf_free(&text);
        }
        strbuf_add(out, ": ", 2);
        pk_text(item[2 * i + 1], out);
    }
    strbuf_add(out, "}", 1);
}

/*
 * Append a text such as "tensor f32 [4, 2]", derived only from the arguments of the call. Returns false if the
 * arguments do not describe a tensor.
 */
static bool text_tensor(struct strbuf *out, const struct pk *args)
{
    const struct pk *storage = args->type == PK_TUPLE && args->n >= 4 ? args->item[0] : NULL;
    enum dtype dtype;
    uint32_t n;
    struct pk **dim;
    bool raw;

    if (!storage || storage->type != PK_PERSID || storage->args->n < 2 ||
        !pickle_storage_dtype(storage->args->item[1], &dtype, &raw) || !(dim = pk_items(args->item[2], &n)) ||
        (raw && (args->n < 7 || !pickle_dtype(args->item[6], &dtype))))
        return false;
    strbuf_addf(out, "\"tensor %s ", dtype_name(dtype));
    text_items(out, dim, n);
    strbuf_add(out, "\"", 1);
    return true;
}

static void text_act(struct strbuf *out, const struct pk *v)
{
    const char *member;
    int64_t value;
    double number;
    uint32_t n;
    struct pk **item;
    char name[1024];

    if (v->opaque || !pk_class(v, name, sizeof name))
        goto opaque;
    member = pk_enum(v, &value);
    if (member)
        strbuf_addf(out, "\"%s.%s\"", strrchr(name, '.') + 1, member);
    else if (value != INT64_MIN)
        strbuf_addf(out, "\"%s(%lld)\"", strrchr(name, '.') + 1, (long long)value);
    else if ((item = pk_pairs(v, &n)))
        text_pairs(out, item, n);
    else if ((item = pk_items(v, &n)))
        text_items(out, item, n);
    else if (pk_as_int(v, &value))
        strbuf_addf(out, "%lld", (long long)value);
    else if (pk_as_double(v, &number))
        text_float(out, number);
    else if (pk_is_class(v, "torch._utils", "_rebuild_parameter") && v->args->n)
        pk_text(v->args->item[0], out);
    else if (pk_is_class(v, "torch._tensor", "_rebuild_from_type_v2") ? v->args->n < 3 ||
                 !text_tensor(out, v->args->item[2])
             : !pk_is_class(v, "torch._utils", v->fn->name) || strncmp(v->fn->name, "_rebuild_tensor", 15) != 0 ||
                   !text_tensor(out, v->args))
        goto opaque;
    return;
opaque:
    strbuf_addf(out, "\"<%s>\"", pk_class(v, name, sizeof name) ? name : "object");
}

void pk_text(const struct pk *v, struct strbuf *out)
{
    if (!v) {
        strbuf_addf(out, "null");
        return;
    }
    switch (v->type) {
    case PK_NONE:   strbuf_addf(out, "null"); break;
    case PK_BOOL:   strbuf_addf(out, v->i ? "true" : "false"); break;
    case PK_ROW:
    case PK_INT:    strbuf_addf(out, "%lld", (long long)v->i); break;
    case PK_BIGINT: text_bigint(out, v); break;
    case PK_FLOAT:  text_float(out, v->f); break;
    case PK_STR:    text_string(out, v->str, v->len); break;
    case PK_BYTES:  strbuf_addf(out, "\"<%llu bytes>\"", (unsigned long long)v->len); break;
    case PK_LIST: case PK_TUPLE: case PK_SET: text_items(out, v->item, v->n); break;
    case PK_DICT:   text_pairs(out, v->item, v->n); break;
    case PK_GLOBAL: strbuf_addf(out, v->opaque ? "\"<%s.%s>\"" : "\"%s.%s\"", v->module, v->name); break;
    case PK_CALL: case PK_OBJ: text_act(out, v); break;
    case PK_PERSID: strbuf_addf(out, "\"<storage>\""); break;
    }
}

bool pk_same_text(const struct pk *a, const struct pk *b)
{
    struct strbuf x = {0}, y = {0};
    bool same;

    pk_text(a, &x);
    pk_text(b, &y);
    same = x.len == y.len && memcmp(x.buf, y.buf, x.len) == 0;
    strbuf_free(&x);
    strbuf_free(&y);
    return same;
}
