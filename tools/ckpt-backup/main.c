/*
 * ckpt-backup - verified copies of checkpoints, kept by rules
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/parse.h"
#include "tools/ckpt-backup/backup.h"

static const struct command {
    const char *name;
    int (*run)(struct backup *b);
    unsigned mark;
    enum backup_form form;
    int min_args, max_args;
    const char *missing;
} commands[] = {
    { "copy", cmd_copy, CMD_COPY, FORM_WHOLE, 2, 2, "copy needs a CKPT and a PLACE, or --rules FILE and a RUN" },
    { "tar", cmd_copy, CMD_TAR, FORM_TAR, 2, 2, "tar needs a CKPT and a PLACE" },
    { "weights", cmd_copy, CMD_WEIGHTS, FORM_WEIGHTS, 2, 2, "weights needs a CKPT and a PLACE" },
    { "list", cmd_list, CMD_LIST, FORM_WHOLE, 1, 1 << 20, "list needs a PLACE" },
    { "verify", cmd_verify, CMD_VERIFY, FORM_WHOLE, 1, 1 << 20, "verify needs a PLACE" },
    { "restore", cmd_restore, CMD_RESTORE, FORM_WHOLE, 3, 3, "restore needs a PLACE, the NAME of a backup and OUT" },
    { "plan", cmd_plan, CMD_PLAN, FORM_WHOLE, 1, 1, "plan needs --rules FILE and a RUN" },
    { "forget", cmd_forget, CMD_FORGET, FORM_WHOLE, 1, 1, "forget needs --rules FILE and a RUN" },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const struct command *find_command(const char *word)
{
    for (int i = 0; word && i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return &commands[i];
    return NULL;
}

static int unknown_command(struct backup *b, const char *word)
{
    const char *names[N_COMMANDS], *near;

    if (!word)
        return cli_usage(&b->cli, "no command given");
    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    near = parse_nearest(word, names, N_COMMANDS);
    return near ? cli_usage(&b->cli, "no command '%s'; did you mean '%s'?", word, near)
                : cli_usage(&b->cli, "no command '%s'", word);
}

/* An option that the command would ignore is a mistake worth telling. */
static const char *misplaced(const struct command *cmd, const struct given *g)
{
    for (int i = 0; i < g->n; i++)
        if (!(g->row[i]->marks & cmd->mark))
            return g->row[i]->name;
    return NULL;
}

/* Which command, and has it what it needs? The exit status. */
static int work(struct backup *b, const struct given *given)
{
    const struct command *cmd = find_command(b->n_words ? b->word[0] : NULL);
    int min, max;

    if (!cmd)
        return unknown_command(b, b->n_words ? b->word[0] : NULL);
    b->arg = b->word + 1;
    b->n_args = b->n_words - 1;
    b->form = cmd->form;
    if (misplaced(cmd, given))
        return cli_usage(&b->cli, "%s takes no --%s", cmd->name, misplaced(cmd, given));
    /* With rules a RUN is all there is to name. */
    min = b->rules ? 1 : cmd->min_args;
    max = b->rules ? 1 : cmd->max_args;
    if (b->n_args < min || (cmd->mark & (CMD_PLAN | CMD_FORGET) && !b->rules))
        return cli_usage(&b->cli, "%s", cmd->missing);
    if (b->n_args > max)
        return cli_usage(&b->cli, "%s: what is '%s'?", cmd->missing, b->arg[max]);
    return cli_done(&b->cli, cmd->run(b));
}

int main(int argc, char **argv)
{
    struct backup b = {0};
    struct given given = {0};
    int rc;

    cli_start(&b.cli, argv, "ckpt-backup");
    rc = backup_parse(&b, &given, argc, argv) < 0 ? EXIT_USAGE : work(&b, &given);
    free(b.word);
    return rc;
}
