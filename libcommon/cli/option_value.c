/*
 * option_value.c - convert an option's words into the value of its field
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/option_table.h"

static int refuse_option_word(const char *label, const char *word, const char *expected, struct err *e)
{
    err_usage(e, "%s: '%s' is not %s", label, word, expected);
    return -1;
}

static int set_flag_field(const struct option_row *r, bool *out, const char *word, const char *label, struct err *e)
{
    static const char *const yes[] = { "1", "true", "yes", "on" }, *const no[] = { "0", "false", "no", "off" };
    bool given = true;

    if (word) {
        int i = 0;

        while (i < 4 && strcasecmp(word, yes[i]) != 0 && strcasecmp(word, no[i]) != 0)
            i++;
        if (i == 4)
            return refuse_option_word(label, word, "true or false", e);
        given = strcasecmp(word, yes[i]) == 0;
    }
    *out = r->kind == OPTION_UNFLAG ? !given : given;
    return 0;
}

static int set_int_field(const struct option_row *r, void *out, const char *word, const char *label, struct err *e)
{
    int64_t v;

    if (parse_int(word, INT64_MIN + 1, INT64_MAX, &v) < 0)
        return refuse_option_word(label, word, "a whole number", e);
    if ((double)v < r->min || (double)v > r->max) {
        err_usage(e, "%s: %s is out of range; the value must be from %.0f to %.0f", label, word, r->min, r->max);
        return -1;
    }
    if (r->size == sizeof(int))
        *(int *)out = (int)v;
    else
        *(int64_t *)out = v;
    return 0;
}

static int set_octal(int64_t *out, const char *word, const char *label, struct err *e)
{
    size_t len = strlen(word);
    int64_t v = 0;

    for (const char *p = word; *p >= '0' && *p <= '7' && len <= 4; p++)
        v = 8 * v + (*p - '0');
    if (len == 0 || len > 4 || strspn(word, "01234567") != len || v > 0777)
        return refuse_option_word(label, word, "an octal number up to 777", e);
    *out = v;
    return 0;
}

/* Parse a number as Python parses a float. '_' between digits is allowed; hexadecimal numbers and "nan" are not. */
static int set_real_field(const struct option_row *r, double *out, const char *word, const char *label, struct err *e)
{
    char text[64], *end = text;
    double v = 0;
    size_t n = 0;

    for (const char *p = word; *p && n < sizeof text - 1; p++)
        if (*p != '_' || p == word || !isdigit((unsigned char)p[-1]) || !isdigit((unsigned char)p[1]))
            text[n++] = *p;
    text[n] = '\0';
    if (n && strspn(text, "0123456789.eE+-") == n)
        v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return refuse_option_word(label, word, "a number", e);
    if (v < r->min || v > r->max) {
        err_usage(e, "%s: %s is out of range; the value must be from %g to %g", label, word, r->min, r->max);
        return -1;
    }
    *out = v;
    return 0;
}

static int set_word(const struct option_row *r, int *out, const char *word, const char *label, struct err *e)
{
    struct strbuf expected = {0};
    const char *p;
    int len;

    for (int i = 0; *(p = option_word(r->words, i, &len)); i++) {
        if (strlen(word) == (size_t)len && memcmp(word, p, (size_t)len) == 0) {
            *out = i + (int)r->min;
            strbuf_free(&expected);
            return 0;
        }
        strbuf_addf(&expected, "%s%.*s", i == 0 ? "" : p[len] ? ", " : " or ", len, p);
    }
    err_usage(e, "%s: '%s' is not supported; the value must be %s", label, word, expected.buf);
    strbuf_free(&expected);
    return -1;
}

static int check_only(const struct option_row *r, const char *word, const char *label, struct err *e)
{
    char *end;

    /* "1" is accepted if the only value is "1.0" */
    if (strcmp(word, r->def) == 0 || (strtod(word, &end) == strtod(r->def, NULL) && end != word))
        return 0;
    err_usage(e, "%s: '%s' is not supported: %s", label, word, r->help);
    return -1;
}

static int parse_each_word(const struct option_row *r, void *into, int n, char *const *words, struct err *e)
{
    for (int i = 0; i < (n ? n : 1); i++)
        if (r->take(into, n ? words[i] : NULL, e) < 0)
            return -1;
    return 0;
}

int option_set_words(const struct option_row *r, void *into, int n, char *const *words, const char *label,
                     struct err *e)
{
    void *field = (char *)into + r->field;
    const char *word = n ? words[0] : NULL;

    switch (option_kind(r)) {
    case OPTION_FLAG: case OPTION_UNFLAG: case OPTION_BOOL: return set_flag_field(r, field, word, label, e);
    case OPTION_INT: return set_int_field(r, field, word, label, e);
    case OPTION_OCTAL: return set_octal(field, word, label, e);
    case OPTION_REAL: return set_real_field(r, field, word, label, e);
    case OPTION_WORD: return set_word(r, field, word, label, e);
    case OPTION_VALUE: *(int *)field = (int)r->min; return 0;
    case OPTION_TEXT: *(const char **)field = word; return 0;
    case OPTION_LIST: *(struct option_list *)field = (struct option_list){ n, (char **)words }; return 0;
    case OPTION_TAKE: return parse_each_word(r, into, n, words, e);
    case OPTION_ONLY: return check_only(r, n ? word : "", label, e);
    case OPTION_REFUSED: err_usage(e, "%s: %s", label, r->help); return -1;
    default: return 0;
    }
}

void option_set_defaults(const struct option_table *o)
{
    struct err e = {0};

    OPTION_EACH(o, g, r)
        if (r->def && option_is_shown(r) && r->kind != OPTION_ALIAS &&
            option_set_words(r, g->into ? g->into : o->into, 1, &(char *){ (char *)r->def }, r->name, &e) < 0)
            abort();                    /* the row contains contradictory settings */
}
