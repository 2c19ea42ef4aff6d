/*
 * options_find.c - the source of an option's value, and notes
 */
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
