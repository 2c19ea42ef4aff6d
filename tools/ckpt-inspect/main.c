/*
 * ckpt-inspect - look into a checkpoint, verify it, compare it
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "libcommon/base/parse.h"
#include "tools/ckpt-inspect/inspect.h"

static const struct inspect_command {
    const char *name;
    int (*run)(struct inspect *in);
    unsigned mark;
    int min_args, max_args;
    const char *missing;
} commands[] = {
    { "ls", cmd_ls, CMD_LS, 1, 1, "ls needs one PATH" },
    { "cat", cmd_cat, CMD_CAT, 2, 2, "cat needs a PATH and the NAME of a tensor" },
    { "args", cmd_args, CMD_ARGS, 1, 1 << 20, "args needs a PATH" },
    { "stats", cmd_stats, CMD_STATS, 1, 1, "stats needs one PATH" },
    { "verify", cmd_verify, CMD_VERIFY, 1, 1 << 20, "verify needs a PATH" },
    { "replicas", cmd_replicas, CMD_REPLICAS, 1, 1, "replicas needs one PATH" },
    { "diff", cmd_diff, CMD_DIFF, 2, 2, "diff needs two PATHs" },
    { "summary", cmd_summary, CMD_SUMMARY, 1, 1 << 20, "no PATH given" },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* The first option that the command does not take, or NULL: it would be ignored, a mistake worth telling. */
static const char *misplaced(const struct inspect_command *cmd, const struct inspect_given *g)
{
    for (int i = 0; i < g->n; i++)
        if (!(g->row[i]->marks & cmd->mark))
            return g->row[i]->name;
    return NULL;
}

/* A first word that names a command is one (a folder of that name is ./ls); otherwise it is a path. */
static const struct inspect_command *find_command(const char *word)
{
    for (int i = 0; word && i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return &commands[i];
    return &commands[N_COMMANDS - 1];
}

/* The command that a first word was meant to be, when it is no path either; or NULL. */
static const char *misspelt(const char *word)
{
    const char *names[N_COMMANDS];

    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return word && !strchr(word, '/') && access(word, F_OK) < 0 ? parse_nearest(word, names, N_COMMANDS) : NULL;
}

/* Looking twice at one PATH tells nothing new: each is kept once. */
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
            cli_warn(&in->cli, "%s is named twice", in->arg[i]);
        else
            in->arg[n++] = in->arg[i];
    }
    in->n_args = n;
}

/* Which command, and has it what it needs? The exit status. */
static int look(struct inspect *in, const struct inspect_given *given)
{
    const char *first = in->n_words ? in->word[0] : NULL, *odd;
    const struct inspect_command *cmd = find_command(first);
    const bool named = first && strcmp(first, cmd->name) == 0;

    in->arg = in->word + named;
    in->n_args = in->n_words - named;
    odd = misplaced(cmd, given);
    if (!named && misspelt(first))
        return cli_usage(&in->cli, "no command or path '%s'; did you mean '%s'?", first, misspelt(first));
    if (odd)
        return cli_usage(&in->cli, "%s takes no --%s", cmd->name, odd);
    if (in->n_args < cmd->min_args)
        return cli_usage(&in->cli, "%s", cmd->missing);
    if (in->n_args > cmd->max_args)
        return cli_usage(&in->cli, "%s: what is '%s'?", cmd->missing, in->arg[cmd->max_args]);
    drop_repeated(in, cmd);
    return cli_done(&in->cli, cmd->run(in));
}

int main(int argc, char **argv)
{
    struct inspect in = { .state = -1 };
    struct inspect_given given = {0};
    int rc;

    cli_start(&in.cli, argv, "ckpt-inspect");
    rc = inspect_parse(&in, &given, argc, argv) < 0 ? EXIT_USAGE : look(&in, &given);
    free(in.word);
    return rc;
}
