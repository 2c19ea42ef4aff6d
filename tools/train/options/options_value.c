/*
 * options_value.c - one option's value, from words to its field
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/parse.h"
#include "tools/train/options/options_impl.h"

const char *options_env_name(const struct train_opts *o, const struct options_row *r)
{
    char *s = arena_fmt(o->impl->arena, "SHARDKIT_%s", r->name);

    for (char *p = s; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return s;
}

static int bad(const struct train_opts *o, const struct options_row *r, const struct options_place *at,
               const char *word, const char *expected, struct err *e)
{
    err_usage(e, "%s: '%s' is not %s", options_label(o, r, at), word, expected);
    return -1;
}

static int set_flag(struct train_opts *o, const struct options_row *r, int n, char *const *words,
                    const struct options_place *at, struct err *e)
{
    static const char *const yes[] = { "1", "true", "yes", "on" }, *const no[] = { "0", "false", "no", "off" };
    bool *out = options_at(o, r), given = true;

    if (n) {
        int i = 0;

        while (i < 4 && strcasecmp(words[0], yes[i]) != 0 && strcasecmp(words[0], no[i]) != 0)
            i++;
        if (i == 4)
            return bad(o, r, at, words[0], "true or false", e);
        given = strcasecmp(words[0], yes[i]) == 0;
    }
    *out = r->kind == KIND_UNFLAG ? !given : given;
    return 0;
}

static int set_int(struct train_opts *o, const struct options_row *r, const char *word, const struct options_place *at,
                   struct err *e)
{
    int64_t *out = options_at(o, r), v;

    if (parse_int(word, INT64_MIN + 1, INT64_MAX, &v) < 0)
        return bad(o, r, at, word, "a whole number", e);
    if ((double)v < r->min || (double)v > r->max) {
        err_usage(e, "%s: %s is out of range: expected %.0f to %.0f", options_label(o, r, at), word, r->min, r->max);
        return -1;
    }
    *out = v;
    return 0;
}

static int set_octal(struct train_opts *o, const struct options_row *r, const char *word,
                     const struct options_place *at, struct err *e)
{
    int64_t *out = options_at(o, r), v = 0;
    size_t len = strlen(word);

    for (const char *p = word; *p >= '0' && *p <= '7' && len <= 4; p++)
        v = 8 * v + (*p - '0');
    if (len == 0 || len > 4 || strspn(word, "01234567") != len || v > 0777)
        return bad(o, r, at, word, "an octal number up to 777", e);
    *out = v;
    return 0;
}

/* As Python reads a float: '_' between digits, no hexadecimal, no "nan". */
static int set_real(struct train_opts *o, const struct options_row *r, const char *word, const struct options_place *at,
                    struct err *e)
{
    double *out = options_at(o, r), v = 0;
    char text[64], *end = text;
    size_t n = 0;

    for (const char *p = word; *p && n < sizeof text - 1; p++)
        if (*p != '_' || p == word || !isdigit((unsigned char)p[-1]) || !isdigit((unsigned char)p[1]))
            text[n++] = *p;
    text[n] = '\0';
    if (n && strspn(text, "0123456789.eE+-") == n)
        v = strtod(text, &end);
    if (end == text || *end || !isfinite(v))
        return bad(o, r, at, word, "a number", e);
    if (v < r->min || v > r->max) {
        err_usage(e, "%s: %s is out of range: expected %g to %g", options_label(o, r, at), word, r->min, r->max);
        return -1;
    }
    *out = v;
    return 0;
}

static int set_word(struct train_opts *o, const struct options_row *r, const char *word, const struct options_place *at,
                    struct err *e)
{
    int *out = options_at(o, r);
    struct strbuf expected = {0};

    for (int i = 0; r->words[i]; i++)
        if (strcmp(word, r->words[i]) == 0) {
            *out = i;
            return 0;
        }
    for (int i = 0; r->words[i]; i++)
        strbuf_addf(&expected, "%s%s", i == 0 ? "" : r->words[i + 1] ? ", " : " or ", r->words[i]);
    err_usage(e, "%s: '%s' is not supported: expected %s", options_label(o, r, at), word, expected.buf);
    strbuf_free(&expected);
    return -1;
}

/*
 * Scripts that build their command in a shell variable pass quotes on as part of the word:
 * --pp-partition-method "'type:transformer|embedding'".
 */
static const char *unquoted(struct train_opts *o, const char *word)
{
    size_t n = strlen(word);

    if (n >= 2 && (word[0] == '\'' || word[0] == '"') && word[n - 1] == word[0])
        return arena_strndup(o->impl->arena, word + 1, n - 2);
    return arena_strndup(o->impl->arena, word, n);
}

static void set_list(struct train_opts *o, const struct options_row *r, int n, char *const *words)
{
    struct opts_list *out = options_at(o, r);

    out->n = n;
    out->v = arena_alloc(o->impl->arena, (size_t)(n + 1) * sizeof *out->v);
    for (int i = 0; i < n; i++)
        out->v[i] = arena_strndup(o->impl->arena, words[i], strlen(words[i]));
}

static int set_only(struct train_opts *o, const struct options_row *r, const char *word, const struct options_place *at,
                    struct err *e)
{
    char *end;

    /* "1" is as good as "1.0" */
    if (strcmp(word, r->def) != 0 && (strtod(word, &end) != strtod(r->def, NULL) || end == word)) {
        err_usage(e, "%s: '%s' is not supported: %s", options_label(o, r, at), word, r->help);
        return -1;
    }
    return 0;
}

/* -1 for a refused option, 0 for one that changes nothing. */
static int without_field(struct train_opts *o, const struct options_row *r, int n, char *const *words,
                         const struct options_place *at, struct err *e)
{
    if (r->kind == KIND_REFUSED) {
        err_usage(e, "%s: %s", options_label(o, r, at), r->help);
        return -1;
    }
    if (r->kind == KIND_ONLY)
        return set_only(o, r, n ? words[0] : "", at, e);
    if (!o->impl->ignored.buf || !strstr(o->impl->ignored.buf, r->name))
        strbuf_addf(&o->impl->ignored, "%s--%s", o->impl->ignored.len ? ", " : "", r->name);
    return 0;
}

int options_take_value(struct train_opts *o, const struct options_row *r, int n, char *const *words,
                       const struct options_place *at, struct err *e)
{
    switch (r->kind) {
    case KIND_FLAG: case KIND_UNFLAG: case KIND_BOOL: return set_flag(o, r, n, words, at, e);
    case KIND_INT: return set_int(o, r, words[0], at, e);
    case KIND_OCTAL: return set_octal(o, r, words[0], at, e);
    case KIND_REAL: return set_real(o, r, words[0], at, e);
    case KIND_WORD: return set_word(o, r, unquoted(o, words[0]), at, e);
    case KIND_TEXT: *(const char **)options_at(o, r) = unquoted(o, words[0]); return 0;
    case KIND_LIST: set_list(o, r, n, words); return 0;
    default: return without_field(o, r, n, words, at, e);
    }
}

int options_set(struct train_opts *o, const struct options_row *r, int n, char *const *words,
                const struct options_place *at, struct err *e)
{
    if (options_take_value(o, r, n, words, at, e) < 0)
        return -1;
    o->impl->origin[r - options_rows] = (struct options_place){ at->source, at->where, NULL };
    return 0;
}
