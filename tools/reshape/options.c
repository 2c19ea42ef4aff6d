#include <stdio.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

enum { OPT_BALANCE = OPT_TOOL, OPT_LIKE, OPT_WEIGHTS, OPT_DROP, OPT_ZERO, OPT_STEP, OPT_LATEST, OPT_CERTIFICATE };

static const struct option longopts[] = {
    CLI_OPTIONS,
    CLI_OPTIONS_WRITE,
    CLI_OPTIONS_CONVERT,
    DS_OPTIONS,
    {"pp-balance", required_argument, 0, OPT_BALANCE},
    {"like", required_argument, 0, OPT_LIKE},
    {"weights-only", no_argument, 0, OPT_WEIGHTS},
    {"drop-optimizer", no_argument, 0, OPT_DROP},
    {"zero-moments", no_argument, 0, OPT_ZERO},
    {"step", required_argument, 0, OPT_STEP},
    {"set-latest", no_argument, 0, OPT_LATEST},
    {"certificate", required_argument, 0, OPT_CERTIFICATE},
    {0},
};

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int take_balance(struct job *j, const char *arg)
{
    const bool old = strcmp(arg, "old") == 0, new = strcmp(arg, "new") == 0;
    int major, minor, patch;
    char more;

    if (!old && !new && sscanf(arg, "%4d.%4d.%4d%c", &major, &minor, &patch, &more) != 3)
        return usage(j, "--pp-balance: expected old, new or a version of DeepSpeed such as 0.12.4");
    j->target.q.balance_given = true;
    j->target.q.balance = old ? PIPELINE_BOTTLENECK : new ? PIPELINE_SPREAD : pipeline_balance_of(arg);
    return 0;
}

static int take_step(struct job *j, const char *arg)
{
    return parse_int(arg, 0, (int64_t)1 << 52, &j->target.q.step) < 0 ? usage(j, "--step: expected an iteration") : 0;
}

static int take_option(struct job *j, int c)
{
    if (ds_option_is(c))
        return ds_option(&j->target, &j->cli, c, optarg);
    switch (c) {
    case OPT_BALANCE: return take_balance(j, optarg);
    case OPT_LIKE: j->like = optarg; return 0;
    case OPT_WEIGHTS: j->weights_only = j->target.q.no_optimizer = true; return 0;
    case OPT_DROP: j->target.q.no_optimizer = true; return 0;
    case OPT_ZERO: j->target.q.zero_moments = true; return 0;
    case OPT_STEP: return take_step(j, optarg);
    case OPT_LATEST: j->set_latest = true; return 0;
    case OPT_CERTIFICATE: j->certificate = optarg; return 0;
    }
    if (cli_option(&j->cli, c, optarg) == 0)
        return 0;
    cli_usage(&j->cli, NULL);
    return -1;
}

/* What the output depends on beside IN: a resumed run must have been asked for the same. */
static void note_shape(struct job *j, int c)
{
    if (ds_option_is(c) || (c >= OPT_BALANCE && c <= OPT_STEP))
        strbuf_addf(&j->shape, "%d %s\n", c, optarg ? optarg : "");
}

static int check(struct job *j)
{
    if (!j->in || !*j->in)
        return usage(j, "no IN given");
    if (!j->out || !*j->out)
        return usage(j, "no OUT given");
    if (j->target.q.stages && (j->target.q.method || j->target.q.balance_given))
        return usage(j, "--stages says it all: --pp-partition-method and --pp-balance do not go with it");
    if (j->target.q.no_optimizer && j->target.q.zero_moments)
        return usage(j, "--zero-moments needs the optimizer that --weights-only and --drop-optimizer leave out");
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
        note_shape(j, c);
    }
    strbuf_addf(&j->shape, "replicas %d\n", j->cli.replicas);
    if (optind < argc)
        j->in = argv[optind++];
    if (optind < argc)
        j->out = argv[optind++];
    if (optind < argc)
        return usage(j, "more than IN and OUT given");
    return check(j);
}
