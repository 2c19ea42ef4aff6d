/*
 * option_table.h - a tool's options as one table, from which the parser, --help, manual page and completion are made
 *
 * An option is one row. Rows are in groups: shared rows (cli.h) next to the tool's own. A group names the struct that
 * receives the values of its rows. docs/options.awk updates the manual pages from the rows; cases of tests/cli
 * compare all of them.
 * Threads: everything here only reads the table.
 */
#ifndef SHARDKIT_CLI_OPTION_TABLE_H
#define SHARDKIT_CLI_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/*
 * Actions that some options request instead of normal work. For an option with `words`, the index of its word is
 * added to its own code.
 */
enum option_asked {
    OPTION_ASKED_WORK, OPTION_ASKED_HELP, OPTION_ASKED_VERSION,
    OPTION_ASKED_BASH, OPTION_ASKED_ZSH, OPTION_ASKED_LIST, OPTION_ASKED_MAN,
};

enum option_kind {
    OPTION_PLAIN,               /* determined by the columns: OPTION_TAKE with `take`; OPTION_WORD with `words`;
                                   OPTION_TEXT with `arg`; else OPTION_FLAG */
    OPTION_FLAG,                /* bool; set to true if the option is given */
    OPTION_UNFLAG,              /* bool; --no-x: set to false if the option is given */
    OPTION_BOOL,                /* bool; True or False may follow (--eval-only True) */
    OPTION_INT,                 /* int or int64_t, `min` to `max` */
    OPTION_OCTAL,               /* int64_t, up to octal 0777 */
    OPTION_REAL,                /* double, `min` to `max` */
    OPTION_TEXT,                /* const char *: the word itself, not copied */
    OPTION_WORD,                /* int: index of the word in `words`, counted from `min` */
    OPTION_VALUE,               /* int: set to `min` if the option is given */
    OPTION_LIST,                /* struct option_list: all words up to the next option, not copied */
    OPTION_TAKE,                /* parsed by `take` */
    OPTION_ALIAS,               /* another name of the option that `def` names */
    OPTION_NOTE,                /* accepted for compatibility with existing scripts, without effect */
    OPTION_ONLY,                /* only one value, `def`, is supported; `help` gives the reason */
    OPTION_REFUSED,             /* not supported; `help` gives the reason. A name that ends in '*' is a prefix */
};

struct option_list {
    int n;
    char **v;
};

struct option_row {
    const char *name;           /* "target-tp"; on the command line '_' may be used for '-' */
    char letter;                /* one-letter form, or 0 */
    const char *arg;            /* name of its value in --help: "N"; NULL: takes none */
    const char *help;
    enum option_kind kind;
    int (*take)(void *into, const char *value, struct err *e);  /* 0, or -1 with ERR_USAGE */
    size_t field, size;         /* offset and size of the field in the struct that receives the value (OPTION_FIELD) */
    const char *words;          /* "a b c"; with `take`, used only for the completion */
    const char *def;            /* default as a user would write it (option_take_defaults); NULL: none */
    double min, max;
    const char *dest;           /* the field's name, for tools that print their values; NULL: not printed */
    bool many;                  /* with `take`: all words up to the next option are values, parsed one by one */
    enum option_asked asked;
    unsigned marks;             /* bits defined by the tool */
    bool takes_param;           /* the value is the name of a parameter: completed with those of the checkpoint */
};
#define OPTION_FIELD(type, f) .field = offsetof(type, f), .size = sizeof(((type *)0)->f)

struct option_group {
    const char *title;          /* heading of its rows in --help; NULL: the rows continue the previous group */
    const struct option_row *rows;      /* ends with a row without a name */
    void *into;                 /* struct that receives the values; NULL: the table's */
    unsigned marks;             /* marks for all rows of the group */
};

/* A word that may come first, and selects what the tool does. */
struct option_command {
    const char *name;
    unsigned mark;              /* it accepts the options whose marks include this bit, and those without marks */
    bool takes_param;           /* an argument is the name of a parameter: completed with those of the checkpoint */
    const char *more;           /* arguments that follow those of its entry in --help; NULL: none */
    const char *status;         /* its exit status in --help; NULL: as in the tail */
};

/* An option that is a verb of shardkit: "shardkit import" is export-hf --import. */
struct option_lead {
    const char *name;           /* the option without dashes, "import" */
    unsigned without;           /* options with these marks are left out of --help */
    const char *about;          /* replaces the description in the head */
    const char *status;         /* replaces the exit status in the tail */
};

