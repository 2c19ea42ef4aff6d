/*
 * option_table.h - a tool's options as one table: the parser, --help, manual page and completion are made from it
 *
 * An option is one row. Rows stand in groups, shared ones (cli.h) beside the tool's own; a group says into which struct
 * its rows are taken. docs/options.awk renews the manual pages from the rows; cases of tests/cli compare all of them.
 * Threads: everything here only reads the table.
 */
#ifndef SHARDKIT_CLI_OPTION_TABLE_H
#define SHARDKIT_CLI_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/* What some options ask for in place of work; one with `words` asks for what follows its own by the word's number. */
enum option_asked {
    OPTION_ASKED_WORK, OPTION_ASKED_HELP, OPTION_ASKED_VERSION,
    OPTION_ASKED_BASH, OPTION_ASKED_ZSH, OPTION_ASKED_LIST, OPTION_ASKED_MAN,
};

enum option_kind {
    OPTION_PLAIN,               /* as the columns say: `take`; `words`; a text where there is an `arg`; else a flag */
    OPTION_FLAG,                /* bool; giving it means true */
    OPTION_UNFLAG,              /* bool; --no-x: giving it means false */
    OPTION_BOOL,                /* bool; True or False may stand behind it (--eval-only True) */
    OPTION_INT,                 /* int or int64_t, `min` to `max` */
    OPTION_OCTAL,               /* int64_t, up to 0777 */
    OPTION_REAL,                /* double, `min` to `max` */
    OPTION_TEXT,                /* const char *: the word itself, not copied */
    OPTION_WORD,                /* int: number of the word among `words`, from `min` on */
    OPTION_VALUE,               /* int: giving it means `min` */
    OPTION_LIST,                /* struct option_list: all words up to the next option, not copied */
    OPTION_TAKE,                /* by `take` */
    OPTION_ALIAS,               /* another name of the option that `def` names */
    OPTION_NOTE,                /* accepted for the sake of existing scripts, without effect */
    OPTION_ONLY,                /* of which one value, `def`, is supported; `help` says why */
    OPTION_REFUSED,             /* not supported; `help` says why. A name that ends in '*' is a prefix */
};

struct option_list {
    int n;
    char **v;
};

struct option_row {
    const char *name;           /* "target-tp"; '_' is as good as '-' on the command line */
    char letter;                /* short form, or 0 */
    const char *arg;            /* its value in --help: "N"; NULL: takes none */
    const char *help;
    enum option_kind kind;
    int (*take)(void *into, const char *value, struct err *e);  /* 0, or -1 and ERR_USAGE */
    size_t field, size;         /* in the struct that it is taken into (OPTION_FIELD) */
    const char *words;          /* "a b c"; with `take`: for the completion only */
    const char *def;            /* default as a user would write it (option_take_defaults); NULL: none */
    double min, max;
    const char *dest;           /* the field's name, for tools that show their values; NULL: not shown */
    bool many;                  /* with `take`: all words up to the next option are values, taken one by one */
    enum option_asked asked;
    unsigned marks;             /* the tool's own */
};
#define OPTION_FIELD(type, f) .field = offsetof(type, f), .size = sizeof(((type *)0)->f)

struct option_group {
    const char *title;          /* over its rows in --help; NULL: they go on under the one before */
    const struct option_row *rows;      /* a row without a name ends them */
    void *into;                 /* NULL: the table's */
    unsigned marks;             /* of all its rows */
};

/* An option as it was given. */
struct option_given {
    const struct option_row *row;
    const struct option_group *group;
    const char *name;           /* as it was written, without dashes; the row's where a letter was */
    int n;
    char **words;               /* its values */
};

struct option_table {
    const char *tool;
    const char *head, *tail;    /* what --help says before and behind the options */
    const struct option_group *groups;  /* a group without rows ends them */
    void *into;
    const char *commands;       /* words that may stand first, "ls cat"; NULL: none */
    /* Words that belong to no option, in order: texts, or all that follow, `take`n into the field; NULL: refused. */
    const struct option_row *operands;
    void *ctx;
    int (*set)(void *ctx, const struct option_given *g, struct err *e);         /* NULL: option_take_words() */
    void (*given)(void *ctx, const struct option_given *g);                     /* what was taken; may be NULL */
};

#define OPTION_EACH(o, g, r) \
    for (const struct option_group *g = (o)->groups; g->rows; g++) \
        for (const struct option_row *r = g->rows; r->name; r++)

/* ---- option_table.c: rows by name ---- */

enum option_kind option_kind(const struct option_row *r);       /* never OPTION_PLAIN */
/* Has it a line of its own in --help, and is it completed? Else it is one of a list of names. */
bool option_is_shown(const struct option_row *r);
/* The row that `name` (without dashes) is the name of, aliases followed; NULL. */
const struct option_row *option_find(const struct option_table *o, const char *name);
/* The same for a name that may be cut short, as long as one option only is meant. */
const struct option_row *option_meant(const struct option_table *o, const char *name);
/* The known name that is near, or NULL. */
const char *option_nearest(const struct option_table *o, const char *name);
/* The word `i` of "a b c", and its length. */
const char *option_word(const char *words, int i, int *len);

/* ---- option_value.c: from words to a field ---- */

/*
 * Set a row's field in `into`: flags take no word or one (true, false, 1, 0, ...), lists any number, `many` each, all
 * others one. `label` names the option in messages. ERR_USAGE.
 */
MUST_CHECK int option_take_words(const struct option_row *r, void *into, int n, char *const *words, const char *label,
                                 struct err *e);
/* Set the fields of all rows that have defaults. */
void option_take_defaults(const struct option_table *o);

/* ---- option_parse.c ---- */

/* Take the options and operands of argv. OPTION_ASKED_WORK, what else was asked for, or -1: ERR_USAGE. */
MUST_CHECK int option_table_parse(const struct option_table *o, int argc, char **argv, struct err *e);

/* Does a word of argv ask for help or the version? They win over whatever else is there. */
enum option_asked option_table_asks(const struct option_table *o, char **argv);

/* ---- option_help.c, option_man.c, option_completion.c ---- */

void option_table_help(const struct option_table *o, struct strbuf *text);
/* What the manual page's section OPTIONS says of the rows, in roff. */
void option_table_man(const struct option_table *o, struct strbuf *text);
/* A script for bash or zsh. */
void option_table_bash(const struct option_table *o, struct strbuf *text);
void option_table_zsh(const struct option_table *o, struct strbuf *text);
/* "--a, --b": the names of a group's rows that are not shown, with the value of those that have one only. */
void option_names(const struct option_group *g, const char *between, struct strbuf *text);

#endif
