/* front.h - the functions of shardkit itself: start the tool of a verb, convert, help and completion */
#ifndef SHARDKIT_SHARDKIT_FRONT_H
#define SHARDKIT_SHARDKIT_FRONT_H

#include "libcommon/base/mem.h"
#include "libcommon/cli/cli.h"
#include "libcommon/cli/verbs.h"

/*
 * Replace this process by the tool. The words in `lead` (NULL: none) are put in front of the user's words `argv`.
 * `name` is the command as the user typed it. Returns only if the tool cannot be started; the result is then the exit
 * status.
 */
int front_start_tool(struct cli *cli, const char *tool, const char *name, const char *const *lead, char **argv);
/*
 * `shardkit convert`: start the tool that writes the form given by --to. Returns only if no tool was started; the
 * result is then the exit status.
 */
int front_convert(struct cli *cli, char **argv);

/* Print the list of verbs, by groups. Returns the exit status. */
int front_print_verbs(void);
/*
 * `shardkit help VERB`: show the man page of the verb's tool. If the page or the program man does not exist, print the
 * --help of the tool. Returns only if neither can be started; the result is then the exit status.
 */
int front_help_verb(struct cli *cli, const char *name);

/* Print a completion script for `shell`, bash, zsh or fish, for shardkit and all its tools. Returns the exit status. */
int front_print_completion(struct cli *cli, const char *shell);

#endif
