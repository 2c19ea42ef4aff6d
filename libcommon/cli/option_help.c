/*
 * option_help.c - the text of --help
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cli/option_table.h"
#include "libcommon/cli/typed.h"

enum { HELP_INDENT = 30, HELP_WIDTH = 96 };

/*
 * Append the words, starting at column `indent`, and end the line. Lines are broken at the maximum width and at '\n'.
 * The lines after the first are indented by `indent`.
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

/*
 * Return the length of a row's help without the list of commands in parentheses at its end, such as " (cat, diff)".
 * This list is omitted if only one command is described.
 */
static size_t len_without_commands(const struct option_table *o, const char *help)
{
    const char *open = strrchr(help, '('), *p = open;

    if (!open || open == help || !str_ends(help, ")"))
        return strlen(help);
    do {
        size_t n = strcspn(++p, ",)");
        char *word = str_fmt("%.*s", (int)n, p);
        bool known = option_command_find(o, word) != NULL;

        free(word);
        if (!known)
            return strlen(help);
        p += n;
        p += *p == ',';
    } while (*p == ' ');
    return (size_t)(open - 1 - help);
}

/* Selects what the help describes, and whether the commands in it have the names of shardkit's commands. */
struct help_style {
    const struct option_table *o;
    const struct option_command *c;     /* only this command is described; NULL: all */
    const struct option_lead *lead;     /* the option that is the verb of shardkit to describe; NULL: the tool is not
                                         * described as a verb */
    bool typed;
};

