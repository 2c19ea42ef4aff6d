/*
 * option_parse.c - parse a command line according to a table of options
 *
 * The rules are those of argparse: a word that looks like an option is never the value of another option (only --opt=-x
 * passes such a value), names may be abbreviated, options and operands may be mixed in any order. One-letter options
 * may be joined (-qj4); after "--" all words are operands.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cli/option_find.h"

struct parser {
    const struct option_table *o;
    int argc;
    char **argv;
    int at;                     /* index of the next word */
};

/* Returns true if the word is an option. "-1" and "-" are values, not options. */
static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] && !(word[1] >= '0' && word[1] <= '9') && word[1] != '.';
}

static int most_values(const struct option_row *r)
{
    switch (option_kind(r)) {
    case OPTION_FLAG: case OPTION_UNFLAG: case OPTION_VALUE: case OPTION_REFUSED: return 0;
    case OPTION_NOTE: case OPTION_TAKE: return r->many ? INT_MAX : r->arg ? 1 : 0;
    case OPTION_LIST: return INT_MAX;
    default: return 1;
    }
}

/* Return the number of following words that are values of the option. */
static int n_values(const struct parser *p, const struct option_row *r)
{
    static const char *const truth[] = { "true", "false", "True", "False", "0", "1" };
    const int most = most_values(r);
    int n = 0;

    while (n < most && p->at + n < p->argc && !is_option(p->argv[p->at + n]))
        n++;
    if (r->kind != OPTION_BOOL || n == 0)
        return n;
    for (size_t i = 0; i < sizeof truth / sizeof *truth; i++)
        if (strcmp(p->argv[p->at], truth[i]) == 0)
            return 1;
    return 0;
}

static int store_option_words(const struct option_table *o, const struct option_given *g, struct err *e)
{
    /* If the row is a prefix (its name ends in '*'), messages name the option as the user wrote it. */
    char *label = str_fmt("--%s", str_ends(g->row->name, "*") ? g->name : g->row->name);
    int rc = option_set_words(g->row, g->group->into ? g->group->into : o->into, g->n, g->words, label, e);

    free(label);
    return rc;
}

/*
 * Process an option and its values. `value` is the text that follows '=' or the letter, or NULL if there is none.
 * Returns 0, or -1 with ERR_USAGE. If the option requests another action, such as --help, returns its option_asked
 * code.
 */
static int parse_option_values(struct parser *p, struct option_given *g, char *value, struct err *e)
{
    const struct option_table *o = p->o;
    const struct option_row *r = g->row;
    const enum option_kind kind = option_kind(r);
    int rc, which = 0;

    if (value && most_values(r) == 0 && kind != OPTION_REFUSED) {
        err_usage(e, "--%s accepts no value", r->name);
        return -1;
    }
    g->n = value ? 1 : n_values(p, r);
    g->words = value ? &value : p->argv + p->at;
    p->at += value ? 0 : g->n;
    if (g->n == 0 && most_values(r) > 0 && kind != OPTION_LIST && kind != OPTION_BOOL) {
        err_usage(e, "--%s needs a value", r->name);
        return -1;
    }
    if (r->asked) {
        rc = g->n ? option_set_words(r, &which, g->n, g->words, "--completion", e) : 0;
        return rc < 0 ? rc : (int)r->asked + which;
    }
    rc = o->set ? o->set(o->ctx, g, e) : store_option_words(o, g, e);
    if (rc == 0 && o->given)
        o->given(o->ctx, g);
    return rc;
}

/*
 * Find the option that an abbreviated name means. Exactly one option must begin with the name. Otherwise sets *e and
 * returns row NULL.
 */
static struct option_at find_short(const struct option_table *o, const char *name, struct err *e)
{
    struct strbuf names = {0};
    struct option_at found = option_at_short(o, name, &names);
    const char *near = option_nearest(o, name);

    if (!found.row && names.len)
        err_usage(e, "option '--%s' is the beginning of several: %s", name, names.buf);
    else if (!found.row && near)
        err_usage(e, "unknown option '--%s'; did you mean '--%s'?", name, near);
    else if (!found.row)
        err_usage(e, "unknown option '--%s'", name);
    strbuf_free(&names);
    return found;
}

static int parse_long_option(struct parser *p, const char *word, struct err *e)
{
    char *name = xstrdup(word + 2), *value = strchr(name, '=');
    struct option_at found;
    int rc = -1;

    if (value)
        *value = '\0';
    found = option_at(p->o, name);
    if (!found.row)
        found = find_short(p->o, name, e);
    if (found.row) {
        struct option_given g = { found.row, found.group, name, 0, NULL };

        rc = parse_option_values(p, &g, value ? (char *)word + 2 + (value - name) + 1 : NULL, e);
    }
    free(name);
    return rc;
}

static int parse_letter_options(struct parser *p, char *word, struct err *e)
{
    int rc = 0;

    for (char *at = word + 1; *at && rc == 0; at++) {
        const struct option_at found = option_at_letter(p->o, *at);
        struct option_given g = { found.row, found.group, found.row ? found.row->name : NULL, 0, NULL };

        if (!found.row) {
            err_usage(e, "unknown option '-%.*s'", at == word + 1 ? (int)strlen(at) : 1, at);
            return -1;
        }
        if (most_values(found.row))
            return parse_option_values(p, &g, at[1] ? at + 1 : NULL, e);
        rc = parse_option_values(p, &g, NULL, e);
    }
    return rc;
}

static int parse_operand(const struct option_table *o, const char *word, struct err *e)
{
    struct strbuf all = {0};

    for (const struct option_row *r = o->operands; r && r->name; r++) {
        const char **field = (const char **)((char *)o->into + r->field);

        if (r->take)
            return r->take(field, word, e);
        if (!*field) {
            *field = word;
            return 0;
        }
    }
    for (const struct option_row *r = o->operands; r && r->name; r++)
        strbuf_addf(&all, "%s%s", all.len ? " and " : "", r->name);
    if (all.len)
        err_usage(e, "more than %s were given", all.buf);
    else
        err_usage(e, "'%s' is not the value of an option", word);
    strbuf_free(&all);
    return -1;
}

enum option_asked option_table_asks(const struct option_table *o, char **argv)
{
    for (argv++; *argv && strcmp(*argv, "--") != 0; argv++)
        OPTION_EACH(o, g, r)
            if (r->asked && !r->arg &&
                ((str_starts(*argv, "--") && strcmp(*argv + 2, r->name) == 0) ||
                 ((*argv)[0] == '-' && r->letter && (*argv)[1] == r->letter && !(*argv)[2])))
                return r->asked;
    return OPTION_ASKED_WORK;
}

int option_table_parse(const struct option_table *o, int argc, char **argv, struct err *e)
{
    struct parser p = { o, argc, argv, 1 };
    int rc = (int)option_table_asks(o, argv);
    bool operands = false;

    while (rc == OPTION_ASKED_WORK && p.at < argc) {
        char *word = argv[p.at++];

        if (operands || !is_option(word))
            rc = parse_operand(o, word, e);
        else if (strcmp(word, "--") == 0)
            operands = true;
        else
            rc = word[1] == '-' ? parse_long_option(&p, word, e) : parse_letter_options(&p, word, e);
    }
    return rc;
}
