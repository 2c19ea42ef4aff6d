/*
 * edit_options.c - the options of ckpt-edit, and which commands accept them
 */
#include "tools/ckpt-edit/ckptedit.h"

#define FIELD(f) OPTION_FIELD(struct ckptedit, f)

static const struct option_row rows[] = {
    { "in-place", 'i', .help = "edit IN itself: the result replaces IN atomically, and the original is kept as "
                               "IN.before-edit for rollback and commit", FIELD(in_place), .marks = CMD_CHANGES },
    { "dry-run", 'n', .help = "list the files that would change, with their sizes, and write nothing (all commands "
                              "except rollback and commit)", FIELD(cli.dry_run), .marks = CMD_CHANGES | CMD_LATEST },
    { "any-type", .help = "allow the new value to have another type than the old one (set)", FIELD(any_type),
      .marks = CMD_SET },
    { "derived", .help = "allow values that the tensors, the number of ranks or the step determine; values that depend "
                         "on them are not changed, so this is for repairs and tests (set)",
      FIELD(derived), .marks = CMD_SET },
    { "weights", .arg = "LIST", .help = "weight of each folder in the mean, in the order of the folders; the sum must "
                                        "be 1, as in 0.5,0.3,0.2 (average; default: equal weights)",
      FIELD(weights), .marks = CMD_AVERAGE },
    { "decay", .arg = "D", .help = "factor of the moving average, which each further folder updates: mean = D * mean + "
                                   "(1 - D) * folder (ema)",
      .kind = OPTION_REAL, .min = 0, .max = 1, FIELD(decay), .marks = CMD_EMA },
    { "style", .arg = "HOW", .help = "compute the weights of the folders, which are in the order of their steps, so "
                                     "that the mean approximates a run whose learning rate decays to 0 over these "
                                     "steps: linear (equal weights), cosine, or minus-sqrt (1 minus the square root) "
                                     "(average)",
      .words = "linear cosine minus-sqrt", FIELD(style), .marks = CMD_AVERAGE },
    { "last", .arg = "N", .help = "average the newest N checkpoints in the folder RUN, up to the one that the file "
                                  "'latest' names; everything except the averaged tensors is copied from the newest "
                                  "(average, ema)",
      .kind = OPTION_INT, .min = 2, .max = 65536, FIELD(last), .marks = CMD_AVERAGE | CMD_EMA },
    { "moments", .help = "average exp_avg and exp_avg_sq, too; without this option those of the first folder are kept "
                         "(average, ema)",
      FIELD(moments), .marks = CMD_AVERAGE | CMD_EMA },
    { "step", .arg = "N", .help = "set the step of OUT (retag)", .kind = OPTION_INT, .min = 0, .max = 1e15,
      FIELD(step), .marks = CMD_RETAG },
    { "samples", .arg = "N", .help = "set the number of consumed samples, and change the learning rate schedule by the "
                                     "same difference (retag)",
      .kind = OPTION_INT, .min = 0, .max = 1e15, FIELD(samples), .marks = CMD_RETAG },
    { "tokens", .arg = "N", .help = "set the number of consumed tokens, and change the learning rate schedule by the "
                                    "same difference (retag); number of rows of the vocabulary in OUT (vocab)",
      .kind = OPTION_INT, .min = 0, .max = 1e15, FIELD(tokens),
      .marks = CMD_RETAG | CMD_VOCAB },
    { "init", .arg = "HOW", .help = "values of new rows: mean (the mean of the existing rows, the default), zero, or "
                                    "normal:STD (random numbers with mean 0 and standard deviation STD, the same in "
                                    "every run) (vocab)", FIELD(init), .marks = CMD_VOCAB },
    { "rounding", .arg = "HOW", .help = "how products and sums are rounded: exact (computed in fp64 and rounded once; "
                                        "the default) or peft (rounded at the same places as in peft's "
                                        "merge_and_unload()) (merge-adapter)",
      .words = "exact peft", FIELD(rounding), .marks = CMD_MERGE_ADAPTER },
    { "hard-links", .help = "make unchanged files of OUT hard links to those of IN. This needs no space, but a program "
                            "that writes into such a file in OUT also changes IN (default: reflinks if the file system "
                            "has them, else copies)", FIELD(hard_links),
      .marks = CMD_CHANGES },
    { "from", .arg = "DIR", .help = "copy lost states from DIR, another checkpoint of the same run (salvage)",
      FIELD(from), .marks = CMD_SALVAGE },
    { "allow-lost", .help = "set weights that no file holds to 0, instead of failing; for ZeRO without any optimizer "
                            "file, write only the weights (salvage)", FIELD(allow_lost), .marks = CMD_SALVAGE },
    { "force", 'f', .help = "replace OUT if it exists", FIELD(cli.force), .marks = CMD_CHANGES },
    { "resume", .help = "continue an edit that was interrupted; finished files are not written again",
      FIELD(cli.resume),
      .marks = CMD_CHANGES },
    { "verify", .help = "read OUT back and compare it before it gets its final name", FIELD(cli.verify),
      .marks = CMD_CHANGES },
    { "accept-mismatch", .help = "print a warning instead of an error if the files of IN are not from one save, or "
                                 "hold NaN, infinite or contradictory values, or if verify would refuse OUT",
      FIELD(cli.accept_mismatch), .marks = CMD_CHANGES },
    CLI_ROW_MODEL(struct ckptedit, cli.model, CMD_CHANGES),
    {0},
};

