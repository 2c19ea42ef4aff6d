/* ckpt-backup - make verified copies of checkpoints, and keep them according to rules */
#include <stdlib.h>
#include <string.h>

#include "tools/ckpt-backup/backup.h"

static const struct command {
    struct cli_command is;
    int (*run)(struct backup *b);
    enum backup_form form;
} commands[] = {
    { { "copy", CMD_COPY, 2, 2, "copy needs a CKPT and a PLACE, or --rules FILE and a RUN" }, cmd_copy, FORM_WHOLE },
    { { "tar", CMD_TAR, 2, 2, "tar needs a CKPT and a PLACE" }, cmd_copy, FORM_TAR },
    { { "weights", CMD_WEIGHTS, 2, 2, "weights needs a CKPT and a PLACE" }, cmd_copy, FORM_WEIGHTS },
    { { "list", CMD_LIST, 1, 1 << 20, "list needs a PLACE" }, cmd_list, FORM_WHOLE },
    { { "verify", CMD_VERIFY, 1, 1 << 20, "verify needs a PLACE" }, cmd_verify_backups, FORM_WHOLE },
    { { "restore", CMD_RESTORE, 3, 3, "restore needs a PLACE, the NAME of a backup and OUT" }, cmd_restore,
      FORM_WHOLE },
    { { "plan", CMD_PLAN, 1, 1, "plan needs --rules FILE and a RUN" }, cmd_plan, FORM_WHOLE },
    { { "forget", CMD_FORGET, 1, 1, "forget needs --rules FILE and a RUN" }, cmd_forget, FORM_WHOLE },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Find the command, check its arguments and run it. Returns the exit status. */
static int run_backup_command(struct backup *b)
{
    const int which = cli_words_command(&b->cli, &b->words, commands, sizeof *commands, N_COMMANDS);
    const struct command *cmd = &commands[which < 0 ? 0 : which];
    struct cli_command is;

    if (which < 0)
        return EXIT_USAGE;
    is = cmd->is;
    if (b->rules)                       /* with --rules, the only argument is the folder of a run */
        is.min_args = is.max_args = 1;
    else if (is.mark & (CMD_PLAN | CMD_FORGET))
        is.min_args = is.max_args + 1;  /* these commands do not work without --rules: any number of arguments is an
                                         * error */
    if (cli_words_check(&b->cli, &b->words, 1, &is))
        return EXIT_USAGE;
    b->arg = b->words.word + 1;
    b->n_args = b->words.n - 1;
    b->form = b->any ? FORM_ANY : b->pack ? FORM_PACK : b->delta_from ? FORM_DELTA
              : b->weights_only ? FORM_WEIGHTS : cmd->form;
    if (b->apply && b->cli.dry_run)
        return cli_usage(&b->cli, "--dry-run and --apply exclude each other");
    if (b->weights_only && (b->pack || b->rules))
        return cli_usage(&b->cli, "--weights-only cannot be combined with --pack or --rules");
    if (b->any && (b->pack || b->weights_only || b->rules))
        return cli_usage(&b->cli, "--any cannot be combined with --pack, --weights-only or --rules");
    if (b->delta_from && (b->any || b->pack || b->weights_only || b->rules))
        return cli_usage(&b->cli, "--delta-from cannot be combined with --any, --pack, --weights-only or --rules");
    if (b->delta_from && rules_is_remote(b->arg[1]))
        return cli_usage(&b->cli, "--delta-from needs a PLACE that is a folder; %s is a remote", b->arg[1]);
    if (b->delta_from && (strchr(b->delta_from, '/') || b->delta_from[0] == '.' || !*b->delta_from))
        return cli_usage(&b->cli, "--delta-from %s: is not the name of a backup; 'ckpt-backup list PLACE' prints the "
                                  "names", b->delta_from);
    if (b->pack && b->rules)
        return cli_usage(&b->cli, "--pack applies to a single copy; to pack the copies that %s requests, add the line "
                                  "'pack' below the line of the place", b->rules);
    return cli_done(&b->cli, cmd->run(b));
}

int main(int argc, char **argv)
{
    struct backup b = {0};
    int rc;

    cli_start(&b.cli, argv, "ckpt-backup");
    rc = backup_parse(&b, argc, argv) < 0 ? EXIT_USAGE : run_backup_command(&b);
    free(b.words.word);
    return rc;
}
