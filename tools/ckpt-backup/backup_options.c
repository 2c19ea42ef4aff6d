/*
 * backup_options.c - the options of ckpt-backup, and the commands that accept each of them
 */
#include "tools/ckpt-backup/backup.h"

#define FIELD(f) OPTION_FIELD(struct backup, f)

static const struct option_row rows[] = {
    { "rules", 0, "FILE", "read rules from FILE: they define which checkpoints are copied to which place, and which "
                          "are kept there",
      FIELD(rules), .marks = CMD_COPY | CMD_PLAN | CMD_FORGET },
    { "pack", .help = "store the copy as one losslessly compressed file (copy)", FIELD(pack), .marks = CMD_COPY },
    { "delta-from", 0, "NAME", "store the copy as differences from NAME, a whole backup of another step in PLACE, "
                               "which is needed to restore it. If this is not smaller, a whole copy is stored (copy)",
      FIELD(delta_from), .marks = CMD_COPY },
    { "any", .help = "copy a folder of any files. The copy is compared byte by byte, but no check is made that the "
                     "files form a checkpoint (copy)", FIELD(any), .marks = CMD_COPY },
    { "apply", .help = "remove the steps that may be removed; the backups of a step are read again before, and if one "
                       "is damaged, the step is kept. Without this option the steps are only listed (forget)",
      FIELD(apply), .marks = CMD_FORGET },
    { "trust-receipts", .help = "with --apply: do not read the backups again; damage since they were last verified is "
                                "not noticed (forget)", FIELD(trust_receipts), .marks = CMD_FORGET },
    { "verify", .help = "with --apply: read the backups again before a step is removed, which is the default (forget)",
      FIELD(cli.verify), .marks = CMD_FORGET },
    { "weights-only", .help = "omit the optimizer states, as the command weights does (copy)", FIELD(weights_only),
      .marks = CMD_COPY },
    { "dry-run", 'n', .help = "print what would be copied (copy, tar, weights) or removed (forget), and change nothing",
      FIELD(cli.dry_run),
      .marks = CMD_COPY | CMD_TAR | CMD_WEIGHTS | CMD_FORGET },
    {0},
};

static const char head[] =
    "Usage: ckpt-backup COMMAND [options] ...\n"
    "Back up checkpoints. Every copy is read back and compared before it counts as a backup. A file\n"
    "of rules defines which steps of a run are copied and kept. CKPT is a checkpoint of any layout:\n"
    "Megatron-DeepSpeed (3D shards) or universal, DeepSpeed ZeRO, torch.distributed (DCP),\n"
    "Megatron-core (torch_dist), a model folder of Transformers, or a folder whose file 'latest'\n"
    "names a checkpoint. PLACE is the folder that holds the backups, or a REMOTE:PATH of rclone.\n"
    "RUN is the folder in which the run saves its checkpoints.\n"
    "\n"
    "Commands:\n"
    "  copy CKPT PLACE           back up all files of a checkpoint\n"
    "  copy --delta-from NAME CKPT PLACE\n"
    "                            back up as differences from NAME, a whole backup in PLACE\n"
    "  copy --any FOLDER PLACE   back up any folder, without checking that it is a checkpoint\n"
    "  copy --rules FILE RUN     make all backups that the rules require and that are missing\n"
    "  tar CKPT PLACE            back up to one .tar archive, which all tools can read\n"
    "  weights CKPT PLACE        back up without the optimizer states (only 3D shards)\n"
    "  list PLACE...             list the backups with their sizes and times\n"
    "  verify PLACE [NAME...]    read backups and compare them with their checksums\n"
    "  restore PLACE NAME OUT    restore a backup to the folder OUT and compare every byte\n"
    "  plan --rules FILE RUN     print which backups are missing and which steps may be removed\n"
    "  forget --rules FILE RUN   list steps that the rules no longer keep; --apply removes them\n";
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
