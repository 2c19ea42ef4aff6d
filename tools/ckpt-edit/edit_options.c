/*
 * edit_options.c - the options of ckpt-edit, and which commands accept them
 */
#include "tools/ckpt-edit/ckptedit.h"

#define FIELD(f) OPTION_FIELD(struct ckptedit, f)

static const struct option_row rows[] = {
    { "in-place", 'i', .help = "no OUT: the result takes IN's name in one step, and what was there becomes "
      "IN.before-edit, for rollback and commit", FIELD(in_place), .marks = CMD_CHANGES },
    { "dry-run", 'n', .help = "print each file that changes, with its bytes, and write nothing (not rollback, "
      "commit)", FIELD(cli.dry_run), .marks = CMD_CHANGES | CMD_LATEST },
    { "any-type", .help = "a value may have another type than the present one (set)", FIELD(any_type),
      .marks = CMD_SET },
    { "weights", .arg = "LIST", .help = "a part of each folder, in their order: 0.5,0.3,0.2; they add up to 1 "
      "(average; default: all alike)", FIELD(weights), .marks = CMD_AVERAGE },
    { "decay", .arg = "D", .help = "what remains of the mean when the next folder comes: D mean + (1 - D) folder (ema)",
      .kind = OPTION_REAL, .min = 0, .max = 1, FIELD(decay), .marks = CMD_EMA },
    { "moments", .help = "exp_avg and exp_avg_sq, too; else they stay those of the first folder (average, ema)",
      FIELD(moments), .marks = CMD_AVERAGE | CMD_EMA },
    { "step", .arg = "N", .help = "the step that OUT is of (retag)", .kind = OPTION_INT, .min = 0, .max = 1e15,
      FIELD(step), .marks = CMD_RETAG },
    { "samples", .arg = "N", .help = "the samples consumed until then; the schedule moves along (retag)",
      .kind = OPTION_INT, .min = 0, .max = 1e15, FIELD(samples), .marks = CMD_RETAG },
    { "tokens", .arg = "N", .help = "the tokens consumed until then; the schedule moves along (retag); the rows "
      "of the vocabulary (vocab)", .kind = OPTION_INT, .min = 0, .max = 1e15, FIELD(tokens),
      .marks = CMD_RETAG | CMD_VOCAB },
    { "init", .arg = "HOW", .help = "what new rows hold: mean (of all rows, the default), zero, or normal:STD, random "
      "numbers around 0 that are the same in every run (vocab)", FIELD(init), .marks = CMD_VOCAB },
    { "hard-links", .help = "files that stay are hard links to IN's: no room is needed, and a write into one of "
      "OUT changes IN (default: shared blocks where the file system has reflinks, else copies)", FIELD(hard_links),
      .marks = CMD_CHANGES },
    { "from", .arg = "DIR", .help = "another checkpoint of the run, for optimizer states that are lost (salvage)",
      FIELD(from), .marks = CMD_SALVAGE },
    { "allow-lost", .help = "zeros in place of weights that nothing has; of ZeRO without any optimizer file the "
      "weights alone (salvage)", FIELD(allow_lost), .marks = CMD_SALVAGE },
    { "force", 'f', .help = "replace OUT", FIELD(cli.force), .marks = CMD_CHANGES },
    { "resume", .help = "finish what a killed run began", FIELD(cli.resume),
      .marks = CMD_CHANGES },
    { "verify", .help = "read OUT back before it gets its name", FIELD(cli.verify),
      .marks = CMD_CHANGES },
    { "accept-mismatch", .help = "go on though IN's files are not of one save",
      FIELD(cli.accept_mismatch), .marks = CMD_CHANGES },
    CLI_ROW_MODEL(struct ckptedit, cli.model, CMD_CHANGES),
    {0},
};

static const struct option_row operands[] = { { "ARGUMENT", .take = cli_words_add, FIELD(words) }, {0} };

static const char head[] =
    "Usage: ckpt-edit COMMAND [options] ARGUMENT... IN OUT\n"
    "       ckpt-edit COMMAND --in-place [options] ARGUMENT... IN\n"
    "       ckpt-edit average|ema [options] IN IN2... OUT\n"
    "Surgery on a checkpoint: OUT is IN with something changed. Files that stay as they are\n"
    "share their blocks with IN where the file system has reflinks (btrfs, XFS), and are\n"
    "copied elsewhere; the result line counts both. IN is never written to, and a write into\n"
    "OUT leaves IN as it is, unless --hard-links is given. Every checksum and the manifest\n"
    "are right afterwards, and a run that is killed leaves no OUT. IN is a tag folder (3D\n"
    "shards, ZeRO, universal .pt), a model folder of Transformers, a folder of\n"
    "torch.distributed.checkpoint (DCP) or of Megatron-core's torch_dist, or a folder with\n"
    "'latest'.\n"
    "\nCommands:\n"
    "  put NAME[:STATE] FILE.npy  a tensor's new elements, in every copy of it there is;\n"
    "                             without STATE: of weights and masters\n"
    "  zero PATTERN[:STATE]...    zeros; without STATE: in both moments\n"
    "  set KEY=JSON...            values of the pickled trees: args.lr=1e-4\n"
    "  drop optimizer|rng...      leave the optimizer's files or the random states out\n"
    "  drop PATTERN...            leave parameters out of a universal form, a model folder,\n"
    "                             DCP or torch_dist\n"
    "  average IN IN2...          weights and masters become the mean of all folders', of any\n"
    "                             layout and topology; all else is the first one's\n"
    "  ema --decay D IN IN2...    the same with a moving mean, in the order given\n"
    "  retag --step N             the step it claims to be of; --samples, --tokens: the rest\n"
    "                             of its counters and the schedule\n"
    "  cast bf16|fp16|fp32        another type of the weights (fp32: not of 3D shards)\n"
    "  rename PATTERN TO...       other names, by rules of PCRE2 (not of 3D shards)\n"
    "  layers keep|drop LIST      keep 0-3,2,5: these layers, in this order, some twice\n"
    "  vocab --tokens N           rows of embedding and head added or left behind\n"
    "  thin                       cut off what no tensor uses of storages, no entry of files\n"
    "  salvage                    what is lost or damaged, from what is left: mp_rank files from\n"
    "                             another rank's, weights from masters, masters from weights,\n"
    "                             moments from --from DIR or 0\n"
    "  latest DIR TAG             let DIR/latest name the complete checkpoint DIR/TAG\n"
    "  rollback IN                undo the last edit in place\n"
    "  commit IN                  give up IN.before-edit\n";
static const char tail[] =
    "Exit status: 0 done, 1 IN is damaged or the work failed (no OUT), 2 wrong usage.\n"
    "Example: ckpt-edit zero --in-place '3.mlp.*' ckpt/global_step31200\n";

int ckptedit_parse(struct ckptedit *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, { NULL, cli_rows, &j->cli, 0 }, {0},
    };
    const struct option_table table = {
        "ckpt-edit", head, tail, groups, j,
        "put zero set drop average ema retag cast rename layers vocab thin salvage latest rollback commit", operands,
        &j->words,
        .given = cli_words_given,
    };

    return cli_parse(&j->cli, &table, argc, argv);
}
