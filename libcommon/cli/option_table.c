/*
 * option_table.c - the parser, over getopt_long, and the text of --help
 */
#include "libcommon/cli/option_table.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "libcommon/cli/cli.h"

enum { CODE = 256, HELP_INDENT = 25, HELP_WIDTH = 92 };

int option_table_ignore(void *into, const char *value, struct err *e)
{
    (void)into;
    (void)value;
    (void)e;
    return 0;
}

/* ---- the table as getopt wants it ---- */

/* All rows, one behind the other. */
struct flat {
    const struct option_row *row;
    void *into;
    unsigned marks;
};

struct table {
    struct flat *flat;
    struct option *longs;
    struct strbuf shorts;
    int n;
};

static bool same_meaning(const struct flat *a, const struct flat *b)
{
    return a->into == b->into && a->row->take == b->row->take && a->row->field == b->row->field
           && !a->row->arg == !b->row->arg && a->row->asked == b->row->asked;
}

/* The first row that does the same: a name cut short may stand for either. */
static int meaning(const struct table *t, int i)
{
    for (int k = 0; k < i; k++)
        if (same_meaning(&t->flat[k], &t->flat[i]))
            return k;
    return i;
}

static void table_init(struct table *t, const struct option_table *o)
{
    int n = 0;

    for (const struct option_group *g = o->groups; g->rows; g++)
        for (const struct option_row *r = g->rows; r->name; r++)
            n++;
    t->flat = xcalloc((size_t)n, sizeof *t->flat);
    t->longs = xcalloc((size_t)n + 1, sizeof *t->longs);
    strbuf_addf(&t->shorts, ":");
    for (const struct option_group *g = o->groups; g->rows; g++)
        for (const struct option_row *r = g->rows; r->name; r++) {
            t->flat[t->n] = (struct flat){ r, g->into, g->marks | r->marks };
            t->longs[t->n] = (struct option){ r->name, r->arg ? required_argument : no_argument, NULL,
                                              CODE + meaning(t, t->n) };
            if (r->letter)
                strbuf_addf(&t->shorts, "%c%s", r->letter, r->arg ? ":" : "");
            t->n++;
        }
}

static void table_free(struct table *t)
{
    free(t->flat);
    free(t->longs);
    strbuf_free(&t->shorts);
}

/* What getopt returned: a row's number, or a letter. */
static const struct flat *table_find(const struct table *t, int c)
{
    if (c >= CODE)
        return &t->flat[c - CODE];
    for (int i = 0; i < t->n; i++)
        if (t->flat[i].row->letter == c)
            return &t->flat[i];
    return NULL;
}

/* ---- taking ---- */

static void unknown_option(const struct table *t, const char *word, struct err *e)
{
    const char **names = xcalloc((size_t)t->n, sizeof *names), *near;
    char name[64];

    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (int i = 0; i < t->n; i++)
        names[i] = t->flat[i].row->name;
    near = parse_nearest(name + 2, names, t->n);
    if (near)
        err_usage(e, "unknown option '%s'; did you mean '--%s'?", name, near);
    else
        err_usage(e, "unknown option '%s'", name);
    free(names);
}

/* What getopt did not like. It permutes: the word that failed is the one before optind. */
static int refuse(const struct table *t, int c, const char *word, struct err *e)
{
    if (c == ':')
        err_usage(e, "option '%s' needs a value", word);
    else if (optopt >= CODE)
        err_usage(e, "option '%s' takes no value", word);
    else if (optopt > 0)
        err_usage(e, "unknown option '-%c'", optopt);
    else
        unknown_option(t, word, e);
    return -1;
}

/* "--format: expected pt, hdf5 or virtual" */
static int not_a_word(const struct option_row *r, struct err *e)
{
    struct strbuf list = {0};

    for (const char *p = r->words; *p; p += strspn(p, " ")) {
        int n = (int)strcspn(p, " ");

        strbuf_addf(&list, "%s%.*s", p == r->words ? "" : p[n] ? ", " : " or ", n, p);
        p += n;
    }
    err_usage(e, "--%s: expected %s", r->name, list.buf);
    strbuf_free(&list);
    return -1;
}

