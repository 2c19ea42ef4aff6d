#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "tools/export-hf/export.h"

enum {
    OPT_DTYPE = OPT_TOOL, OPT_FORMAT, OPT_SHARD, OPT_LAYER, OPT_PREFIX, OPT_STRIP, OPT_TOKENS, OPT_TOKENIZER,
    OPT_CONFIG, OPT_ARCH, OPT_LOSSY, OPT_ALL, OPT_IMPORT, OPT_REPEAT, OPT_WEIGHTS, OPT_LATEST,
};

static const struct option longopts[] = {
    CLI_OPTIONS,
    CLI_OPTIONS_WRITE,
    CLI_OPTIONS_CONVERT,
    DS_OPTIONS,
    {"dtype", required_argument, 0, OPT_DTYPE},
    {"format", required_argument, 0, OPT_FORMAT},
    {"max-shard-size", required_argument, 0, OPT_SHARD},
    {"per-layer", no_argument, 0, OPT_LAYER},
    {"no-prefix", no_argument, 0, OPT_PREFIX},
    {"strip-vocab-padding", no_argument, 0, OPT_STRIP},
    {"vocab-tokens", required_argument, 0, OPT_TOKENS},
    {"tokenizer", required_argument, 0, OPT_TOKENIZER},
    {"config", required_argument, 0, OPT_CONFIG},
    {"arch", required_argument, 0, OPT_ARCH},
    {"lossy", no_argument, 0, OPT_LOSSY},
    {"all-steps", no_argument, 0, OPT_ALL},
    {"import", no_argument, 0, OPT_IMPORT},
    {"repeat-last", no_argument, 0, OPT_REPEAT},
    {"weights-only", no_argument, 0, OPT_WEIGHTS},
    {"set-latest", no_argument, 0, OPT_LATEST},
    {0},
};

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

/* The number of a word in a list that NULL ends, or -1. */
static int word_of(const char *arg, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(arg, words[i]) == 0)
            return i;
    return -1;
}

/* ---- export ---- */

