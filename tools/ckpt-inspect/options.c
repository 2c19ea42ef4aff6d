/*
 * options.c - what ckpt-inspect can be asked, and by which of its commands
 */
#include "libcommon/base/parse.h"
#include "tools/ckpt-inspect/inspect.h"

#define FIELD(f) .field = offsetof(struct inspect, f)

static int take_state(void *into, const char *value, struct err *e)
{
    struct inspect *in = into;

    in->state = state_by_name(value);
    if (in->state >= 0)
        return 0;
    err_usage(e, "--state: '%s' is not bf16, fp32, exp_avg or exp_avg_sq", value);
    return -1;
}

static int take_max(void *into, const char *value, struct err *e)
{
    struct inspect *in = into;
    int64_t n;

    if (parse_int(value, 0, INT32_MAX, &n) < 0) {
        err_usage(e, "--max: '%s' is not a number of 0 or more", value);
        return -1;
    }
    in->max = (int)n;
    return 0;
}

static int take_npy(void *into, const char *value, struct err *e)
{
    struct inspect *in = into;

    (void)value;
    (void)e;
    in->format = CAT_NPY;
    return 0;
}

static int take_raw(void *into, const char *value, struct err *e)
{
    struct inspect *in = into;

    (void)value;
    (void)e;
    in->format = CAT_RAW;
    return 0;
}

static const struct option_row rows[] = {
    { "state", 0, "STATE", "bf16, fp32, exp_avg or exp_avg_sq (ls, cat, stats, replicas, diff)", .take = take_state,
      .words = "bf16 fp32 exp_avg exp_avg_sq", .marks = CMD_LS | CMD_CAT | CMD_STATS | CMD_REPLICAS | CMD_DIFF },
    { "param", 0, "GLOB", "parameters whose names match (ls, stats, replicas, diff)", FIELD(glob),
      .marks = CMD_LS | CMD_STATS | CMD_REPLICAS | CMD_DIFF },
    { "slice", 0, "SLICE", "as in NumPy: '0:2,5', '-1', '::2' (cat)", FIELD(slice), .marks = CMD_CAT },
    { "npy", .help = "a .npy file instead of text (cat)", .take = take_npy, .marks = CMD_CAT },
    { "raw", .help = "little-endian bytes instead of text (cat)", .take = take_raw, .marks = CMD_CAT },
    { "output", 'o', "FILE", "write there instead of stdout (cat)", FIELD(output), .marks = CMD_CAT },
    { "force", 'f', .help = "replace FILE (cat)", FIELD(cli.force), .marks = CMD_CAT },
    { "strict", .help = "warnings fail too (verify)", FIELD(strict), .marks = CMD_VERIFY },
    { "lenient", .help = "accept odd container bytes that no reader uses (verify)", FIELD(lenient),
      .marks = CMD_VERIFY },
    { "certificate", 0, "FILE", "is it what this certificate of reshape or merge-tp says (verify)", FIELD(certificate),
      .marks = CMD_VERIFY },
    { "tensors-only", .help = "leave out run state, arguments and schedules (diff)", FIELD(tensors_only),
      .marks = CMD_DIFF },
    { "max", 0, "N", "differing parameters to list (diff; default 20)", .take = take_max, .marks = CMD_DIFF },
    {0},
};

static const struct option_row replicas_rows[] = {      /* taken into the cli */
    { "replicas", 0, "HOW", "average, first, majority or fail: how copies that disagree become one tensor (cat, stats, "
      "diff; default average)", .take = cli_take_replicas, .words = CLI_REPLICAS_WORDS,
      .marks = CMD_CAT | CMD_STATS | CMD_DIFF },
    {0},
};

static const char head[] =
    "Usage: ckpt-inspect [COMMAND] [options] PATH...\n"
    "Look into a Megatron-DeepSpeed checkpoint. PATH is a tag folder (3D shards or universal),\n"
    "a folder with 'latest', a model folder of Transformers, a tar of one ('-': on standard\n"
    "input), or one .pt or .h5 file.\n"
    "\nCommands:\n"
    "  (none) PATH...         topology, step, model, sizes, and what is missing\n"
    "  ls PATH                every parameter; -v: where its pieces lie\n"
    "  cat PATH NAME[.STATE]  one tensor, or a slice of it, as text, .npy or raw bytes\n"
    "  args PATH [NAME...]    the saved training arguments\n"
    "  stats PATH             norm, min, max, mean, NaN, infinities and zeros\n"
    "  verify PATH...         every file, rank, checksum and value\n"
    "  replicas PATH          are the tensor-parallel copies in sync?\n"
    "  diff A B               compare two checkpoints of any topology and layout\n";
static const char tail[] =
    "Exit status: 0 all is well, 1 something is wrong (or A and B differ), 2 wrong usage.\n"
    "Example: ckpt-inspect stats ckpt/global_step20 --state exp_avg_sq --param '3.*'\n";

static void note_given(void *ctx, const struct option_row *row, unsigned marks, const char *value)
{
    struct given *g = ctx;

    (void)value;
    if (marks && g->n < GIVEN_MAX)
        g->row[g->n++] = row;
}

int inspect_parse(struct inspect *in, struct given *given, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, in, 0 }, { NULL, replicas_rows, &in->cli, 0 }, { NULL, cli_rows, &in->cli, 0 }, {0},
    };
    const struct option_table table = {
        "ckpt-inspect", head, tail, .commands = "ls cat args stats verify replicas diff", .groups = groups,
        .given = note_given, .ctx = given,
    };

    return cli_parse(&in->cli, &table, argc, argv);
}
