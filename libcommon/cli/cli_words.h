/*
 * cli_words.h - tools whose first word says what to do: their words, and the options that only some commands take
 */
#ifndef SHARDKIT_CLI_WORDS_H
#define SHARDKIT_CLI_WORDS_H

#include "libcommon/cli/cli.h"

struct cli_command {
    const char *name;
    unsigned mark;                      /* options with marks are taken by the commands whose mark is among them */
    int min_args, max_args;
    const char *missing;                /* "ls needs one PATH" */
};

enum { CLI_WORDS_ROWS = 64 };

struct cli_words {
    const char **word;                  /* all that are no options, from argv; the array is the tool's to free */
    int n, cap;
    const struct option_row *row[CLI_WORDS_ROWS];       /* options with marks that were given */
    int n_rows;
};

/* `take` of a table's operand whose field is a struct cli_words, and `given` of a table whose ctx is that struct. */
int cli_words_take(void *words, const char *word, struct err *e);
void cli_words_given(void *words, const struct option_given *g);
/*
 * Which row of a tool's table of commands the first word names. Rows are `row_bytes` apart, and each begins with its
 * struct cli_command. -1: none, after saying so, with the near one.
 */
int cli_words_command(struct cli *cli, const struct cli_words *w, const void *rows, size_t row_bytes, int n_rows);
/* Has the command what it needs, and takes it what was given? word[first] is its first argument. 0, or EXIT_USAGE. */
int cli_words_check(struct cli *cli, const struct cli_words *w, int first, const struct cli_command *c);

#endif