/* An option as it was given on the command line. */
struct option_given {
    const struct option_row *row;
    const struct option_group *group;
    const char *name;           /* as written, without dashes; for a letter, the row's name */
    int n;
    char **words;               /* its values */
};

struct option_table {
    const char *tool;
    /*
     * Text of --help before and after the options. The head has the lines of "Usage:", a description, and, if the tool
     * has commands, an empty line, a title, and an entry for each command: two spaces, its words, two spaces or more,
     * what it does.
     */
    const char *head, *tail;            /* the description begins with a sentence, which --help of a command omits */
    const struct option_group *groups;  /* ends with a group without rows */
    void *into;
    const struct option_command *commands;      /* words that may come first; ends with a row without a name; NULL:
                                                   none */
    /*
     * Words that do not belong to an option, in order: stored as texts, or, with `take`, all remaining words are
     * passed to it. NULL: such words are errors.
     */
    const struct option_row *operands;
    void *ctx;
    int (*set)(void *ctx, const struct option_given *g, struct err *e);         /* stores an option's values; NULL:
                                                                                   option_set_words() */
    void (*given)(void *ctx, const struct option_given *g);                     /* called after an option was stored;
                                                                                   may be NULL */
    const struct option_lead *lead;     /* NULL: none */
};

#define OPTION_EACH(o, g, r) \
    for (const struct option_group *g = (o)->groups; g->rows; g++) \
        for (const struct option_row *r = g->rows; r->name; r++)

/* ---- option_table.c: find rows by name ---- */

enum option_kind option_kind(const struct option_row *r);       /* never returns OPTION_PLAIN */
/*
 * Returns true if the option has its own line in --help and is completed. Otherwise it appears only in a list of
 * names.
 */
bool option_is_shown(const struct option_row *r);
/* Return the row with that name (without dashes), with aliases followed, or NULL. */
const struct option_row *option_find(const struct option_table *o, const char *name);
/*
 * Return the row with that name, which may be abbreviated as long as only one option begins with it; NULL if there is
 * none.
 */
const struct option_row *option_meant(const struct option_table *o, const char *name);
/* Return the most similar known name, or NULL. */
const char *option_nearest(const struct option_table *o, const char *name);
/* Return the command with that name, or NULL. */
const struct option_command *option_command_find(const struct option_table *o, const char *name);
/* Returns true if the command accepts the option of group `g`. */
bool option_fits_command(const struct option_group *g, const struct option_row *r, const struct option_command *c);
/* Return word number `i` of "a b c". *len receives its length. */
const char *option_word(const char *words, int i, int *len);

/* ---- option_value.c: convert words into a field ---- */

/*
 * Set a row's field in `into`. Flags accept no word or one (true, false, 1, 0, ...), lists any number, `many` any
 * number that are parsed one by one, all others one. `label` names the option in messages. Returns -1 with ERR_USAGE
 * for an invalid value.
 */
MUST_CHECK int option_set_words(const struct option_row *r, void *into, int n, char *const *words, const char *label,
                                struct err *e);
/* Set the fields of all rows that have defaults. */
void option_set_defaults(const struct option_table *o);

/* ---- option_parse.c ---- */

/*
 * Parse the options and operands of argv. Returns OPTION_ASKED_WORK, the code of another action that was requested,
 * or -1 with ERR_USAGE.
 */
MUST_CHECK int option_table_parse(const struct option_table *o, int argc, char **argv, struct err *e);

/* Return the code of --help or --version if argv contains one of them. They take precedence over everything else. */
enum option_asked option_table_asks(const struct option_table *o, char **argv);

/* ---- option_help.c, option_man.c, option_completion.c ---- */

/*
 * Append the text of --help. name: what the user typed to start the tool, which replaces the tool's name in examples.
 * lead: "--" and the name of o->lead if that is part of this name, else NULL. c: the only command to describe, with its
 * options; NULL: all. For a name of shardkit, all commands in the text are named as the user can type them.
 */
void option_table_help(const struct option_table *o, const char *name, const char *lead,
                       const struct option_command *c, struct strbuf *text);
/* Append the entries of the manual page's section OPTIONS, in roff. */
void option_table_man(const struct option_table *o, struct strbuf *text);
/* Append a completion script for bash or zsh. */
void option_table_bash(const struct option_table *o, struct strbuf *text);
void option_table_zsh(const struct option_table *o, struct strbuf *text);
/*
 * Append the names of a group's options that the help leaves out, such as "--a, --b 1". `between` separates them. An
 * option that accepts a single value (OPTION_ONLY) is followed by that value.
 */
void option_names(const struct option_group *g, const char *between, struct strbuf *text);

#endif
