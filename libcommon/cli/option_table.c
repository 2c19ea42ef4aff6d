/*
 * option_table.c - find an option by its full, abbreviated or misspelled name
 */
#include "libcommon/cli/option_table.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/option_find.h"

enum option_kind option_kind(const struct option_row *r)
{
    if (r->kind != OPTION_PLAIN)
        return r->kind;
    return r->take ? OPTION_TAKE : r->words ? OPTION_WORD : r->arg ? OPTION_TEXT : OPTION_FLAG;
}

bool option_is_shown(const struct option_row *r)
{
    return r->kind != OPTION_NOTE && r->kind != OPTION_ONLY && r->kind != OPTION_REFUSED;
}

/* '_' and '-' are equivalent in names, because the reference implementation uses both. */
static bool same_letter(char a, char b)
{
    return a == b || ((a == '_' || a == '-') && (b == '_' || b == '-'));
}

static bool row_is(const struct option_row *r, const char *name)
{
    const char *p = r->name;

    for (; *p && *p != '*' && same_letter(*p, *name); p++)
        name++;
    return *p == '*' || (!*p && !*name);
}

static bool row_begins(const struct option_row *r, const char *name)
{
    const char *p = r->name;

    for (; *name && same_letter(*p, *name); p++)
        name++;
    return !*name;
}

struct option_at option_at(const struct option_table *o, const char *name)
{
    OPTION_EACH(o, g, r)
        if (row_is(r, name))
            return r->kind == OPTION_ALIAS ? option_at(o, r->def) : (struct option_at){ r, g };
    return (struct option_at){ NULL, NULL };
}

/* Returns true if the two options have the same effect. An abbreviation that matches both is then not ambiguous. */
static bool same_meaning(struct option_at a, struct option_at b)
{
    if (a.row->kind == OPTION_NOTE)
        return b.row->kind == OPTION_NOTE && !a.row->arg == !b.row->arg;
    return a.row == b.row || (a.row->take && a.row->take == b.row->take && a.row->field == b.row->field);
}

struct option_at option_at_short(const struct option_table *o, const char *name, struct strbuf *names)
{
    struct option_at found = {0};
    bool several = false;

    OPTION_EACH(o, g, r) {
        const struct option_at at = r->kind == OPTION_ALIAS ? option_at(o, r->def) : (struct option_at){ r, g };

        if (!*name || !row_begins(r, name))
            continue;
        if (names)
            strbuf_addf(names, "%s--%s", names->len ? ", " : "", r->name);
        several |= found.row && !same_meaning(found, at);
        found = at;
    }
    return several ? (struct option_at){0} : found;
}

struct option_at option_at_letter(const struct option_table *o, char letter)
{
    OPTION_EACH(o, g, r)
        if (r->letter == letter)
            return (struct option_at){ r, g };
    return (struct option_at){0};
}

const struct option_row *option_find(const struct option_table *o, const char *name)
{
    return option_at(o, name).row;
}

const struct option_row *option_meant(const struct option_table *o, const char *name)
{
    const struct option_row *r = option_find(o, name);

    return r ? r : option_at_short(o, name, NULL).row;
}

/* Return the known name that ends in "-" followed by `words`. Returns NULL if there is none or more than one. */
static const char *ends_with(const char *words, const char *const *known, int n)
{
    char *end = str_fmt("-%s", words);
    const char *found = NULL;
    int several = 0;

    for (int i = 0; i < n; i++)
        if (str_ends(known[i], end)) {
            several += found != NULL;
            found = known[i];
        }
    free(end);
    return several ? NULL : found;
}

const char *option_nearest(const struct option_table *o, const char *name)
{
    const char **known, *near;
    char *folded = xstrdup(name);
    int n = 0;

    for (char *p = folded; *p; p++)
        if (*p == '_')
            *p = '-';
    OPTION_EACH(o, g, r)
        n++;
    known = xcalloc((size_t)n, sizeof *known);
    n = 0;
    OPTION_EACH(o, g, r)
        if (r->kind != OPTION_REFUSED)
            known[n++] = r->name;
    near = ends_with(folded, known, n);         /* this test comes first, so that "--tp" suggests --target-tp and not
                                                 * another name of two letters */
    if (!near)
        near = parse_nearest(folded, known, n);
    for (int i = 0; i < n && !near; i++)        /* "--micro-batch" is not misspelled but only the beginning of a name */
        if (strlen(folded) > 2 && str_starts(known[i], folded))
            near = known[i];
    free(known);
    free(folded);
    return near;
}

const struct option_command *option_command_find(const struct option_table *o, const char *name)
{
    for (const struct option_command *c = o->commands; c && c->name && name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

bool option_fits_command(const struct option_group *g, const struct option_row *r, const struct option_command *c)
{
    const unsigned marks = g->marks | r->marks;

    return marks == 0 || (marks & c->mark);
}

const char *option_word(const char *words, int i, int *len)
{
    while (i-- > 0) {
        words += strcspn(words, " ");
        words += strspn(words, " ");
    }
    *len = (int)strcspn(words, " ");
    return words;
}
