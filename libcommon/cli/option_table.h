/*
 * option_table.h - describe a tool's options in one table, which is used by the parser and to make --help, manual page
 * and completion
 *
 * Each option is one row. Rows form groups: some groups are shared by tools (cli.h), the others are the tool's own. A
 * group names the struct that receives the values of its rows. docs/options.awk updates the manual pages from the rows;
 * tests in tests/cli compare the table, --help and the manual pages. Threads: these functions only read the table, so
 * several threads may share it.
 */
#ifndef SHARDKIT_CLI_OPTION_TABLE_H
#define SHARDKIT_CLI_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/*
 * Actions that some options request instead of the normal work. If such an option has `words`, the action is the code
 * of the option plus the index of the word that was given.
 */
enum option_asked {
    OPTION_ASKED_WORK, OPTION_ASKED_HELP, OPTION_ASKED_VERSION,
    OPTION_ASKED_BASH, OPTION_ASKED_ZSH, OPTION_ASKED_FISH, OPTION_ASKED_LIST, OPTION_ASKED_MAN,
};

enum option_kind {
    OPTION_PLAIN,               /* the kind follows from the columns that are set: OPTION_TAKE if `take` is set,
                                 * OPTION_WORD if `words` is, OPTION_TEXT if `arg` is, and OPTION_FLAG otherwise */
    OPTION_FLAG,                /* bool; set to true if the option is given */
    OPTION_UNFLAG,              /* bool, for an option such as --no-x: set to false if the option is given */
    OPTION_BOOL,                /* bool; True or False may follow (--eval-only True) */
    OPTION_INT,                 /* int or int64_t, in the range `min` to `max` */
    OPTION_OCTAL,               /* int64_t, up to octal 0777 */
    OPTION_REAL,                /* double, in the range `min` to `max` */
    OPTION_TEXT,                /* const char *: points to the word on the command line, which is not copied */
    OPTION_WORD,                /* int: index of the word in `words`, counted from `min` */
    OPTION_VALUE,               /* int: set to `min` if the option is given */
    OPTION_LIST,                /* struct option_list: all words up to the next option; they are not copied */
    OPTION_TAKE,                /* parsed by `take` */
    OPTION_ALIAS,               /* another name of the option that `def` names */
    OPTION_NOTE,                /* accepted without effect, for compatibility with existing scripts */
    OPTION_ONLY,                /* accepted with one value only, `def`; `help` gives the reason */
    OPTION_REFUSED,             /* not supported; `help` gives the reason. A name that ends in '*' is a prefix */
};

struct option_list {
    int n;
    char **v;
};

struct option_row {
    const char *name;           /* such as "target-tp"; on the command line '_' may replace '-' */
    char letter;                /* one-letter form of the option; 0: none */
    const char *arg;            /* name of the option's value in --help, such as "N"; NULL: the option takes no value */
    const char *help;
    enum option_kind kind;
    int (*take)(void *into, const char *value, struct err *e);  /* parses a value; returns 0, or -1 with ERR_USAGE */
    size_t field, size;         /* offset and size of the field in the struct that receives the value (OPTION_FIELD) */
    const char *words;          /* list of words, such as "a b c"; with `take`, it is used only for the completion */
    const char *def;            /* default value, written as a user would write it (option_set_defaults); NULL: none */
    double min, max;
    const char *dest;           /* name of the field, for tools that print the values of their options; NULL: not
                                 * printed */
    bool many;                  /* with `take`: all words up to the next option are values, parsed one by one */
    enum option_asked asked;
    unsigned marks;             /* bits defined by the tool */
    bool takes_param;           /* the value is the name of a parameter, completed with the names in the checkpoint */
};
#define OPTION_FIELD(type, f) .field = offsetof(type, f), .size = sizeof(((type *)0)->f)

struct option_group {
    const char *title;          /* heading of the group in --help; NULL: the rows continue the previous group */
    const struct option_row *rows;      /* ends with a row without a name */
    void *into;                 /* struct that receives the values; NULL: the `into` of the table */
    unsigned marks;             /* marks that are added to all rows of the group */
};

/* A word that may come first on the command line and selects what the tool does. */
struct option_command {
    const char *name;
    unsigned mark;              /* one bit; the command accepts options whose marks include this bit, and options
                                 * without marks */
    bool takes_param;           /* an argument is the name of a parameter, completed with the names in the checkpoint */
    const char *more;           /* further arguments, after those in the command's entry in --help; NULL: none */
    const char *status;         /* text about the exit status in --help; NULL: the text in the tail */
};

/* An option that is a verb of shardkit: "shardkit import", for example, is export-hf --import. */
struct option_lead {
    const char *name;           /* name of the option without dashes, such as "import" */
    unsigned without;           /* options with one of these marks are omitted from the --help of the verb */
    const char *about;          /* description of the verb, used instead of that in the head */
    const char *status;         /* text about the exit status, used instead of the text in the tail */
};

/* An option as it was given on the command line. */
struct option_given {
    const struct option_row *row;
    const struct option_group *group;
    /* name as the user wrote it, without dashes; for a one-letter option, the name in the row */
    const char *name;
    int n;
    char **words;               /* the values of the option */
};

