/*
 * option_man.c - print the rows of an option table as entries of a manual page, in roff
 *
 * An option begins with .TP, the title of a group with .SS. docs/options.awk inserts the entries into the page, and
 * keeps the page's additional text about each option.
 */
#include <ctype.h>
#include <string.h>

#include "libcommon/cli/option_table.h"

enum { MAN_WIDTH = 116 };

static void append_roff_escaped(struct strbuf *text, const char *s, int n)
{
    for (int i = 0; i < n && s[i]; i++)
        strbuf_addf(text, s[i] == '-' ? "\\-" : s[i] == '\\' ? "\\e" : "%c", s[i]);
}

/*
 * Append the words, broken into lines. roff would read a line that begins with a quote or a full stop as a command, so
 * \& is put in front of such a line.
 */
static void add_lines(struct strbuf *text, const char *words)
{
    int column = 0;

    while (*words) {
        int n = (int)strcspn(words, " \n");

        if (column && column + 1 + n > MAN_WIDTH) {
            strbuf_addf(text, "\n");
            column = 0;
        }
        strbuf_addf(text, "%s%s", column ? " " : "", !column && strchr("'.", *words) ? "\\&" : "");
        append_roff_escaped(text, words, n);
        column += n + 1;
        if (words[n] == '\n') {
            strbuf_addf(text, "\n.br\n");
            column = 0;
        }
        words += n + (words[n] != '\0');
    }
    strbuf_addf(text, "\n");
}

/*
 * Returns true if the help text begins with an ordinary word. Returns false if it begins with a value of the option, or
 * with a list of values.
 */
static bool begins_with_word(const struct option_row *r)
{
    size_t n = strspn(r->help, "abcdefghijklmnopqrstuvwxyz-");
    int len;

    if (n == 0 || !strchr(" ,;", r->help[n]))           /* strchr() also finds the terminating zero */
        return false;
    for (int i = 0; r->words && *option_word(r->words, i, &len); i++)
        if ((size_t)len == n && memcmp(option_word(r->words, i, &len), r->help, n) == 0)
            return false;
    return true;
}

static void add_sentence(struct strbuf *text, const struct option_row *r)
{
    struct strbuf s = {0};

    strbuf_addf(&s, "%s", r->help);
    if (begins_with_word(r))
        s.buf[0] = (char)toupper((unsigned char)s.buf[0]);
    if (r->def && option_is_shown(r) && option_kind(r) > OPTION_BOOL && r->kind != OPTION_ALIAS)
        strbuf_addf(&s, " (default %s)", r->def);
    strbuf_addf(&s, ".");
    add_lines(text, s.buf);
    strbuf_free(&s);
}

static void append_man_entry(struct strbuf *text, const struct option_row *r)
{
    const char *arg = r->kind == OPTION_ONLY ? r->def : r->arg;

    strbuf_addf(text, ".TP\n.B%s ", r->letter ? "R" : arg ? "I" : "");
    if (r->letter)
        strbuf_addf(text, "\\-%c \", \" ", r->letter);
    append_roff_escaped(text, "--", 2);
    append_roff_escaped(text, r->name, (int)strlen(r->name));
    if (arg) {
        strbuf_addf(text, r->letter ? " \" \\fI" : " \" ");
        append_roff_escaped(text, arg, (int)strlen(arg));
        strbuf_addf(text, r->letter ? "\\fR\"" : "\"");
    }
    strbuf_addf(text, "\n");
    add_sentence(text, r);
}

static void add_title(struct strbuf *text, const char *title)
{
    strbuf_addf(text, ".SS ");
    append_roff_escaped(text, title, (int)strlen(title));
    strbuf_addf(text, "\n");
}

static void add_names(struct strbuf *text, const struct option_group *g)
{
    struct strbuf names = {0};

    option_names(g, ", ", &names);
    if (names.len) {
        strbuf_addf(&names, ".");
        add_lines(text, names.buf);
    }
    strbuf_free(&names);
}

void option_table_man(const struct option_table *o, struct strbuf *text)
{
    for (const struct option_group *g = o->groups; g->rows; g++) {
        if (g->title && strcmp(g->title, "Options") != 0)
            add_title(text, g->title);
        if (g->rows[0].kind == OPTION_NOTE)
            add_names(text, g);
        for (const struct option_row *r = g->rows; r->name; r++)
            if (r->kind != OPTION_NOTE)
                append_man_entry(text, r);
    }
}