static int word_number(const char *words, const char *value)
{
    int i = 0;

    for (const char *p = words; *p; p += strspn(p, " "), i++) {
        size_t n = strcspn(p, " ");

        if (strlen(value) == n && memcmp(value, p, n) == 0)
            return i;
        p += n;
    }
    return -1;
}

static int take_value(const struct flat *f, const char *value, struct err *e)
{
    const struct option_row *r = f->row;
    void *field = (char *)f->into + r->field;

    if (r->asked && !r->arg)
        return 0;
    if (r->take)
        return r->take(f->into, value, e);
    if (r->words) {
        int i = word_number(r->words, value);

        if (i < 0)
            return not_a_word(r, e);
        *(int *)field = i;
    } else if (r->arg) {
        *(const char **)field = value;
    } else {
        *(bool *)field = true;
    }
    return 0;
}

static int take_row(const struct option_table *o, const struct flat *f, int argc, char **argv, struct err *e)
{
    const char *value = optarg;

    for (;;) {
        if (take_value(f, value, e) < 0)
            return -1;
        if (o->given)
            o->given(o->ctx, f->row, f->marks, value);
        /* As argparse does with nargs='+'. */
        if (!f->row->many || optind == argc || (argv[optind][0] == '-' && argv[optind][1]))
            return (int)f->row->asked;
        value = argv[optind++];
    }
}

/* The reference's tools spell --input_folder, ours --input-folder: one table serves both. */
static void fold_underscores(char **argv)
{
    for (; *argv && strcmp(*argv, "--") != 0; argv++)
        if (str_starts(*argv, "--"))
            for (char *p = *argv + 2; *p && *p != '='; p++)
                if (*p == '_')
                    *p = '-';
}

int option_table_parse(const struct option_table *o, int argc, char **argv, struct err *e)
{
    struct table t = {0};
    int c, rc = OPTION_ASKED_WORK;

    table_init(&t, o);
    fold_underscores(argv + 1);
    opterr = 0;
    while (rc == OPTION_ASKED_WORK && (c = getopt_long(argc, argv, t.shorts.buf, t.longs, NULL)) != -1) {
        if (c == '?' || c == ':')
            rc = refuse(&t, c, argv[optind - 1], e);
        else
            rc = take_row(o, table_find(&t, c), argc, argv, e);
    }
    table_free(&t);
    return rc;
}

/* ---- --help ---- */

void option_table_wrap(struct strbuf *text, int column, int indent, int width, const char *words)
{
    bool space = false;

    while (*words) {
        int n = (int)strcspn(words, " \n");

        if (column + space + n + 1 > width && column > indent) {
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
    char letter[8] = "     ", *left;
    int column;

    if (r->letter)
        snprintf(letter, sizeof letter, " -%c, ", r->letter);
    left = str_fmt(" %s--%s%s%s  ", letter, r->name, r->arg ? " " : "", r->arg ? r->arg : "");
    strbuf_addf(text, "%-*s", HELP_INDENT, left);
    column = strlen(left) > HELP_INDENT ? (int)strlen(left) : HELP_INDENT;
    option_table_wrap(text, column, HELP_INDENT, HELP_WIDTH, r->help);
    free(left);
}

void option_table_help(const struct option_table *o, struct strbuf *text)
{
    strbuf_addf(text, "%s", o->head);
    for (const struct option_group *g = o->groups; g->rows; g++) {
        if (g->title)
            strbuf_addf(text, "\n%s:\n", g->title);
        for (const struct option_row *r = g->rows; r->name; r++)
            if (r->help)
                add_row(text, r);
    }
    strbuf_addf(text, "\n%s", o->tail);
}
