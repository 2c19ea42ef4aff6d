/*
 * options_value.c - the value of an option: the place at which it was given, its names in messages, and its conversion
 * from words
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/train/options/options_impl.h"

static const struct option_row *find_field_row(size_t field)
{
    OPTION_EACH(&options_table, g, r)
        if (r->dest && r->field == field)
            return r;
    return NULL;
}

enum opts_source options_source(const struct train_opts *o, size_t field)
{
    return o->impl->origin[field].source;
}

void options_mark(struct train_opts *o, size_t field, enum opts_source source)
{
    o->impl->origin[field] = (struct options_place){ source, source == FROM_CHECKPOINT ? "checkpoint" : NULL, NULL };
}

const char *options_label(const struct train_opts *o, const struct option_row *r, const struct options_place *at)
{
    const char *name = str_ends(r->name, "*") && at->as ? at->as : r->name;

    if (at->where)
        return arena_fmt(o->impl->arena, "--%s (%s)", name, at->where);
    return arena_fmt(o->impl->arena, "--%s%s", name, at->source == FROM_DEFAULT ? " (default)" : "");
}

const char *options_where(const struct train_opts *o, size_t field)
{
    return options_label(o, find_field_row(field), &o->impl->origin[field]);
}

const char *options_word(const struct train_opts *o, const struct option_row *r)
{
    int len;
    const char *word = option_word(r->words, *(const int *)((const char *)o + r->field), &len);

    return arena_strndup(o->impl->arena, word, (size_t)len);
}

void options_add_remark(struct train_opts *o, const char *fmt, ...)
{
    va_list ap;
    char *s;

    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        abort();
    va_end(ap);
    o->remark = xrealloc(o->remark, (size_t)(o->n_remarks + 1) * sizeof *o->remark);
    o->remark[o->n_remarks++] = s;
}

const char *options_env_name(const struct train_opts *o, const struct option_row *r)
{
    char *s = arena_fmt(o->impl->arena, "SHARDKIT_%s", r->name);

    for (char *p = s; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return s;
}

/*
 * Returns the word without quotes at its ends. Scripts that build their command line in a shell variable pass quotes as
 * part of a word: --pp-partition-method "'type:transformer|embedding'".
 */
static char *unquoted(struct train_opts *o, const char *word)
{
    size_t n = strlen(word);

    if (n >= 2 && (word[0] == '\'' || word[0] == '"') && word[n - 1] == word[0])
        return arena_strndup(o->impl->arena, word + 1, n - 2);
    return arena_strndup(o->impl->arena, word, n);
}

int options_parse_value(struct train_opts *o, const struct option_row *r, int n, char *const *words,
                        const struct options_place *at, struct err *e)
{
    const enum option_kind kind = option_kind(r);
    char **kept = arena_alloc(o->impl->arena, (size_t)(n + 1) * sizeof *kept);

    for (int i = 0; i < n; i++)
        kept[i] = kind == OPTION_TEXT || kind == OPTION_WORD
                  ? unquoted(o, words[i]) : arena_strndup(o->impl->arena, words[i], strlen(words[i]));
    if (kind == OPTION_NOTE && (!o->impl->ignored.buf || !strstr(o->impl->ignored.buf, r->name)))
        strbuf_addf(&o->impl->ignored, "%s--%s", o->impl->ignored.len ? ", " : "", r->name);
    return option_set_words(r, o, n, kept, options_label(o, r, at), e);
}

int options_set(struct train_opts *o, const struct option_row *r, int n, char *const *words,
                const struct options_place *at, struct err *e)
{
    if (options_parse_value(o, r, n, words, at, e) < 0)
        return -1;
    if (r->dest)
        o->impl->origin[r->field] = (struct options_place){ at->source, at->where, NULL };
    return 0;
}