struct option_table {
    const char *tool;
    /*
     * Text of --help before and after the options. The head has the lines of "Usage:" and a description. If the tool
     * has commands, an empty line, a title and one entry per command follow. An entry consists of two spaces, the words
     * of the command, at least two spaces, and the description of the command.
     */
    const char *head, *tail;            /* the --help of a command omits the first sentence of the description */
    const struct option_group *groups;  /* ends with a group without rows */
    void *into;
    const struct option_command *commands;      /* words that may come first; ends with a row without a name; NULL:
                                                   none */
    /*
     * The row for words that do not belong to an option, in the order in which they are given. The words are stored as
     * texts. With `take`, the remaining words are passed to that function. NULL: such words are errors.
     */
    const struct option_row *operands;
    void *ctx;
    int (*set)(void *ctx, const struct option_given *g, struct err *e);         /* stores an option's values; NULL:
                                                                                   option_set_words() */
    void (*given)(void *ctx, const struct option_given *g);                     /* called after each option was
                                                                                 * stored */
    const struct option_lead *lead;     /* the option that is a verb of shardkit; NULL: none */
};

#define OPTION_EACH(o, g, r) \
    for (const struct option_group *g = (o)->groups; g->rows; g++) \
        for (const struct option_row *r = g->rows; r->name; r++)

/* ---- option_table.c: find rows by name ---- */

enum option_kind option_kind(const struct option_row *r);       /* never returns OPTION_PLAIN */
/*
 * Returns true if the option has its own line in --help and is offered by the completion. For any other option, --help
 * lists only the name.
 */
bool option_is_shown(const struct option_row *r);
/*
 * Return the row of the option `name`, which is given without dashes. If the option is an alias, returns the row to
 * which it refers. Returns NULL if there is no such option.
 */
const struct option_row *option_find(const struct option_table *o, const char *name);
/*
 * Return the row of the option `name`. The name may be abbreviated if only one option begins with it. Returns NULL if
 * there is no such option, or if several options match.
 */
const struct option_row *option_meant(const struct option_table *o, const char *name);
/* Return the known name that is most similar to `name`, or NULL if none is similar. */
const char *option_nearest(const struct option_table *o, const char *name);
/* Return the command whose name is `name`, or NULL. */
const struct option_command *option_command_find(const struct option_table *o, const char *name);
/* Returns true if command c accepts option r, which is a row of group g. */
bool option_fits_command(const struct option_group *g, const struct option_row *r, const struct option_command *c);
/* Return word number i of the list `words` ("a b c"). *len is set to its length. */
const char *option_word(const char *words, int i, int *len);

/* ---- option_value.c: convert words into a field ---- */

/*
 * Set the field of row r in the struct `into` from n words. A flag accepts no word, or one (true, false, 1, 0, ...). A
 * list accepts any number of words. A row with `many` accepts any number of words, and parses each of them separately.
 * All other options accept one word. `label` is the name of the option in messages. Returns -1 with ERR_USAGE if a
 * value is invalid.
 */
MUST_CHECK int option_set_words(const struct option_row *r, void *into, int n, char *const *words, const char *label,
                                struct err *e);
/* Set the fields of all rows that have defaults to these. */
void option_set_defaults(const struct option_table *o);

/* ---- option_parse.c ---- */

/*
 * Parse the options and operands of argv. Returns OPTION_ASKED_WORK, or the code of another action if an option
 * requests one. Returns -1 with ERR_USAGE if the command line is invalid.
 */
MUST_CHECK int option_table_parse(const struct option_table *o, int argc, char **argv, struct err *e);

/*
 * Return the code of --help or --version if argv contains one of these options. Otherwise return OPTION_ASKED_WORK.
 * These options take precedence over everything else on the command line.
 */
enum option_asked option_table_asks(const struct option_table *o, char **argv);

/* ---- option_help.c, option_man.c, option_completion.c, option_fish.c ---- */

/*
 * Append the text of --help. `name` is what the user typed to start the tool; it replaces the tool's name in examples.
 * If `name` contains the option o->lead, `lead` is this option with its dashes; otherwise `lead` is NULL. If c is not
 * NULL, only this command and its options are described. If `name` is a command of shardkit, all commands in the text
 * are replaced by commands of shardkit.
 */
void option_table_help(const struct option_table *o, const char *name, const char *lead,
                       const struct option_command *c, struct strbuf *text);
/* Append the entries of the manual page's section OPTIONS, in roff. */
void option_table_man(const struct option_table *o, struct strbuf *text);
/* Append a completion script for bash, zsh or fish. */
void option_table_bash(const struct option_table *o, struct strbuf *text);
void option_table_zsh(const struct option_table *o, struct strbuf *text);
void option_table_fish(const struct option_table *o, struct strbuf *text);
/*
 * A command of these scripts that prints the names in the output of `ckpt-inspect ls --json`. It is written for a
 * format of printf. The names come from a checkpoint, which may be hostile, so only names without characters that are
 * special to a shell are printed.
 */
#define OPTION_NAMES_IN_JSON "grep -oE '\"name\":\"[][A-Za-z0-9_./+@%%-]+\"' | cut -d'\"' -f4"
/*
 * Append the names of those options in a group that have no line of their own in the help, such as "--a, --b 1".
 * `between` separates the names. If an option accepts only a single value (OPTION_ONLY), this value follows the name.
 */
void option_names(const struct option_group *g, const char *between, struct strbuf *text);

#endif
