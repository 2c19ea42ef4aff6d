/*
 * ckpt-inspect - look into a checkpoint, verify it, compare it
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/files.h"
#include "tools/ckpt-inspect/inspect.h"

static const char help[] =
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
    "  diff A B               compare two checkpoints of any topology and layout\n"
    "\nOptions:\n"
    "      --state STATE      bf16, fp32, exp_avg or exp_avg_sq (ls, cat, stats, replicas, diff)\n"
    "      --param GLOB       parameters whose names match (ls, stats, replicas, diff)\n"
    "      --slice SLICE      as in NumPy: '0:2,5', '-1', '::2' (cat)\n"
    "      --npy, --raw       .npy file, or little-endian bytes, instead of text (cat)\n"
    "  -o, --output FILE      write there instead of stdout (cat)\n"
    "  -f, --force            replace FILE (cat)\n"
    "      --replicas HOW     average, first, majority or fail: how copies that disagree\n"
    "                         become one tensor (cat, stats, diff; default average)\n"
    "      --strict           warnings fail too (verify)\n"
    "      --lenient          accept odd container bytes that no reader uses (verify)\n"
    "      --certificate FILE  is it what this certificate of reshape or merge-tp says (verify)\n"
    "      --tensors-only     leave out run state, arguments and schedules (diff)\n"
    "      --max N            differing parameters to list (diff; default 20)\n"
    CLI_HELP
    "\nExit status: 0 all is well, 1 something is wrong (or A and B differ), 2 wrong usage.\n"
    "Example: ckpt-inspect stats ckpt/global_step20 --state exp_avg_sq --param '3.*'\n";

enum { OPT_STATE = OPT_TOOL, OPT_PARAM, OPT_SLICE, OPT_NPY, OPT_RAW, OPT_STRICT, OPT_LENIENT, OPT_MAX, OPT_CERTIFICATE,
       OPT_TENSORS_ONLY };

/* Which of the tool's own options a command takes: one it would ignore is a mistake worth telling. */
static const struct command {
    const char *name;
    int (*run)(struct inspect *in);
    int min_args, max_args;
    int takes[8];
    const char *missing;
} commands[] = {
    { "ls", cmd_ls, 1, 1, { OPT_STATE, OPT_PARAM }, "ls needs one PATH" },
    { "cat", cmd_cat, 2, 2, { OPT_STATE, OPT_SLICE, OPT_NPY, OPT_RAW, 'o', 'f', OPT_REPLICAS },
      "cat needs a PATH and the NAME of a tensor" },
    { "args", cmd_args, 1, 1 << 20, { 0 }, "args needs a PATH" },
    { "stats", cmd_stats, 1, 1, { OPT_STATE, OPT_PARAM, OPT_REPLICAS }, "stats needs one PATH" },
    { "verify", cmd_verify, 1, 1 << 20, { OPT_STRICT, OPT_LENIENT, OPT_CERTIFICATE }, "verify needs a PATH" },
    { "replicas", cmd_replicas, 1, 1, { OPT_STATE, OPT_PARAM }, "replicas needs one PATH" },
    { "diff", cmd_diff, 2, 2, { OPT_STATE, OPT_PARAM, OPT_MAX, OPT_REPLICAS, OPT_TENSORS_ONLY },
      "diff needs two PATHs" },
    { "summary", cmd_summary, 1, 1 << 20, { 0 }, "no PATH given" },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* The tool's own options are remembered with their spelling until the command is known. */
struct given {
    int code[64], n;
};

static int set_state(struct inspect *in, const char *arg)
{
    in->state = state_by_name(arg);
    if (in->state >= 0)
        return 0;
    fprintf(stderr, "ckpt-inspect: --state: '%s' is not bf16, fp32, exp_avg or exp_avg_sq\n", arg);
    return -1;
}

static int set_max(struct inspect *in, const char *arg)
{
    int64_t n;

    if (parse_int(arg, 0, INT32_MAX, &n) < 0) {
        fprintf(stderr, "ckpt-inspect: --max: '%s' is not a number of 0 or more\n", arg);
        return -1;
    }
    in->max = (int)n;
    return 0;
}

static int take_option(struct inspect *in, struct given *g, int c, const char *arg)
{
    if ((c >= OPT_TOOL || c == 'o' || c == 'f' || c == OPT_REPLICAS) && g->n < 64)
        g->code[g->n++] = c;
    switch (c) {
    case OPT_STATE:   return set_state(in, arg);
    case OPT_MAX:     return set_max(in, arg);
    case OPT_PARAM:   in->glob = arg; return 0;
    case OPT_SLICE:   in->slice = arg; return 0;
    case OPT_NPY:     in->format = CAT_NPY; return 0;
    case OPT_RAW:     in->format = CAT_RAW; return 0;
    case OPT_STRICT:  in->strict = true; return 0;
    case OPT_TENSORS_ONLY: in->tensors_only = true; return 0;
    case OPT_LENIENT: in->lenient = true; return 0;
    case OPT_CERTIFICATE: in->certificate = arg; return 0;
    case 'o':         in->output = arg; return 0;
    }
    return cli_option(&in->cli, c, arg);
}

static const char *spelling(int code, const struct option *longs)
{
    while (longs->name && longs->val != code)
        longs++;
    return longs->name ? longs->name : "?";
}

/* The first option that the command does not take, or NULL. */
static const char *misplaced(const struct command *cmd, const struct given *g, const struct option *longs)
{
    for (int i = 0; i < g->n; i++) {
        bool takes = false;

        for (int k = 0; k < 8; k++)
            takes |= cmd->takes[k] == g->code[i];
        if (!takes)
            return spelling(g->code[i], longs);
    }
    return NULL;
}

/* A first word that names a command is one (a folder of that name is ./ls); otherwise it is a path. */
static const struct command *find_command(const char *word)
{
    for (int i = 0; word && i < N_COMMANDS; i++)
        if (strcmp(word, commands[i].name) == 0)
            return &commands[i];
    return &commands[N_COMMANDS - 1];
}

/* The command that a first word was meant to be, when it is no path either; or NULL. */
static const char *misspelt(const char *word)
{
    const char *names[N_COMMANDS];

    for (int i = 0; i < N_COMMANDS; i++)
        names[i] = commands[i].name;
    return word && !strchr(word, '/') && access(word, F_OK) < 0 ? nearest_word(word, names, N_COMMANDS) : NULL;
}

/* Looking twice at one PATH tells nothing new: each is kept once. */
static void drop_repeated(struct inspect *in, const struct command *cmd)
{
    int n = 0;

    if (cmd->run != cmd_summary && cmd->run != cmd_verify)
        return;
    for (int i = 0; i < in->n_args; i++) {
        bool seen = false;

        for (int k = 0; k < n; k++)
            seen = seen || path_same(in->arg[k], in->arg[i]);
        if (seen)
            cli_warn(&in->cli, "%s is named twice", in->arg[i]);
        else
            in->arg[n++] = in->arg[i];
    }
    in->n_args = n;
}

int main(int argc, char **argv)
{
    static const struct option longopts[] = {
        CLI_OPTIONS, {"replicas", required_argument, 0, OPT_REPLICAS}, {"force", no_argument, 0, 'f'},
        {"state", required_argument, 0, OPT_STATE}, {"param", required_argument, 0, OPT_PARAM},
        {"slice", required_argument, 0, OPT_SLICE}, {"npy", no_argument, 0, OPT_NPY},
        {"raw", no_argument, 0, OPT_RAW}, {"output", required_argument, 0, 'o'},
        {"strict", no_argument, 0, OPT_STRICT}, {"lenient", no_argument, 0, OPT_LENIENT},
        {"max", required_argument, 0, OPT_MAX}, {"tensors-only", no_argument, 0, OPT_TENSORS_ONLY},
        {"certificate", required_argument, 0, OPT_CERTIFICATE}, {0}
    };
    struct inspect in = { .state = -1, .max = 20 };
    struct given given = {0};
    const struct command *cmd;
    const char *odd;
    int c;

    cli_start(&in.cli, argv, "ckpt-inspect");
    while ((c = cli_getopt(&in.cli, argc, argv, CLI_SHORT "fo:", longopts)) != -1) {
        if (c == OPT_HELP)
            return cli_help(help);
        if (take_option(&in, &given, c, optarg) < 0)
            return cli_usage(&in.cli, NULL);
    }
    cmd = find_command(argv[optind]);
    in.arg = argv + optind + (argv[optind] && strcmp(argv[optind], cmd->name) == 0);
    in.n_args = (int)(argv + argc - in.arg);
    odd = misplaced(cmd, &given, longopts);
    if (in.arg == argv + optind && misspelt(argv[optind]))
        return cli_usage(&in.cli, "no command or path '%s'; did you mean '%s'?", argv[optind], misspelt(argv[optind]));
    if (odd)
        return cli_usage(&in.cli, "%s takes no --%s", cmd->name, odd);
    if (in.n_args < cmd->min_args)
        return cli_usage(&in.cli, "%s", cmd->missing);
    if (in.n_args > cmd->max_args)
        return cli_usage(&in.cli, "%s: what is '%s'?", cmd->missing, in.arg[cmd->max_args]);
    drop_repeated(&in, cmd);
    return cli_done(&in.cli, cmd->run(&in));
}
