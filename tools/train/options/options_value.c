/*
 * options_value.c - convert an option's words into the value of its field
 */
#include <ctype.h>
#include <string.h>

#include "tools/train/options/options_impl.h"

const char *options_env_name(const struct train_opts *o, const struct option_row *r)
{
    char *s = arena_fmt(o->impl->arena, "SHARDKIT_%s", r->name);

    for (char *p = s; *p; p++)
        *p = *p == '-' ? '_' : (char)toupper((unsigned char)*p);
    return s;
}

/*
 * Remove quotes that are part of the word. Scripts that build their command in a shell variable pass them on:
 * --pp-partition-method "'type:transformer|embedding'".
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