static const struct option_command commands[] = {
    { "put", CMD_PUT, true, " IN OUT", NULL },
    { "zero", CMD_ZERO, true, " IN OUT", NULL },
    { "set", CMD_SET, false, " IN OUT", NULL },
    { "drop", CMD_DROP, true, " IN OUT", NULL },
    { "average", CMD_AVERAGE, false, " OUT", NULL },
    { "ema", CMD_EMA, false, " OUT", NULL },
    { "merge-adapter", CMD_MERGE_ADAPTER, false, " OUT", NULL },
    { "apply", CMD_APPLY, false, " IN OUT", NULL },
    { "retag", CMD_RETAG, false, " IN OUT", NULL },
    { "cast", CMD_CAST, false, " IN OUT", NULL },
    { "rename", CMD_RENAME, true, " IN OUT", NULL },
    { "layers", CMD_LAYERS, false, " IN OUT", NULL },
    { "vocab", CMD_VOCAB, false, " IN OUT", NULL },
    { "thin", CMD_THIN, false, " IN OUT", NULL },
    { "salvage", CMD_SALVAGE, false, " IN OUT", NULL },
    { "latest", CMD_LATEST, false, NULL, NULL },
    { "rollback", CMD_ROLLBACK, false, NULL, NULL },
    { "commit", CMD_COMMIT, false, NULL, NULL },
    {0},
};

static const struct option_row operands[] = { { "ARGUMENT", .take = cli_words_add, FIELD(words) }, {0} };

static const char head[] =
    "Usage: ckpt-edit COMMAND [options] ARGUMENT... IN OUT\n"
    "       ckpt-edit COMMAND --in-place [options] ARGUMENT... IN\n"
    "       ckpt-edit average|ema [options] IN IN2... OUT\n"
    "       ckpt-edit average|ema --last N [options] RUN OUT\n"
    "       ckpt-edit merge-adapter [options] IN ADAPTER... OUT\n"
    "Edit a checkpoint. OUT is a copy of IN with one change. IN is not modified, except with\n"
    "--in-place. Unchanged files share their disk blocks with IN if the file system supports\n"
    "reflinks (btrfs, XFS); otherwise they are copied. The result line prints the number of files\n"
    "of each kind. OUT has a manifest.json if IN has one or is a model folder (a model folder that\n"
    "is edited in place does not get one). If the command is interrupted, there is no OUT.\n"
    "IN is a checkpoint of Megatron-DeepSpeed (3D shards) or in the universal form (.pt, HDF5),\n"
    "of DeepSpeed ZeRO, of torch.distributed (DCP) or of Megatron-core (torch_dist), a model\n"
    "folder of Transformers, or a folder whose file 'latest' names a checkpoint.\n"
    "\n"
    "Commands:\n"
    "  put NAME[:STATE] FILE.npy  replace the elements of a tensor in all its copies; without\n"
    "                             STATE, those of the weights and of the masters\n"
    "  zero PATTERN[:STATE]...    set tensors to 0; without STATE, only both moments of Adam\n"
    "  set KEY=JSON...            set saved arguments and settings, such as args.lr=1e-4\n"
    "  drop optimizer|rng...      remove the optimizer states, or the random states\n"
    "  drop PATTERN...            remove parameters (not of 3D shards or ZeRO)\n"
    "  average IN IN2...          average the weights and masters of checkpoints of any layout\n"
    "                             and topology; everything else is copied from IN\n"
    "  ema --decay D IN IN2...    compute an exponential moving average of the weights and masters,\n"
    "                             from IN to the last folder\n"
    "  merge-adapter IN ADAPTER...\n"
    "                             merge LoRA adapters, as peft saves them, into the weights and\n"
    "                             masters of their base, in this order\n"
    "  apply PATCH                make B from A: PATCH is a file that 'ckpt-inspect diff' has\n"
    "                             written of A and B, and IN must have the tensors of A\n"
    "  retag --step N             set the step; --samples and --tokens set the other counters and\n"
    "                             change the learning rate schedule\n"
    "  cast bf16|fp16|fp32|fp8    convert the weights to another type (3D shards: not to fp32);\n"
    "                             FP8 and FP4 weights are dequantized to bf16 or fp32; fp8 is for\n"
    "                             model folders, with a scale for each block of 128 x 128\n"
    "  rename PATTERN TO...       rename parameters by PCRE2 expressions (not of 3D shards)\n"
    "  layers keep|drop LIST      select layers: 'keep 0-3,2,5' writes these six layers in this\n"
    "                             order\n"
    "  vocab --tokens N           add or remove rows of the embedding and the head\n"
    "  thin                       remove bytes that no tensor uses\n"
    "  salvage                    recreate lost or damaged data from the remaining data: mp_rank\n"
    "                             files from those of another rank, weights from masters, masters\n"
    "                             from weights, moments from --from DIR, otherwise as 0\n"
    "  latest DIR TAG             write TAG to DIR/latest if DIR/TAG is complete\n"
    "  rollback IN                undo the last edit in place\n"
    "  commit IN                  remove IN.before-edit, the checkpoint before the last edit in\n"
    "                             place\n";
static const char tail[] =
    "Exit status: 0 done, 1 IN is damaged or the edit failed (no OUT), 2 wrong usage.\n"
    "Examples:\n"
    "  ckpt-edit zero --in-place '3.mlp.*' ckpt/global_step31200\n"
    "  ckpt-edit average ckpt/global_step100 ckpt/global_step200 mean/global_step200\n"
    "  ckpt-edit salvage --from ckpt/global_step31000 ckpt/global_step31200 fixed\n";

int ckptedit_parse(struct ckptedit *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, { NULL, cli_rows, &j->cli, 0 }, {0},
    };
    const struct option_table table = {
        "ckpt-edit", head, tail, groups, j,
        commands, operands, &j->words,
        .given = cli_words_given,
    };

    return cli_parse(&j->cli, &table, argc, argv);
}
