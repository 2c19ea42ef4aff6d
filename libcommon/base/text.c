/*
 * text.c - bytes that are no UTF-8 are spelled out, so that every name makes a JSON string
 */
#include "libcommon/base/text.h"

#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/utf8.h"

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
