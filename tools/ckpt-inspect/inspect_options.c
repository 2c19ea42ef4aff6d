/*
 * inspect_options.c - the options of ckpt-inspect, and which commands accept them
 */
#include "tools/ckpt-inspect/inspect.h"

#define FIELD(f) OPTION_FIELD(struct inspect, f)

static const struct option_row rows[] = {
    { "state", 0, "STATE", "print only this state: bf16 (the weights), fp32 (the masters), exp_avg or exp_avg_sq (ls, "
                           "cat, stats, replicas, diff)", FIELD(state),
      .words = "bf16 fp32 exp_avg exp_avg_sq", .marks = CMD_LS | CMD_CAT | CMD_STATS | CMD_REPLICAS | CMD_DIFF },
    { "param", 0, "GLOB", "print only parameters whose names match a shell pattern (ls, stats, replicas, diff)",
      FIELD(glob),
      .marks = CMD_LS | CMD_STATS | CMD_REPLICAS | CMD_DIFF, .takes_param = true },
    { "slice", 0, "SLICE", "print only part of the tensor; SLICE has the syntax of NumPy, such as '0:2,5', '-1' or "
                           "'::2' (cat)", FIELD(slice), .marks = CMD_CAT },
    { "npy", .help = "write a .npy file instead of text (cat)", OPTION_VALUE, FIELD(format), .min = CAT_NPY,
      .marks = CMD_CAT },
    { "raw", .help = "write little-endian bytes instead of text (cat)", OPTION_VALUE, FIELD(format), .min = CAT_RAW,
      .marks = CMD_CAT },
    { "output", 'o', "FILE", "write to FILE instead of stdout (cat)", FIELD(output), .marks = CMD_CAT },
    { "force", 'f', .help = "replace FILE if it exists (cat, diff)", FIELD(cli.force), .marks = CMD_CAT | CMD_DIFF },
    { "conf", .help = "print the arguments as a file of options for train (args)",
      FIELD(conf), .marks = CMD_ARGS },
    { "strict", .help = "exit with status 1 if there are warnings, too (verify)", FIELD(strict), .marks = CMD_VERIFY },
    { "allow-drift", .help = "print a warning instead of an error if tensor-parallel copies differ "
                             "(verify)", FIELD(allow_drift),
      .marks = CMD_VERIFY },
    { "lenient", .help = "do not check bytes of containers that no reader uses, such as padding (verify)",
      FIELD(lenient),
      .marks = CMD_VERIFY },
    { "certificate", 0, "FILE", "compare the tensors with the digests in FILE, which reshape or merge-tp wrote with "
                                "--certificate (verify)", FIELD(certificate),
      .marks = CMD_VERIFY },
    CLI_ROW_MODEL(struct inspect, cli.model, 0),
    { "tensors-only", .help = "compare only tensors, not the state of the run, arguments and schedules (diff)",
      FIELD(tensors_only),
      .marks = CMD_DIFF },
    { "max", 0, "N", "list at most N differing parameters (diff)",
      OPTION_INT, FIELD(max), .max = INT32_MAX, .def = "20",
      .marks = CMD_DIFF },
    { "patch", 0, "FILE", "write FILE, from which 'ckpt-edit apply' makes B from A, instead of the differences (diff)",
      FIELD(patch), .marks = CMD_DIFF },
    { "replicas", 0, "HOW", "which value to use if the tensor-parallel copies of a parameter differ: average, first "
                            "(that of rank 0), majority, or fail (cat, stats, diff)",
      FIELD(cli.replicas), .words = CLI_REPLICAS_WORDS, .def = "average",
      .marks = CMD_CAT | CMD_STATS | CMD_DIFF },
    {0},
};

#define STATUS_READ "0 success, 1 the checkpoint is damaged or cannot be read, 2 wrong usage"

static const struct option_command commands[] = {
    { "ls", CMD_LS, false, NULL, STATUS_READ },
    { "cat", CMD_CAT, true, NULL, STATUS_READ },
    { "args", CMD_ARGS, false, NULL,
      "0 success, 1 there is no such NAME or the checkpoint cannot be read, 2 wrong usage" },
    { "stats", CMD_STATS, false, NULL, STATUS_READ },
    { "verify", CMD_VERIFY, false, NULL, "0 no error was found, 1 an error was found, 2 wrong usage" },
    { "damage", CMD_DAMAGE, false, NULL, "0 no tensor is lost or damaged, 1 some are, 2 wrong usage" },
    { "replicas", CMD_REPLICAS, false, NULL, "0 all copies are equal, 1 copies differ or are missing, 2 wrong usage" },
    { "diff", CMD_DIFF, false, NULL, "0 A and B are equal, 1 they differ or cannot be compared, 2 wrong usage" },
    { "summary", CMD_SUMMARY, false, NULL, STATUS_READ },
    {0},
};

static const struct option_row operands[] = { { "PATH", .take = cli_words_add, FIELD(words) }, {0} };

static const char head[] =
    "Usage: ckpt-inspect [COMMAND] [options] PATH...\n"
    "Show, check and compare checkpoints. PATH (A, B) is one of:\n"
    "  a checkpoint of Megatron-DeepSpeed (3D shards) or in the universal form (.pt, HDF5),\n"
    "  of DeepSpeed ZeRO-1, 2 or 3, of torch.distributed (DCP: FSDP2) or of Megatron-core\n"
    "  (torch_dist); a model folder of Transformers; a folder whose file 'latest' names a\n"
    "  checkpoint; a tar archive of one ('-' reads it from stdin); a single .pt or .h5 file.\n"
    "\n"
    "Commands:\n"
    "  (none) PATH...         print topology, step, model, sizes and missing files\n"
    "  ls PATH                list all parameters; with -v, where their parts are stored\n"
    "  cat PATH NAME[.STATE]  print one tensor, or part of it, as text, .npy or raw bytes\n"
    "  args PATH [NAME...]    print the saved training arguments\n"
    "  stats PATH             print norm, min, max, mean, NaN, infinities and zeros\n"
    "  verify PATH...         check that files, ranks, checksums and values are consistent\n"
    "  damage PATH            list lost or corrupt data, and what can be recovered\n"
    "  replicas PATH          compare the copies that tensor-parallel ranks keep\n"
    "  diff A B               compare two checkpoints of any topology and layout\n";
static const char tail[] =
    "Exit status: 0 no error was found, 1 an error was found or A and B differ, 2 wrong usage.\n"
    "Examples:\n"
    "  ckpt-inspect verify ckpt\n"
    "  ckpt-inspect cat ckpt/global_step20 3.mlp.dense_h_to_4h.weight --slice 0:2\n"
    "  ckpt-inspect diff ckpt/global_step20 ckpt/global_step20_universal\n"
    "  ckpt-inspect stats ckpt/global_step20 --state exp_avg_sq --param '3.*'\n";

int inspect_parse(struct inspect *in, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, { NULL, cli_rows, &in->cli, 0 }, {0},
    };
    const struct option_table table = {
        "ckpt-inspect", head, tail, groups, in, commands, operands, &in->words,
        .given = cli_words_given,
    };

    return cli_parse(&in->cli, &table, argc, argv);
}
