/*
 * inspect_options.c - the options of ckpt-inspect, and which commands accept them
 */
#include "tools/ckpt-inspect/inspect.h"

#define FIELD(f) OPTION_FIELD(struct inspect, f)

static const struct option_row rows[] = {
    { "state", 0, "STATE", "bf16, fp32, exp_avg or exp_avg_sq (ls, cat, stats, replicas, diff)", FIELD(state),
      .words = "bf16 fp32 exp_avg exp_avg_sq", .marks = CMD_LS | CMD_CAT | CMD_STATS | CMD_REPLICAS | CMD_DIFF },
    { "param", 0, "GLOB", "parameters whose names match (ls, stats, replicas, diff)", FIELD(glob),
      .marks = CMD_LS | CMD_STATS | CMD_REPLICAS | CMD_DIFF },
    { "slice", 0, "SLICE", "as in NumPy: '0:2,5', '-1', '::2' (cat)", FIELD(slice), .marks = CMD_CAT },
    { "npy", .help = "a .npy file instead of text (cat)", OPTION_VALUE, FIELD(format), .min = CAT_NPY,
      .marks = CMD_CAT },
    { "raw", .help = "little-endian bytes instead of text (cat)", OPTION_VALUE, FIELD(format), .min = CAT_RAW,
      .marks = CMD_CAT },
    { "output", 'o', "FILE", "write there instead of stdout (cat)", FIELD(output), .marks = CMD_CAT },
    { "force", 'f', .help = "replace FILE (cat)", FIELD(cli.force), .marks = CMD_CAT },
    { "strict", .help = "warnings fail too (verify)", FIELD(strict), .marks = CMD_VERIFY },
    { "allow-drift", .help = "tensor-parallel copies that disagree are a warning (verify)", FIELD(allow_drift),
      .marks = CMD_VERIFY },
    { "lenient", .help = "accept odd container bytes that no reader uses (verify)", FIELD(lenient),
      .marks = CMD_VERIFY },
    { "certificate", 0, "FILE", "is it what this certificate of reshape or merge-tp says (verify)", FIELD(certificate),
      .marks = CMD_VERIFY },
    CLI_ROW_MODEL(struct inspect, cli.model, 0),
    { "tensors-only", .help = "leave out run state, arguments and schedules (diff)", FIELD(tensors_only),
      .marks = CMD_DIFF },
    { "max", 0, "N", "differing parameters to list (diff)", OPTION_INT, FIELD(max), .max = INT32_MAX, .def = "20",
      .marks = CMD_DIFF },
    { "replicas", 0, "HOW", "average, first, majority or fail: how copies that disagree become one tensor (cat, stats, "
      "diff)", FIELD(cli.replicas), .words = CLI_REPLICAS_WORDS, .def = "average",
      .marks = CMD_CAT | CMD_STATS | CMD_DIFF },
    {0},
};

static const struct option_row operands[] = { { "PATH", .take = cli_words_add, FIELD(words) }, {0} };

static const char head[] =
    "Usage: ckpt-inspect [COMMAND] [options] PATH...\n"
    "Look into a checkpoint. PATH is a tag folder of Megatron-DeepSpeed (3D shards or\n"
    "universal), of DeepSpeed's ZeRO-1, 2 or 3, of torch.distributed (DCP: FSDP2) or of\n"
    "Megatron-core (torch_dist), a model folder of Transformers, a folder with 'latest', a tar\n"
    "of one ('-': on standard input), or one file of torch.save or .h5.\n"
    "\nCommands:\n"
    "  (none) PATH...         topology, step, model, sizes, and what is missing\n"
    "  ls PATH                every parameter; -v: where its pieces lie\n"
    "  cat PATH NAME[.STATE]  one tensor, or a slice of it, as text, .npy or raw bytes\n"
    "  args PATH [NAME...]    the saved training arguments\n"
    "  stats PATH             norm, min, max, mean, NaN, infinities and zeros\n"
    "  verify PATH...         every file, rank, checksum and value\n"
    "  damage PATH            what is lost or corrupt, and what can be had all the same\n"
    "  replicas PATH          are the tensor-parallel copies in sync?\n"
    "  diff A B               compare two checkpoints of any topology and layout\n";
static const char tail[] =
    "Exit status: 0 all is well, 1 something is wrong (or A and B differ), 2 wrong usage.\n"
    "Example: ckpt-inspect stats ckpt/global_step20 --state exp_avg_sq --param '3.*'\n";

int inspect_parse(struct inspect *in, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, { NULL, cli_rows, &in->cli, 0 }, {0},
    };
    const struct option_table table = {
        "ckpt-inspect", head, tail, groups, in, "ls cat args stats verify damage replicas diff", operands, &in->words,
        .given = cli_words_given,
    };

    return cli_parse(&in->cli, &table, argc, argv);
}
