#include "libcommon/base/mem.h"
#include "tools/merge-tp/merge.h"

enum { OPT_TP = OPT_TOOL, OPT_CHECK, OPT_REPAIR, OPT_WEIGHTS, OPT_LATEST, OPT_CERTIFICATE };

static const struct option longopts[] = {
    CLI_OPTIONS,
    CLI_OPTIONS_WRITE,
    CLI_OPTIONS_CONVERT,
    {"target-tp", required_argument, 0, OPT_TP},
    {"check", no_argument, 0, OPT_CHECK},
    {"repair", no_argument, 0, OPT_REPAIR},
    {"weights-only", no_argument, 0, OPT_WEIGHTS},
    {"set-latest", no_argument, 0, OPT_LATEST},
    {"certificate", required_argument, 0, OPT_CERTIFICATE},
    {0},
};

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int take_option(struct job *j, int c)
{
    int64_t n;

    switch (c) {
    case OPT_TP:
        if (parse_int(optarg, 1, 65536, &n) < 0)
            return usage(j, "--target-tp: expected a number from 1 to 65536");
        j->target_tp = (int)n;
        return 0;
    case OPT_CHECK: j->check = true; return 0;
    case OPT_REPAIR: j->repair = true; return 0;
    case OPT_WEIGHTS: j->weights_only = true; return 0;
    case OPT_LATEST: j->set_latest = true; return 0;
    case OPT_CERTIFICATE: j->certificate = optarg; return 0;
    }
    if (cli_option(&j->cli, c, optarg) == 0)
        return 0;
    cli_usage(&j->cli, NULL);
    return -1;
}

static int check(struct job *j)
{
    if (!j->in || !*j->in)
        return usage(j, "no IN given");
    if (j->check && j->repair)
        return usage(j, "--check only looks: it does not go with --repair");
    if (!j->check && (!j->out || !*j->out))
        return usage(j, "no OUT given");
    if (j->repair && j->target_tp)
        return usage(j, "--repair keeps the topology: --target-tp does not go with it");
    if (j->repair && j->weights_only)
        return usage(j, "--repair settles weights and optimizer together: --weights-only does not go with it");
    if (j->repair && j->cli.replicas == REPLICAS_FAIL)
        return usage(j, "--repair: say how with --replicas average, first or majority");
    return 0;
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
    /* What the output depends on beside IN: a resumed run must have been asked for the same. */
    strbuf_addf(&j->shape, "tp %d repair %d weights %d replicas %d\n", j->target_tp, j->repair, j->weights_only,
                j->cli.replicas);
    if (optind < argc)
        j->in = argv[optind++];
    if (optind < argc)
        j->out = argv[optind++];
    if (optind < argc)
        return usage(j, "more than IN and OUT given");
    return check(j);
}
