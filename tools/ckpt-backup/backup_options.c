/*
 * backup_options.c - the options of ckpt-backup, and the commands that accept each of them
 */
#include "tools/ckpt-backup/backup.h"

#define FIELD(f) OPTION_FIELD(struct backup, f)

static const struct option_row rows[] = {
    { "rules", 0, "FILE", "what is kept where: all copies due (copy), show it (plan), remove what may go (forget)",
      FIELD(rules), .marks = CMD_COPY | CMD_PLAN | CMD_FORGET },
    { "pack", .help = "as one file of fewer bytes, restored to the bit (copy)", FIELD(pack), .marks = CMD_COPY },
    { "apply", .help = "remove it; without, say what would be removed (forget)", FIELD(apply), .marks = CMD_FORGET },
    { "verify", .help = "read the backups again that a removal rests on (forget)", FIELD(cli.verify),
      .marks = CMD_FORGET },
    { "dry-run", 'n', .help = "say what would be copied, and write nothing (copy, tar, weights)", FIELD(cli.dry_run),
      .marks = CMD_COPY | CMD_TAR | CMD_WEIGHTS },
    {0},
};

static const char head[] =
    "Usage: ckpt-backup COMMAND [options] ...\n"
    "Copies of checkpoints that are believed: read back before they count, kept by rules.\n"
    "A PLACE is a folder, or REMOTE:PATH of rclone.\n"
    "\nCommands:\n"
    "  copy CKPT PLACE           a whole copy; CKPT is a tag folder or one with 'latest'\n"
    "  copy --rules FILE RUN     all copies that are due of the checkpoints in RUN\n"
    "  tar CKPT PLACE            one .tar, which all tools read in place\n"
    "  weights CKPT PLACE        without the optimizer's files\n"
    "  list PLACE...             what is there\n"
    "  verify PLACE [NAME...]    read it all and compare\n"
    "  restore PLACE NAME OUT    the folder OUT, every byte compared\n"
    "  plan --rules FILE RUN     what is due, and what may go\n"
    "  forget --rules FILE RUN   what may go, and with --apply remove it\n";
static const char tail[] =
    "Exit status: 0 all is well, 1 a copy is damaged or the work failed, 2 wrong usage.\n"
    "Example: ckpt-backup copy --rules run.rules ckpt && ckpt-backup forget --rules run.rules --apply ckpt\n";

static const struct option_row operands[] = { { "ARGUMENT", .take = cli_words_add, FIELD(words) }, {0} };

int backup_parse(struct backup *b, int argc, char **argv)
{
    const struct option_group groups[] = { { "Options", rows, NULL, 0 }, { NULL, cli_rows, &b->cli, 0 }, {0} };
    const struct option_table table = {
        "ckpt-backup", head, tail, groups, b, "copy tar weights list verify restore plan forget", operands, &b->words,
        .given = cli_words_given,
    };

    return cli_parse(&b->cli, &table, argc, argv);
}
