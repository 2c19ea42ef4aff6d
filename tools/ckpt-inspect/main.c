/*
 * ckpt-inspect - inspect, verify and compare checkpoints
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/parse.h"
#include "tools/ckpt-inspect/inspect.h"

static const struct inspect_command {
    struct cli_command is;
    int (*run)(struct inspect *in);
} commands[] = {
    { { "ls", CMD_LS, 1, 1, "ls needs one PATH" }, cmd_ls },
    { { "cat", CMD_CAT, 2, 2, "cat needs a PATH and the NAME of a tensor" }, cmd_cat },
    { { "args", CMD_ARGS, 1, 1 << 20, "args needs a PATH" }, cmd_args },
    { { "stats", CMD_STATS, 1, 1, "stats needs one PATH" }, cmd_stats },
    { { "verify", CMD_VERIFY, 1, 1 << 20, "verify needs a PATH" }, cmd_verify },
    { { "damage", CMD_DAMAGE, 1, 1, "damage needs one PATH" }, cmd_damage },
    { { "replicas", CMD_REPLICAS, 1, 1, "replicas needs one PATH" }, cmd_replicas },
    { { "diff", CMD_DIFF, 2, 2, "diff needs two PATHs" }, cmd_diff },
    { { "summary", CMD_SUMMARY, 1, 1 << 20, "no PATH given" }, cmd_summary },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/*
 * Return the command that the first word names. If it is not the name of a command, return the command summary. A
 * folder with the name of a command must therefore be given with a path, such as ./ls.
 */
static const struct inspect_command *find_command(const char *word)
{
    for (int i = 0; word && i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].is.name) == 0)
            return &commands[i];
    return &commands[N_COMMANDS - 1];
}

/*
 * The first word is neither a command nor a path. Return the command that is most similar to it, or NULL if none is
 * similar.
 */
static const char *misspelt(const char *word)
{
    const char *names[N_COMMANDS];

    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].is.name;
    return word && !strchr(word, '/') && access(word, F_OK) < 0 ? parse_nearest(word, names, N_COMMANDS) : NULL;
}

/*
 * If a PATH is given more than once, remove the repetitions and print a warning, because they would only repeat the
 * result.
 */
static void drop_repeated(struct inspect *in, const struct inspect_command *cmd)
{
    int n = 0;

    if (cmd->run != cmd_summary && cmd->run != cmd_verify)
        return;
    for (int i = 0; i < in->n_args; i++) {
        bool seen = false;

        for (int k = 0; k < n; k++)
            seen = seen || path_same(in->arg[k], in->arg[i]);
        if (seen)
            cli_warn(&in->cli, "%s is given twice", in->arg[i]);
        else
            in->arg[n++] = in->arg[i];
    }
    in->n_args = n;
}

/* Select the command, check its arguments and run it. Returns the exit status. */
static int run_inspect_command(struct inspect *in)
{
    const char *first = in->words.n ? in->words.word[0] : NULL;
    const struct inspect_command *cmd = find_command(first);
    const bool named = first && strcmp(first, cmd->is.name) == 0;

    if (!named && misspelt(first))
        return cli_usage(&in->cli, "no command or path '%s'; did you mean '%s'?", first, misspelt(first));
    if (cli_words_check(&in->cli, &in->words, named, &cmd->is))
        return EXIT_USAGE;
    in->arg = in->words.word + named;
    in->n_args = in->words.n - named;
    drop_repeated(in, cmd);
    return cli_done(&in->cli, cmd->run(in));
}

int main(int argc, char **argv)
{
    struct inspect in = { .state = -1 };
    int rc;

    cli_start(&in.cli, argv, "ckpt-inspect");
    rc = inspect_parse(&in, argc, argv) < 0 ? EXIT_USAGE : run_inspect_command(&in);
    free(in.words.word);
    return rc;
}
