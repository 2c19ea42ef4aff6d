/*
 * option_table.h - a tool's options as one table: the parser, --help and the shells' completion read it
 *
 * An option is one row. Rows stand in groups, shared ones (cli.h) beside the tool's own; a group says into which struct
 * its rows are taken. The man page is written by hand; a case of tests/cli compares.
 * Threads: option_table_parse() keeps getopt's state and belongs to main(); the rest reads only.
 */
#ifndef SHARDKIT_CLI_OPTION_TABLE_H
#define SHARDKIT_CLI_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "libcommon/base/err.h"
#include "libcommon/base/mem.h"

/* What some options ask for in place of work. */
enum option_asked { OPTION_ASKED_WORK, OPTION_ASKED_HELP, OPTION_ASKED_VERSION, OPTION_ASKED_COMPLETION };
enum option_shell { OPTION_SHELL_BASH, OPTION_SHELL_ZSH, OPTION_SHELL_LIST };

struct option_row {
    const char *name;           /* "target-tp"; '_' is as good as '-' on the command line */
    char letter;                /* short form, or 0 */
    const char *arg;            /* its value in --help: "N"; NULL: takes none */
    const char *help;           /* NULL: no line in --help, no completion (the reference's, told in prose) */
    /*
     * How it is taken: by `take` (0, or -1 and ERR_USAGE); else the field becomes the number of the word that is given
     * (`words`, "a b c"), the value itself (const char *), or true (bool) where there is none.
     */
    int (*take)(void *into, const char *value, struct err *e);
    size_t field;
    const char *words;          /* with `take`: for the completion only */
    bool many;                  /* all words up to the next option are values, taken one by one */
    enum option_asked asked;
    unsigned marks;             /* the tool's own, for `given` */
};

struct option_group {
    const char *title;          /* over its rows in --help; NULL: they go on under the one before */
    const struct option_row *rows;      /* a row without a name ends them */
    void *into;
    unsigned marks;             /* of all its rows, for `given` */
};

struct option_table {
    const char *tool;
    const char *head, *tail;    /* what --help says before and behind the options */
    const char *commands;       /* words that may stand first, "ls cat"; NULL: none */
    const struct option_group *groups;  /* a group without rows ends them */
    /* Told of each option that was taken, with the marks of its row and group; may be NULL. */
    void (*given)(void *ctx, const struct option_row *row, unsigned marks, const char *value);
    void *ctx;
};

/*
 * Take the options of argv, which is sorted: words that belong to no option are at optind and behind. A long name may
 * be cut short. Returns OPTION_ASKED_WORK, what else was asked for first, or -1: ERR_USAGE.
 */
MUST_CHECK int option_table_parse(const struct option_table *o, int argc, char **argv, struct err *e);
void option_table_help(const struct option_table *o, struct strbuf *text);
/* A script for the shell, or for OPTION_SHELL_LIST each option that the parser knows, one a line. */
void option_table_completion(const struct option_table *o, enum option_shell shell, struct strbuf *text);
/* Words of `words` from `column` on, broken at `width` and at '\n', continued at `indent`; ends the line. */
void option_table_wrap(struct strbuf *text, int column, int indent, int width, const char *words);
/* For a row that the tool accepts and that means nothing here. */
int option_table_ignore(void *into, const char *value, struct err *e);

#endif
