/* out.c - print text and JSON, for several sub-commands */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/text.h"
#include "tools/ckpt-inspect/inspect.h"

void out_json(json_t *o)
{
    char *s = text_dump(o, JSON_COMPACT);

    puts(s ? s : "{}");
    free(s);
    json_decref(o);
}

json_t *out_text(const char *s)
{
    return text_json(s);
}

json_t *out_int_or_null(int64_t v)
{
    return v < 0 ? json_null() : json_integer(v);
}

json_t *out_real(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *out_ulps(uint64_t ulps)
{
    return ulps > INT64_MAX ? json_null() : json_integer((json_int_t)ulps);
}

const char *out_ulps_text(uint64_t ulps, char buf[32])
{
    if (ulps == STATS_NO_ULPS)
        return "NaN";
    snprintf(buf, 32, "%" PRIu64 " ulp%s", ulps, ulps == 1 ? "" : "s");
    return buf;
}

json_t *out_shape(const int64_t *shape, int ndim)
{
    json_t *a = json_array();

    for (int i = 0; i < ndim; i++)
        json_array_append_new(a, json_integer(shape[i]));
    return a;
}

static const char *const severity_names[] = { "note", "warning", "error" };

json_t *out_findings(const struct report *r)
{
    json_t *a = json_array();

    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);

        json_array_append_new(a, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}",
            "severity", severity_names[f->severity], "code", f->code, "file", out_text(f->file),
            "byte", f->at == ERR_NO_BYTE ? json_null() : json_integer((json_int_t)f->at),
            "parameter", out_text(f->param), "text", out_text(f->text)));
    }
    return a;
}

void out_findings_text(const struct report *r, enum severity least)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);
        char *text = finding_text(f);

        if (f->severity >= least)
            cli_printf(stdout, "%s: %s\n", severity_names[f->severity], text);
        free(text);
    }
}

int out_open_findings(const struct inspect *in, const struct report *r)
{
    for (int i = 0; i < report_n(r); i++) {
        const struct finding *f = report_get(r, i);
        char *text = finding_text(f);

        if (f->severity == SEV_ERROR)
            cli_printf(stderr, "%s: %s\n", in->cli.name, text);
        else if (in->cli.verbose)
            cli_warn(&in->cli, "%s", text);
        free(text);
    }
    return report_count(r, SEV_ERROR) ? EXIT_BAD : EXIT_OK;
}

/* ---- pickled values ---- */

/*
 * Limits for values that are printed. In a pickle a node can have many parents, so a small pickle can describe a huge
 * tree.
 */
enum { PICKLED_MAX_NODES = 1 << 16, PICKLED_MAX_DEPTH = 32 };

static json_t *as_text(const struct pk *v)
{
    struct strbuf sb = {0};
    json_t *o;

    pk_text(v, &sb);
    /* pk_text() writes enum members and tensors as strings in quotes. */
    o = sb.buf ? json_loads(sb.buf, JSON_DECODE_ANY, NULL) : NULL;
    if (!json_is_string(o)) {
        json_decref(o);
        o = out_text(sb.buf ? sb.buf : "");
    }
    strbuf_free(&sb);
    return o;
}

static json_t *pickled(const struct pk *v, int depth, int *left)
{
    struct pk **item;
    uint32_t n;
    json_t *o;
    int64_t i;

    if (--*left < 0 || depth > PICKLED_MAX_DEPTH)
        return json_string("...");
    if (pk_is_none(v))
        return json_null();
    if (v->type == PK_BOOL)
        return json_boolean(v->i);
    if (v->type == PK_FLOAT)
        return isfinite(v->f) ? json_real(v->f) : as_text(v);
    if (v->type == PK_STR)
        return (o = json_stringn(v->str, v->len)) ? o : as_text(v);
    if (pk_as_int(v, &i))
        return json_integer(i);
    if ((v->type == PK_LIST || v->type == PK_TUPLE) && (item = pk_items(v, &n))) {
        o = json_array();
        for (uint32_t k = 0; k < n && *left > 0; k++)
            json_array_append_new(o, pickled(item[k], depth + 1, left));
        return o;
    }
    if (v->type == PK_DICT && (item = pk_pairs(v, &n))) {
        o = json_object();
        for (uint32_t k = 0; k < n && *left > 0; k++) {
            struct strbuf key = {0};

            if (pk_as_str(item[2 * k]))
                strbuf_addf(&key, "%s", pk_as_str(item[2 * k]));
            else
                pk_text(item[2 * k], &key);
            json_object_set_new(o, key.buf ? key.buf : "", pickled(item[2 * k + 1], depth + 1, left));
            strbuf_free(&key);
        }
        return o;
    }
    return as_text(v);
}

json_t *out_pickled(const struct pk *v)
{
    int left = PICKLED_MAX_NODES;

    return pickled(v, 0, &left);
}
