/*
 * backup_options.c - the options of ckpt-backup, and the commands that accept each of them
 */
#include "tools/ckpt-backup/backup.h"

#define FIELD(f) OPTION_FIELD(struct backup, f)

static const struct option_row rows[] = {
    { "rules", 0, "FILE", "file of rules: which checkpoints are copied to which place and kept there. Copy all that "
                          "are due (copy), print the plan (plan), remove what the rules no longer keep (forget)",
      FIELD(rules), .marks = CMD_COPY | CMD_PLAN | CMD_FORGET },
    { "pack", .help = "write one compressed file, without loss (copy)", FIELD(pack), .marks = CMD_COPY },
    { "any", .help = "CKPT is a folder of any files: its bytes are copied, read back and compared, and nothing is "
                     "stated about what they are (copy)", FIELD(any), .marks = CMD_COPY },
    { "apply", .help = "remove the backups; without this option they are only listed "
                       "(forget)", FIELD(apply), .marks = CMD_FORGET },
    { "verify", .help = "before a removal, read again the backups that make it safe (forget)", FIELD(cli.verify),
      .marks = CMD_FORGET },
    { "weights-only", .help = "leave out the optimizer states, as the command weights does (copy)", FIELD(weights_only),
      .marks = CMD_COPY },
    { "dry-run", 'n', .help = "copy, tar, weights: print what would be copied, and write nothing; forget: only list "
                              "the backups, the default without --apply", FIELD(cli.dry_run),
      .marks = CMD_COPY | CMD_TAR | CMD_WEIGHTS | CMD_FORGET },
    {0},
};

static const char head[] =
    "Usage: ckpt-backup COMMAND [options] ...\n"
    "Back up checkpoints. Every copy is read back and verified before it counts as a backup, and\n"
    "rules decide which backups are kept. CKPT is a checkpoint of any layout: Megatron-DeepSpeed\n"
    "(3D shards) or universal, DeepSpeed ZeRO, torch.distributed (DCP), Megatron-core\n"
    "(torch_dist), a model folder of Transformers, or a folder whose file 'latest' names one.\n"
    "PLACE is a folder, or REMOTE:PATH of rclone.\n"
    "\n"
    "Commands:\n"
    "  copy CKPT PLACE           back up all files of a checkpoint\n"
    "  copy --any FOLDER PLACE   back up any folder, without a check of what is in it\n"
    "  copy --rules FILE RUN     make all backups of the checkpoints in RUN that are due\n"
    "  tar CKPT PLACE            back up to one .tar archive, which all tools can read\n"
    "  weights CKPT PLACE        back up without the optimizer states (only 3D shards)\n"
    "  list PLACE...             list the backups\n"
    "  verify PLACE [NAME...]    read backups and compare them with their checksums\n"
    "  restore PLACE NAME OUT    restore a backup to the folder OUT and compare every byte\n"
    "  plan --rules FILE RUN     print which backups are due and which may be removed\n"
    "  forget --rules FILE RUN   list backups that the rules no longer keep; --apply removes them\n";
static const char tail[] =
    "Exit status: 0 success, 1 a backup is damaged or the command failed, 2 wrong usage.\n"
    "Examples:\n"
    "  ckpt-backup copy ckpt/global_step95000 /store/run\n"
    "  ckpt-backup restore /store/run global_step95000 restored/global_step95000\n"
    "  ckpt-backup copy --rules run.rules ckpt && ckpt-backup forget --rules run.rules --apply ckpt\n";

static const struct option_command commands[] = {
    { "copy", CMD_COPY, false, NULL, NULL },
    { "tar", CMD_TAR, false, NULL, NULL },
    { "weights", CMD_WEIGHTS, false, NULL, NULL },
    { "list", CMD_LIST, false, NULL, NULL },
    { "verify", CMD_VERIFY, false, NULL, NULL },
    { "restore", CMD_RESTORE, false, NULL, NULL },
    { "plan", CMD_PLAN, false, NULL, NULL },
    { "forget", CMD_FORGET, false, NULL, NULL },
    {0},
};

static const struct option_row operands[] = { { "ARGUMENT", .take = cli_words_add, FIELD(words) }, {0} };

int backup_parse(struct backup *b, int argc, char **argv)
{
    const struct option_group groups[] = { { "Options", rows, NULL, 0 }, { NULL, cli_rows, &b->cli, 0 }, {0} };
    const struct option_table table = {
        "ckpt-backup", head, tail, groups, b, commands, operands, &b->words,
        .given = cli_words_given,
    };

    return cli_parse(&b->cli, &table, argc, argv);
}