static void add_row(struct strbuf *text, const struct option_row *r, const struct help_style *style)
{
    const bool flag = option_kind(r) <= OPTION_BOOL, shows_default = r->def && !flag && r->kind != OPTION_ALIAS;
    const size_t n = style->c ? len_without_commands(style->o, r->help) : strlen(r->help);
    char letter[8] = "     ", *left, *right;

    if (r->letter)
        snprintf(letter, sizeof letter, " -%c, ", r->letter);
    left = str_fmt(" %s--%s%s%s", letter, r->name, r->arg ? " " : "", r->arg ? r->arg : "");
    if (strlen(left) + 2 > HELP_INDENT)
        strbuf_addf(text, "%s\n%*s", left, HELP_INDENT, "");
    else
        strbuf_addf(text, "%-*s", HELP_INDENT, left);
    right = shows_default ? str_fmt("%.*s (default %s)", (int)n, r->help, r->def) : str_fmt("%.*s", (int)n, r->help);
    if (style->typed) {
        char *typed = typed_text(right, NULL);

        free(right);
        right = typed;
    }
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


/* ---- the text around the options ---- */

static bool starts_word(const char *text, const char *at, const char *word)
{
    const size_t n = strlen(word);

    return (at == text || at[-1] == ' ') && strncmp(at, word, n) == 0 && (at[n] == ' ' || at[n] == '\n' || !at[n]);
}

static bool has_words(const char *line, const char *end, const char *words)
{
    for (const char *p = line; p < end; p++)
        if (starts_word(line, p, words))
            return true;
    return false;
}

/* Append the line from `line` to `end`, and replace `words` in it by `name`. */
static void add_line_named(struct strbuf *text, const char *line, const char *end, const char *words, const char *name)
{
    for (const char *p = line; p < end; p++)
        if (starts_word(line, p, words)) {
            strbuf_addf(text, "%s", name);
            p += strlen(words) - 1;
        } else {
            strbuf_addf(text, "%c", *p);
        }
}

/*
 * Append lines of the help text. A line after "Usage:" and an indented line are commands to type. Such a line begins
 * with the name of the tool, followed by `lead` if that is not NULL. These words are replaced by `name`. Command lines
 * without `lead` are omitted.
 */
static void add_lines_named(struct strbuf *text, const char *lines, const char *tool, const char *lead,
                            const char *name)
{
    char *words = lead ? str_fmt("%s %s", tool, lead) : xstrdup(tool);
    bool dropped_usage = false;

    for (const char *line = lines, *next; *line; line = next) {
        const bool usage = str_starts(line, "Usage: "), command = *line == ' ' || usage;

        next = line + strcspn(line, "\n");
        next += *next != '\0';
        if (command && has_words(line, next, tool) && !has_words(line, next, words)) {
            dropped_usage |= usage;
            continue;
        }
        if (dropped_usage && str_starts(line, "       ")) {
            strbuf_addf(text, "Usage: ");
            line += strlen("       ");
            dropped_usage = false;
        }
        if (command)
            add_line_named(text, line, next, words, name);
        else
            strbuf_addf(text, "%.*s", (int)(next - line), line);
    }
    free(words);
}

static bool is_entry(const char *line, const char *command)
{
    return str_starts(line, "  ") && starts_word(line, line + 2, command);
}

/*
 * Return the first word of the command's entry in the head. This is the name of the command, or "(none)" if the command
 * also works without its name.
 */
static const char *entry_word(const struct option_table *o, const struct option_command *c)
{
    for (const char *line = strstr(o->head, "\n\n"); line && *line; line = strchr(line + 1, '\n'))
        if (is_entry(line + 1, c->name))
            return c->name;
    return "(none)";
}

/*
 * Append the description of a command as a sentence. The description is the text after the words of the command in its
 * entry.
 */
static void add_sentence_of_entry(struct strbuf *text, const char *line, const char *what)
{
    struct strbuf s = {0};

    for (;;) {
        const size_t n = strcspn(what, "\n");

        strbuf_addf(&s, "%s%.*s", s.len && n ? " " : "", (int)n, what);
        line = what + n + (what[n] == '\n');
        if (strncmp(line, "     ", 5) != 0)
            break;
        what = line + strspn(line, " ");
    }
    if (s.len) {
        s.buf[0] = (char)toupper((unsigned char)s.buf[0]);
        strbuf_addf(&s, ".");
        add_wrapped(text, 0, s.buf);
    }
    strbuf_free(&s);
}

static const char *skip_usage(const char *head)
{
    while (str_starts(head, "Usage:") || *head == ' ')
        head = strchr(head, '\n') + 1;
    return head;
}

/*
 * Append the usage of a command and its description, both taken from the command's entries in the head. Then append the
 * general description in the head.
 */
static void add_command_head(struct strbuf *text, const struct option_table *o, const char *name,
                             const struct option_command *c)
{
    const char *entries = strstr(o->head, "\n\n"), *about = o->head;
    const char *word = entry_word(o, c), *lead = "Usage: ";
    struct strbuf does = {0};

    for (const char *line = entries; line && *line; line = strchr(line, '\n')) {
        line += strspn(line, "\n");
        if (is_entry(line, word)) {
            const char *args = line + 2 + strcspn(line + 2, " \n"), *what = args;

            while (*what && *what != '\n' && strncmp(what, "  ", 2) != 0)
                what++;
            strbuf_addf(text, "%s%s [options]%.*s%s\n", lead, name, (int)(what - args), args, c->more ? c->more : "");
            add_sentence_of_entry(&does, line, what + strspn(what, " \n"));
            lead = "       ";
        }
    }
    strbuf_addf(text, "%s", does.buf ? does.buf : "");
    about = strstr(skip_usage(about), ". ") + 2;
    strbuf_addf(text, "%.*s\n", (int)(entries - about), about);
    strbuf_free(&does);
}

/*
 * Append the text about the exit status: `status` or, if that is NULL, the text in the tail. Returns the rest of the
 * tail.
 */
static const char *add_status(struct strbuf *text, const char *tail, const char *status)
{
    const char *examples = strstr(tail, "Examples:\n"), *end = examples ? examples : tail + strlen(tail);
    char *own = status ? str_fmt("Exit status: %s.", status) : NULL;

    if (own)
        add_wrapped(text, 0, own);
    else
        strbuf_addf(text, "%.*s", (int)(end - tail), tail);
    free(own);
    return end;
}

/*
 * Append the exit status, and the examples in the tail that use the command. The tail calls the command `typed`; the
 * output calls it `name`.
 */
static void add_command_tail(struct strbuf *text, const char *tail, const char *status, const char *typed,
                             const char *name)
{
    const char *rest = add_status(text, tail, status), *examples = *rest ? rest : NULL, *title = examples;
    while (examples && *(examples = strchr(examples, '\n') + 1))
        if (str_starts(examples + 2, typed) && examples[2 + strlen(typed)] == ' ') {
            const char *end = strchr(examples, '\n');

            strbuf_addf(text, "%s  %s%.*s\n", title ? "Examples:\n" : "", name,
                        (int)(end - examples - 2) - (int)strlen(typed), examples + 2 + strlen(typed));
            title = NULL;
        }
}

static bool is_described(const struct help_style *s, const struct option_group *g, const struct option_row *r)
{
    if (!option_is_shown(r))
        return false;
    if (s->lead)
        return !((g->marks | r->marks) & s->lead->without) && strcmp(r->name, s->lead->name) != 0;
    return !s->c || option_fits_command(g, r, s->c);
}

/* Append the rows of all options, or only those that the described command or verb accepts. */
static void add_groups(struct strbuf *text, const struct help_style *style)
{
    const bool some = style->c || style->lead;
    const char *title = NULL;

    for (const struct option_group *g = style->o->groups; g->rows; g++) {
        struct strbuf names = {0};

        title = style->lead && g == style->o->groups ? "Options" : g->title ? g->title : title;
        if (g->title && !some)
            strbuf_addf(text, "\n%s:\n", g->title);
        for (const struct option_row *r = g->rows; r->name; r++)
            if (is_described(style, g, r)) {
                if (some && title)
                    strbuf_addf(text, "\n%s:\n", title);
                title = some ? NULL : title;
                add_row(text, r, style);
            }
        option_names(g, " ", &names);
        if (names.len && !some) {
            strbuf_addf(text, "  ");
            add_wrapped(text, 2, names.buf);
        }
        strbuf_free(&names);
    }
}

/* Append a text. If `typed` is true, commands in it are replaced by the commands of shardkit. */
static void add_text(struct strbuf *text, const struct strbuf *more, bool typed)
{
    char *all = typed ? typed_text(more->buf ? more->buf : "", NULL) : NULL;

    strbuf_addf(text, "%s", all ? all : more->buf ? more->buf : "");
    free(all);
}

/*
 * Append the --help of the tool. If `lead` is not NULL, it is an option that is a verb of shardkit. Only this verb is
 * then described.
 */
static void add_help_of_tool(struct strbuf *text, const struct option_table *o, const char *name,
                             const struct option_lead *lead)
{
    const char *about = skip_usage(o->head), *rest;
    char *usage = str_fmt("%.*s", (int)(about - o->head), o->head), *option = lead ? str_fmt("--%s", lead->name) : NULL;
    const bool typed = str_starts(name, "shardkit ");
    struct strbuf head = {0}, tail = {0};

    add_lines_named(&head, usage, o->tool, option, name);
    add_lines_named(&head, lead ? lead->about : about, o->tool, option, name);
    add_text(text, &head, typed);
    add_groups(text, &(struct help_style){ .o = o, .lead = lead, .typed = typed });
    strbuf_addf(text, "\n");
    rest = add_status(&tail, o->tail, lead ? lead->status : NULL);
    add_lines_named(&tail, rest, o->tool, option, name);
    add_text(text, &tail, typed);
    free(usage);
    free(option);
    strbuf_free(&head);
    strbuf_free(&tail);
}

void option_table_help(const struct option_table *o, const char *name, const char *lead,
                       const struct option_command *c, struct strbuf *text)
{
    const bool typed = str_starts(name, "shardkit ");

    if (c) {
        struct strbuf head = {0}, tail = {0};
        char *ends = str_fmt(" %s", c->name), *command = str_fmt("%s %s", o->tool, c->name);
        const bool whole = str_ends(name, ends) || entry_word(o, c) != c->name;
        char *full = whole ? xstrdup(name) : str_fmt("%s %s", name, c->name);

        add_command_head(&head, o, full, c);
        add_text(text, &head, typed);
        add_groups(text, &(struct help_style){ .o = o, .c = c, .typed = typed });
        strbuf_addf(text, "\n");
        add_command_tail(&tail, o->tail, c->status, command, full);
        add_text(text, &tail, typed);
        strbuf_free(&head);
        strbuf_free(&tail);
        free(ends);
        free(command);
        free(full);
        return;
    }
    add_help_of_tool(text, o, name, lead && o->lead && strcmp(lead + 2, o->lead->name) == 0 ? o->lead : NULL);
}
