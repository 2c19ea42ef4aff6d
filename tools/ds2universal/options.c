#include <string.h>

#include "tools/ds2universal/ds2universal.h"

enum {
    OPT_FORMAT = OPT_TOOL, OPT_SPLIT, OPT_VOCAB,
    OPT_IN, OPT_OUT, OPT_WORKERS, OPT_IGNORED, OPT_IGNORED_VALUE,
};

static const struct option longopts[] = {
    CLI_OPTIONS,
    CLI_OPTIONS_WRITE,
    CLI_OPTIONS_CONVERT,
    {"format", required_argument, 0, OPT_FORMAT},
    {"split", no_argument, 0, OPT_SPLIT},
    {"vocab", required_argument, 0, OPT_VOCAB},
    {"input-folder", required_argument, 0, OPT_IN},
    {"output-folder", required_argument, 0, OPT_OUT},
    {"num-extract-workers", required_argument, 0, OPT_WORKERS},
    {"num-merge-workers", required_argument, 0, OPT_WORKERS},
    {"keep-temp-folder", no_argument, 0, OPT_IGNORED},
    {"no-strict", no_argument, 0, OPT_IGNORED},
    {"inject-missing-state", no_argument, 0, OPT_IGNORED},
    {"for-release", no_argument, 0, OPT_IGNORED},
    {"target-tp", required_argument, 0, OPT_IGNORED_VALUE},
    {"target-pp", required_argument, 0, OPT_IGNORED_VALUE},
    {0},
};

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int take_format(struct job *j, const char *arg)
{
    static const char *const forms[] = { "pt", "hdf5", "virtual" };

    for (int i = 0; i < 3; i++)
        if (strcmp(arg, forms[i]) == 0) {
            j->form = (enum form)i;
            return 0;
        }
    return usage(j, "--format: expected pt, hdf5 or virtual");
}

static int take_workers(struct job *j, const char *arg)
{
    int64_t n;

    /* The reference's worker processes; a larger number than cores gains nothing here. */
    if (parse_int(arg, 1, 1024, &n) < 0)
        return usage(j, "--num_extract_workers, --num_merge_workers: expected a number from 1 to 1024");
    if (n < j->cli.threads)
        j->cli.threads = (int)n;
    return 0;
}

static int take_option(struct job *j, int c)
{
    int64_t ignored;

    switch (c) {
    case OPT_FORMAT: return take_format(j, optarg);
    case OPT_WORKERS: return take_workers(j, optarg);
    case OPT_SPLIT: j->split = true; return 0;
    case OPT_IN: j->in = optarg; return 0;
    case OPT_OUT: j->out = optarg; return 0;
    case OPT_IGNORED: return 0;
    case OPT_IGNORED_VALUE:
        return parse_int(optarg, 1, 1 << 20, &ignored) < 0 ? usage(j, "--target_tp, --target_pp: expected a number") : 0;
    case OPT_VOCAB:
        if (strcmp(optarg, "keep") != 0 && strcmp(optarg, "strip") != 0)
            return usage(j, "--vocab: expected keep or strip");
        j->vocab = strcmp(optarg, "strip") == 0 ? VOCAB_STRIP : VOCAB_KEEP;
        return 0;
    }
    if (cli_option(&j->cli, c, optarg) == 0)
        return 0;
    cli_usage(&j->cli, NULL);
    return -1;
}

int job_parse(struct job *j, int argc, char **argv)
{
    int c;

    while ((c = cli_getopt(&j->cli, argc, argv, CLI_SHORT CLI_SHORT_WRITE, longopts)) != -1) {
        if (c == OPT_HELP)
            return JOB_HELP;
        if (take_option(j, c) < 0)
            return -1;
    }
    if (!j->in && optind < argc)
        j->in = argv[optind++];
    if (!j->out && optind < argc)
        j->out = argv[optind++];
    if (!j->in || !*j->in)
        return usage(j, "no IN given");
    if (!j->out || !*j->out)
        return usage(j, "no OUT given");
    if (optind < argc)
        return usage(j, "more than IN and OUT given");
    if (j->split && j->form != FORM_HDF5)
        return usage(j, "--split goes with --format hdf5");
    return 0;
}
