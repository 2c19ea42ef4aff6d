/*
 * option_help.c - the text of --help
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cli/option_table.h"

enum { HELP_INDENT = 30, HELP_WIDTH = 96 };

/*
 * Append the words and end the line. The text is at column `indent`; it is broken at the width and at '\n', and
 * continued at `indent`.
 */
static void add_wrapped(struct strbuf *text, int indent, const char *words)
{
    int column = indent;
    bool space = false;

    while (*words) {
        int n = (int)strcspn(words, " \n");

        if (column + space + n + 1 > HELP_WIDTH && column > indent) {
            strbuf_addf(text, "\n%*s", indent, "");
            column = indent;
            space = false;
        }
        strbuf_addf(text, "%s%.*s", space ? " " : "", n, words);
        column += space + n;
        words += n;
        space = *words == ' ';
        if (*words == '\n') {
            strbuf_addf(text, "\n%*s", indent, "");
            column = indent;
        }
        words += *words != '\0';
    }
    strbuf_addf(text, "\n");
}

static void add_row(struct strbuf *text, const struct option_row *r)
{
    const bool flag = option_kind(r) <= OPTION_BOOL, told = r->def && !flag && r->kind != OPTION_ALIAS;
    char letter[8] = "     ", *left, *right;

    if (r->letter)
        snprintf(letter, sizeof letter, " -%c, ", r->letter);
    left = str_fmt(" %s--%s%s%s", letter, r->name, r->arg ? " " : "", r->arg ? r->arg : "");
    if (strlen(left) + 2 > HELP_INDENT)
        strbuf_addf(text, "%s\n%*s", left, HELP_INDENT, "");
    else
        strbuf_addf(text, "%-*s", HELP_INDENT, left);
    right = told ? str_fmt("%s (default %s)", r->help, r->def) : xstrdup(r->help);
    add_wrapped(text, HELP_INDENT, right);
    free(left);
    free(right);
}

void option_names(const struct option_group *g, const char *between, struct strbuf *text)
{
    const char *sep = "";

    for (const struct option_row *r = g->rows; r->name; r++)
        if (!option_is_shown(r)) {
            strbuf_addf(text, "%s--%s%s%s", sep, r->name, r->kind == OPTION_ONLY ? " " : "",
                        r->kind == OPTION_ONLY ? r->def : "");
            sep = between;
        }
}

void option_table_help(const struct option_table *o, struct strbuf *text)
{
    strbuf_addf(text, "%s", o->head);
    for (const struct option_group *g = o->groups; g->rows; g++) {
        struct strbuf names = {0};

        if (g->title)
            strbuf_addf(text, "\n%s:\n", g->title);
        for (const struct option_row *r = g->rows; r->name; r++)
            if (option_is_shown(r))
                add_row(text, r);
        option_names(g, " ", &names);
        if (names.len) {
            strbuf_addf(text, "  ");
            add_wrapped(text, 2, names.buf);
        }
        strbuf_free(&names);
    }
    strbuf_addf(text, "\n%s", o->tail);
}