static int take_dtype(struct job *j, const char *arg)
{
    static const char *const words[] = { "bf16", "bfloat16", "fp16", "float16", "fp32", "float32", NULL };
    static const enum dtype dtypes[] = { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    int w = word_of(arg, words);

    if (w < 0)
        return usage(j, "--dtype: expected bf16, fp16 or fp32");
    j->dtype = (int)dtypes[w / 2];
    return 0;
}

static int take_format(struct job *j, const char *arg)
{
    static const char *const words[] = { "safetensors", "bin", NULL };
    int w = word_of(arg, words);

    if (w < 0)
        return usage(j, "--format: expected safetensors or bin");
    j->hf.format = (enum hf_format)w;
    return 0;
}

/* "5GB" counts in thousands, as in Transformers; "5G" in 1024s, as everywhere here. */
static int take_shard(struct job *j, const char *arg)
{
    static const char units[] = "KMGT";
    const char *unit = strlen(arg) > 2 ? strchr(units, arg[strlen(arg) - 2]) : NULL;
    uint64_t n = 0;
    bool ok;

    if (unit && str_ends(arg, "B")) {
        char *digits = str_fmt("%.*s", (int)strlen(arg) - 2, arg);

        ok = parse_size(digits, &n) == 0;
        for (const char *u = units; ok && u <= unit; u++)
            ok = mul_u64(n, 1000, &n);
        free(digits);
    } else {
        ok = parse_size(arg, &n) == 0;
    }
    if (!ok || n == 0)
        return usage(j, "--max-shard-size: expected a size, as 5GB");
    j->hf.max_shard_bytes = n;
    return 0;
}

static int take_config(struct job *j, const char *arg)
{
    const char *eq = strchr(arg, '=');
    char *key = eq && eq > arg ? str_fmt("%.*s", (int)(eq - arg), arg) : NULL;
    json_t *v = key ? json_loads(eq + 1, JSON_DECODE_ANY, NULL) : NULL;
    int rc = 0;

    if (!j->config)
        j->config = json_object();
    if (!v || json_object_set_new(j->config, key, v) < 0)
        rc = usage(j, "--config: expected KEY=JSON, as n_positions=2048 or 'architectures=[\"BloomModel\"]'");
    free(key);
    return rc;
}

static int take_arch(struct job *j, const char *arg)
{
    j->arch = hf_arch_by_name(arg);
    return j->arch < 0 ? usage(j, "--arch: expected bloom or gpt2") : 0;
}

static int take_tokens(struct job *j, const char *arg)
{
    if (parse_int(arg, 1, (int64_t)1 << 40, &j->vocab_tokens) < 0)
        return usage(j, "--vocab-tokens: expected a number of rows");
    j->strip_vocab = true;
    return 0;
}

/* ---- all ---- */

static int take_option(struct job *j, int c)
{
    if (ds_option_is(c))
        return ds_option(&j->target, &j->cli, c, optarg);
    switch (c) {
    case OPT_DTYPE: return take_dtype(j, optarg);
    case OPT_FORMAT: return take_format(j, optarg);
    case OPT_SHARD: return take_shard(j, optarg);
    case OPT_LAYER: j->hf.per_layer = true; return 0;
    case OPT_PREFIX: j->hf.bare_names = true; return 0;
    case OPT_STRIP: j->strip_vocab = true; return 0;
    case OPT_TOKENS: return take_tokens(j, optarg);
    case OPT_TOKENIZER: j->tokenizer = optarg; return 0;
    case OPT_CONFIG: return take_config(j, optarg);
    case OPT_ARCH: return take_arch(j, optarg);
    case OPT_LOSSY: j->hf.lossy = true; return 0;
    case OPT_ALL: j->all_steps = true; return 0;
    case OPT_IMPORT: j->import = true; return 0;
    case OPT_REPEAT: j->repeat_last = true; return 0;
    case OPT_WEIGHTS: j->target.q.no_optimizer = true; return 0;
    case OPT_LATEST: j->set_latest = true; return 0;
    }
    if (cli_option(&j->cli, c, optarg) == 0)
        return 0;
    cli_usage(&j->cli, NULL);
    return -1;
}

static int check(struct job *j, bool for_export, bool for_import)
{
    if (!j->in || !*j->in)
        return usage(j, j->import ? "no HFDIR given" : "no IN given");
    if (!j->out || !*j->out)
        return usage(j, "no OUT given");
    if (j->import && for_export)
        return usage(j, "an option of export goes with --import");
    if (!j->import && for_import)
        return usage(j, "an option of import goes without --import");
    if (j->target.q.stages && j->target.q.method)
        return usage(j, "--stages says it all: --pp-partition-method does not go with it");
    if (j->all_steps && j->cli.n_parts > 1)
        return usage(j, "--all-steps and --part do not go together; --part 0/1 does all of it in this task");
    return 0;
}

int job_parse(struct job *j, int argc, char **argv)
{
    bool for_export = false, for_import = false;
    int c;

    while ((c = cli_getopt(&j->cli, argc, argv, CLI_SHORT CLI_SHORT_WRITE, longopts)) != -1) {
        if (c == OPT_HELP)
            return JOB_HELP;
        if (take_option(j, c) < 0)
            return -1;
        for_export |= c >= OPT_DTYPE && c <= OPT_ALL && c != OPT_TOKENS;
        for_import |= ds_option_is(c) || (c >= OPT_REPEAT && c <= OPT_LATEST);
        /* What the output depends on beside IN: a resumed run must have been asked for the same. */
        if (ds_option_is(c) || (c >= OPT_DTYPE && c <= OPT_WEIGHTS && c != OPT_ALL))
            strbuf_addf(&j->shape, "%d %s\n", c, optarg ? optarg : "");
    }
    strbuf_addf(&j->shape, "replicas %d\n", j->cli.replicas);
    if (optind < argc)
        j->in = argv[optind++];
    if (optind < argc)
        j->out = argv[optind++];
    if (optind < argc)
        return usage(j, "more than IN and OUT given");
    j->hf.override = j->config;
    j->hf.verify = j->cli.verify;
    return check(j, for_export, for_import);
}
