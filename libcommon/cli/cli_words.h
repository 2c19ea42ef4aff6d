/*
 * cli_words.h - tools whose first word is a command: their words, and the options that only some commands accept
 */
#ifndef SHARDKIT_CLI_WORDS_H
#define SHARDKIT_CLI_WORDS_H

#include "libcommon/cli/cli.h"

struct cli_command {
    const char *name;
    unsigned mark;                      /* one bit; the command accepts the options whose marks include it */
    int min_args, max_args;
    const char *missing;                /* message for a wrong number of arguments, e.g. "ls needs one PATH" */
};

enum { CLI_WORDS_ROWS = 64 };

struct cli_words {
    const char **word;                  /* the words that are not options, pointing into argv; the tool frees the
                                           array */
    int n, cap;
    const struct option_row *row[CLI_WORDS_ROWS];       /* options with marks that were given */
    int n_rows;
};

/*
 * Functions for a tool's option table. cli_words_add() is the `take` of the operand, whose field is a struct cli_words.
 * cli_words_given() is the `given` of the table, whose ctx is the same struct.
 */
int cli_words_add(void *words, const char *word, struct err *e);
void cli_words_given(void *words, const struct option_given *g);
/*
 * Return the index of the row, in a tool's table of commands, that the first word names. Rows are `row_bytes` apart,
 * and each begins with its struct cli_command. Returns -1 after printing an error, with the most similar name, if
 * there is no such command.
 */
int cli_words_command(struct cli *cli, const struct cli_words *w, const void *rows, size_t row_bytes, int n_rows);
/*
 * Check that the command has the arguments it needs, and that it accepts the options given. word[first] is its first
 * argument. Returns 0, or EXIT_USAGE after printing an error.
 */
int cli_words_check(struct cli *cli, const struct cli_words *w, int first, const struct cli_command *c);

#endif
