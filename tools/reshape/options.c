#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

enum {
    OPT_TP = OPT_TOOL, OPT_PP, OPT_DP, OPT_METHOD, OPT_BALANCE, OPT_STAGES, OPT_VOCAB, OPT_GROUPS, OPT_NUMBERING,
    OPT_LIKE, OPT_WEIGHTS, OPT_DROP, OPT_ZERO, OPT_STEP, OPT_SET, OPT_LATEST, OPT_VERIFY, OPT_RESUME, OPT_PART,
    OPT_CERTIFICATE,
};

static const struct option longopts[] = {
    CLI_OPTIONS,
    CLI_OPTIONS_WRITE,
    {"target-tp", required_argument, 0, OPT_TP},
    {"target-pp", required_argument, 0, OPT_PP},
    {"target-dp", required_argument, 0, OPT_DP},
    {"pp-partition-method", required_argument, 0, OPT_METHOD},
    {"pp-balance", required_argument, 0, OPT_BALANCE},
    {"stages", required_argument, 0, OPT_STAGES},
    {"pad-vocab-size-to", required_argument, 0, OPT_VOCAB},
    {"groups", required_argument, 0, OPT_GROUPS},
    {"layer-numbering", required_argument, 0, OPT_NUMBERING},
    {"like", required_argument, 0, OPT_LIKE},
    {"weights-only", no_argument, 0, OPT_WEIGHTS},
    {"drop-optimizer", no_argument, 0, OPT_DROP},
    {"zero-moments", no_argument, 0, OPT_ZERO},
    {"step", required_argument, 0, OPT_STEP},
    {"set", required_argument, 0, OPT_SET},
    {"set-latest", no_argument, 0, OPT_LATEST},
    {"verify", no_argument, 0, OPT_VERIFY},
    {"resume", no_argument, 0, OPT_RESUME},
    {"part", required_argument, 0, OPT_PART},
    {"certificate", required_argument, 0, OPT_CERTIFICATE},
    {0},
};

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int take_degree(struct job *j, const char *arg, int *to)
{
    int64_t n;

    if (parse_int(arg, 1, 65536, &n) < 0)
        return usage(j, "--target-tp, --target-pp, --target-dp: expected a number from 1 to 65536");
    *to = (int)n;
    return 0;
}

static int take_stages(struct job *j, const char *arg)
{
    int n = 0;

    for (const char *p = arg;; p++) {
        char *end;
        long layers = strtol(p, &end, 10);

        if (end == p || layers < 0 || layers > 100000 || n == STAGES_MAX || (*end && *end != ','))
            return usage(j, "--stages: expected layers of each stage, as in 5,6,6,5");
        j->stages[n++] = (int)layers;
        p = end;
        if (!*p)
            break;
    }
    j->request.stages = j->stages;
    j->request.n_stages = n;
    return 0;
}

static int take_numbering(struct job *j, const char *arg)
{
    static const char *const words[] = { "new", "old", "msmd" };

    for (int i = 0; i < 3; i++)
        if (strcmp(arg, words[i]) == 0) {
            j->request.numbering = (enum ds_numbering)(NUMBERING_NEW + i);
            return 0;
        }
    return usage(j, "--layer-numbering: expected new, old or msmd");
}

static int take_balance(struct job *j, const char *arg)
{
    if (strcmp(arg, "old") != 0 && strcmp(arg, "new") != 0)
        return usage(j, "--pp-balance: expected old or new");
    j->request.balance_given = true;
    j->request.balance = strcmp(arg, "old") == 0 ? PIPELINE_BOTTLENECK : PIPELINE_SPREAD;
    return 0;
}

static int take_number(struct job *j, int c, const char *arg)
{
    int64_t n;

    if (c == OPT_GROUPS) {
        if (parse_int(arg, 2, 3, &n) < 0)
            return usage(j, "--groups: expected 2 or 3");
        j->request.n_groups = (int)n;
    } else if (c == OPT_VOCAB) {
        if (parse_int(arg, 1, (int64_t)1 << 40, &j->request.vocab) < 0)
            return usage(j, "--pad-vocab-size-to: expected a number of rows");
    } else if (parse_int(arg, 0, (int64_t)1 << 52, &j->request.step) < 0) {
        return usage(j, "--step: expected an iteration");
    }
    return 0;
}

static int take_set(struct job *j, const char *arg)
{
    if (!strchr(arg, '='))
        return usage(j, "--set: expected KEY=VALUE");
    if (j->request.n_set == SETS_MAX)
        return usage(j, "--set: given too often");
    j->sets[j->request.n_set++] = arg;
    j->request.set = j->sets;
    return 0;
}

static int take_part(struct job *j, const char *arg)
{
    int part, n_parts;
    char end;

    if (sscanf(arg, "%d/%d%c", &part, &n_parts, &end) != 2 || part < 0 || part >= n_parts || n_parts > 1 << 20)
        return usage(j, "--part: expected I/N with 0 <= I < N");
    j->cli.part = part;
    j->cli.n_parts = n_parts;
    return 0;
}

static int take_option(struct job *j, int c)
{
    switch (c) {
    case OPT_TP: return take_degree(j, optarg, &j->request.topo.tp);
    case OPT_PP: return take_degree(j, optarg, &j->request.topo.pp);
    case OPT_DP: return take_degree(j, optarg, &j->request.topo.dp);
    case OPT_METHOD: j->request.method = optarg; return 0;
    case OPT_BALANCE: return take_balance(j, optarg);
    case OPT_STAGES: return take_stages(j, optarg);
    case OPT_VOCAB: case OPT_GROUPS: case OPT_STEP: return take_number(j, c, optarg);
    case OPT_NUMBERING: return take_numbering(j, optarg);
    case OPT_LIKE: j->like = optarg; return 0;
    case OPT_WEIGHTS: j->weights_only = j->request.no_optimizer = true; return 0;
    case OPT_DROP: j->request.no_optimizer = true; return 0;
    case OPT_ZERO: j->request.zero_moments = true; return 0;
    case OPT_SET: return take_set(j, optarg);
    case OPT_LATEST: j->set_latest = true; return 0;
    case OPT_VERIFY: j->verify = true; return 0;
    case OPT_RESUME: j->resume = true; return 0;
    case OPT_PART: return take_part(j, optarg);
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
    static const int shaping[] = { OPT_TP, OPT_PP, OPT_DP, OPT_METHOD, OPT_BALANCE, OPT_STAGES, OPT_VOCAB, OPT_GROUPS,
                                   OPT_NUMBERING, OPT_LIKE, OPT_WEIGHTS, OPT_DROP, OPT_ZERO, OPT_STEP, OPT_SET };

    for (size_t i = 0; i < sizeof shaping / sizeof *shaping; i++)
        if (shaping[i] == c)
            strbuf_addf(&j->shape, "%d %s\n", c - OPT_TOOL, optarg ? optarg : "");
}

static int check(struct job *j)
{
    if (!j->in || !*j->in)
        return usage(j, "no IN given");
    if (!j->out || !*j->out)
        return usage(j, "no OUT given");
    if (j->request.stages && (j->request.method || j->request.balance_given))
        return usage(j, "--stages says it all: --pp-partition-method and --pp-balance do not go with it");
    if (j->request.no_optimizer && j->request.zero_moments)
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
