/*
 * cli_words.h - tools whose first word is a command: collect the words, and check the options that only some commands
 * accept
 */
#ifndef SHARDKIT_CLI_WORDS_H
#define SHARDKIT_CLI_WORDS_H

#include "libcommon/cli/cli.h"

struct cli_command {
    const char *name;
    unsigned mark;                      /* one bit; the command accepts the options whose marks include it */
    int min_args, max_args;
    const char *missing;                /* error message for a wrong number of arguments, such as "ls needs one PATH" */
};

enum { CLI_WORDS_ROWS = 64 };

struct cli_words {
    const char **word;                  /* the words that are not options, pointing into argv; the tool frees the
                                           array */
    int n, cap;
    const struct option_row *row[CLI_WORDS_ROWS];       /* the options given on the command line that only some commands
                                                         * accept */
    int n_rows;
};

/*
 * Functions for the option table of a tool. cli_words_add() is the `take` function of the operand, whose field must be
 * a struct cli_words. cli_words_given() is the `given` function of the table, whose ctx must be the same struct.
 */
int cli_words_add(void *words, const char *word, struct err *e);
void cli_words_given(void *words, const struct option_given *g);
/*
 * Find the command that the first word names in `rows`, the tool's table. A row has `row_bytes` bytes and begins with a
 * struct cli_command. Returns the index of the row. If there is no such command, prints an error that names the most
 * similar command, and returns -1.
 */
int cli_words_command(struct cli *cli, const struct cli_words *w, const void *rows, size_t row_bytes, int n_rows);
/*
 * Check that the number of arguments is right for command c, and that c accepts all options that were given.
 * word[first] is the first argument. Returns 0, or EXIT_USAGE after printing an error.
 */
int cli_words_check(struct cli *cli, const struct cli_words *w, int first, const struct cli_command *c);

#endif
