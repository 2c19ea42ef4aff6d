/*
 * front.h - what shardkit does itself: start the tool of a verb, convert, help and completion
 */
#ifndef SHARDKIT_SHARDKIT_FRONT_H
#define SHARDKIT_SHARDKIT_FRONT_H

#include "libcommon/base/mem.h"
#include "libcommon/cli/cli.h"
#include "libcommon/cli/verbs.h"

/*
 * Replace this process by the tool, with `lead` (NULL: none) before the user's words `argv`. name: the command as the
 * user typed it. Returns the exit status if the tool cannot be started.
 */
int front_start_tool(struct cli *cli, const char *tool, const char *name, const char *const *lead, char **argv);
/* `shardkit convert`: start the tool that makes the form of --to. Returns the exit status if none was started. */
int front_convert(struct cli *cli, char **argv);

/* Print the verbs by groups. Returns the exit status. */
int front_print_verbs(void);
/*
 * `shardkit help VERB`: show the man page of the verb's tool, or its --help if there is no man or no page. Returns the
 * exit status if neither was started.
 */
int front_help_verb(struct cli *cli, const char *name);

/* Print the completion script of shardkit and of all its tools for `shell`, bash or zsh. Returns the exit status. */
int front_print_completion(struct cli *cli, const char *shell);

#endif
