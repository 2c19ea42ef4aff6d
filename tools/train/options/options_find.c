/*
 * options_find.c - one option among all: its row by name, short name, letter or field, and where its value came from
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "tools/train/options/options_impl.h"

/* ---- rows ---- */

/* '_' and '-' are one letter in names: the reference has both. */
static bool same_letter(char a, char b)
{
    return a == b || ((a == '_' || a == '-') && (b == '_' || b == '-'));
}

bool options_row_matches(const struct options_row *r, const char *name)
{
    const char *p = r->name;

    for (; *p && *p != '*' && same_letter(*p, *name); p++)
        name++;
    return *p == '*' || (!*p && !*name);
}

const struct options_row *options_find(const char *name)
{
    for (int i = 0; i < options_n_rows; i++) {
        const struct options_row *r = &options_rows[i];

        if (options_row_matches(r, name))
            return r->kind == KIND_ALIAS ? options_find(r->help) : r;
    }
    return NULL;
}

static bool row_begins(const struct options_row *r, const char *name)
{
    const char *p = r->name;

    for (; *name && same_letter(*p, *name); p++)
        name++;
    return !*name;
}

const struct options_row *options_find_short(const char *name, struct strbuf *names)
{
    const struct options_row *found = NULL;
    bool several = false;

    for (int i = 0; i < options_n_rows; i++) {
        const struct options_row *r = &options_rows[i];

        if (!*name || !row_begins(r, name))
            continue;
        if (names)
            strbuf_addf(names, "%s--%s", names->len ? ", " : "", r->name);
        r = r->kind == KIND_ALIAS ? options_find(r->help) : r;
        several |= found && found != r;
        found = r;
    }
    return several ? NULL : found;
}

const struct options_row *options_find_letter(char letter)
{
    for (int i = 0; i < options_n_rows; i++)
        if (options_rows[i].letter == letter)
            return &options_rows[i];
    return NULL;
}

const struct options_row *options_row_of(size_t field)
{
    for (int i = 0; i < options_n_rows; i++)
        if (options_rows[i].dest && options_rows[i].field == field)
            return &options_rows[i];
    return NULL;
}

const char *options_nearest(const char *name)
{
    const char *known[512], *near;
    char *folded = xstrdup(name);
    int n = 0;

    for (char *p = folded; *p; p++)
        if (*p == '_')
            *p = '-';
    for (int i = 0; i < options_n_rows && n < 512; i++)
        if (options_rows[i].kind != KIND_REFUSED)
            known[n++] = options_rows[i].name;
    near = parse_nearest(folded, known, n);
    for (int i = 0; i < n && !near; i++)        /* "--micro-batch" is no typo, only short */
        if (strlen(folded) > 2 && str_starts(known[i], folded))
            near = known[i];
    free(folded);
    return near;
}

/* ---- where values came from ---- */

static struct options_place *origin_of(const struct train_opts *o, size_t field)
{
    return &o->impl->origin[options_row_of(field) - options_rows];
}

enum opts_source options_source(const struct train_opts *o, size_t field)
{
    return origin_of(o, field)->source;
}

void options_mark(struct train_opts *o, size_t field, enum opts_source source)
{
    *origin_of(o, field) = (struct options_place){ source, source == FROM_CHECKPOINT ? "checkpoint" : NULL, NULL };
}

const char *options_label(const struct train_opts *o, const struct options_row *r, const struct options_place *at)
{
    const char *name = str_ends(r->name, "*") && at->as ? at->as : r->name;

    if (at->where)
        return arena_fmt(o->impl->arena, "--%s (%s)", name, at->where);
    return arena_fmt(o->impl->arena, "--%s%s", name, at->source == FROM_DEFAULT ? " (default)" : "");
}

const char *options_where(const struct train_opts *o, size_t field)
{
    return options_label(o, options_row_of(field), origin_of(o, field));
}

void options_note(struct train_opts *o, const char *fmt, ...)
{
    va_list ap;
    char *s;

    va_start(ap, fmt);
    if (vasprintf(&s, fmt, ap) < 0)
        abort();
    va_end(ap);
    o->note = xrealloc(o->note, (size_t)(o->n_notes + 1) * sizeof *o->note);
    o->note[o->n_notes++] = s;
}
