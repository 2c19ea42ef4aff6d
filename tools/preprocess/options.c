/*
 * options.c - what preprocess can be asked, by our names and the reference's
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/preprocess/preprocess.h"

enum {
    OPT_INPUT = OPT_TOOL, OPT_PREFIX, OPT_KEYS, OPT_FORMAT, OPT_DOCUMENT, OPT_VOCAB, OPT_MERGES, OPT_TOKENIZER,
    OPT_TYPE, OPT_APPEND, OPT_EOD, OPT_IMPL, OPT_SKIP, OPT_DECODE, OPT_IGNORED_VALUE,
};

static const struct option longopts[] = {
    CLI_OPTIONS,
    {"force", no_argument, 0, 'f'},
    {"dry-run", no_argument, 0, 'n'},
    {"input", required_argument, 0, OPT_INPUT},
    {"output-prefix", required_argument, 0, OPT_PREFIX},
    {"json-keys", required_argument, 0, OPT_KEYS},
    {"input-format", required_argument, 0, OPT_FORMAT},
    {"document", required_argument, 0, OPT_DOCUMENT},
    {"vocab", required_argument, 0, OPT_VOCAB},
    {"merges", required_argument, 0, OPT_MERGES},
    {"tokenizer", required_argument, 0, OPT_TOKENIZER},
    {"append-eod", no_argument, 0, OPT_APPEND},
    {"eod", required_argument, 0, OPT_EOD},
    {"dataset-impl", required_argument, 0, OPT_IMPL},
    {"skip-bad-lines", no_argument, 0, OPT_SKIP},
    {"decode", required_argument, 0, OPT_DECODE},
    {"vocab-file", required_argument, 0, OPT_VOCAB},
    {"merge-file", required_argument, 0, OPT_MERGES},
    {"tokenizer-name-or-path", required_argument, 0, OPT_TOKENIZER},
    {"tokenizer-type", required_argument, 0, OPT_TYPE},
    {"workers", required_argument, 0, 'j'},
    {"log-interval", required_argument, 0, OPT_IGNORED_VALUE},
    {"make-vocab-size-divisible-by", required_argument, 0, OPT_IGNORED_VALUE},
    {"pad-vocab-size-to", required_argument, 0, OPT_IGNORED_VALUE},
    {0},
};

static int usage(struct job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

static int choose(struct job *j, const char *arg, const char *const *words, int n, const char *otherwise)
{
    for (int i = 0; i < n; i++)
        if (strcmp(arg, words[i]) == 0)
            return i;
    return usage(j, otherwise);
}

static int add_key(struct job *j, const char *key)
{
    if (j->n_keys == MAX_KEYS)
        return usage(j, "--json-keys: more than 64 keys");
    if (!*key || strchr(key, '/'))      /* it becomes part of a file's name */
        return usage(j, "--json-keys: a key that is empty or has a '/'");
    for (int i = 0; i < j->n_keys; i++)
        if (strcmp(j->keys[i], key) == 0)
            return usage(j, "--json-keys: a key is given twice");
    j->keys[j->n_keys++] = key;
    return 0;
}

static int add_input(struct job *j, char *path)
{
    ARRAY_ROOM(j->inputs, j->cap_inputs, j->n_inputs + 1);
    j->inputs[j->n_inputs++] = path;
    return 0;
}

/* As argparse does with nargs='+': the words up to the next option belong to this one. */
static int take_words(struct job *j, int c, int argc, char **argv)
{
    char *word = optarg;

    for (;;) {
        if ((c == OPT_KEYS ? add_key(j, word) : add_input(j, word)) < 0)
            return -1;
        if (optind == argc || (argv[optind][0] == '-' && argv[optind][1]))
            return 0;
        word = argv[optind++];
    }
}

static int take_impl(struct job *j, const char *arg)
{
    static const char *const words[] = { "mmap", "cached", "lazy" };
    int i = choose(j, arg, words, 3, "--dataset-impl: expected mmap, cached or lazy");

    j->impl = i == 0 ? MMIDX_MMAP : MMIDX_LEGACY;       /* the last two differ in how they are read */
    return i < 0 ? -1 : 0;
}

static int take_option(struct job *j, int c, int argc, char **argv)
{
    static const char *const forms[] = { "jsonl", "text" }, *const documents[] = { "file", "line", "paragraph" };
    int i;

    switch (c) {
    case OPT_INPUT: case OPT_KEYS: return take_words(j, c, argc, argv);
    case OPT_PREFIX: j->prefix = optarg; return 0;
    case OPT_VOCAB: j->vocab = optarg; return 0;
    case OPT_MERGES: j->merges = optarg; return 0;
    case OPT_TOKENIZER: j->tokenizer = optarg; return 0;
    case OPT_TYPE: j->type = optarg; return 0;
    case OPT_APPEND: j->append_eod = true; return 0;
    case OPT_EOD: j->eod = optarg; return 0;
    case OPT_IMPL: return take_impl(j, optarg);
    case OPT_SKIP: j->skip_bad_lines = true; return 0;
    case OPT_DECODE: j->decode = optarg; return 0;
    case OPT_IGNORED_VALUE: return 0;
    case OPT_FORMAT:
        i = choose(j, optarg, forms, 2, "--input-format: expected jsonl or text");
        j->form = (enum input_form)i;
        return i < 0 ? -1 : 0;
    case OPT_DOCUMENT:
        i = choose(j, optarg, documents, 3, "--document: expected file, line or paragraph");
        j->document = (enum document)i;
        j->form = INPUT_TEXT;
        return i < 0 ? -1 : 0;
    }
    if (cli_option(&j->cli, c, optarg) == 0)
        return 0;
    cli_usage(&j->cli, NULL);
    return -1;
}

/* Which tokenizer, and is what it needs there? */
static int check_tokenizer(struct job *j)
{
    bool gpt2 = j->vocab || j->merges, hf = j->tokenizer != NULL;

    if (j->type) {
        bool wants_gpt2 = strcasecmp(j->type, "GPT2BPETokenizer") == 0;
        bool wants_hf = strcasecmp(j->type, "PretrainedFromHF") == 0, wants_bytes = strcasecmp(j->type, "bytes") == 0;

        if (!wants_gpt2 && !wants_hf && !wants_bytes)
            return usage(j, "--tokenizer-type: expected GPT2BPETokenizer, PretrainedFromHF or bytes");
        if ((wants_gpt2 && !gpt2) || (wants_hf && !hf))
            return usage(j, wants_hf ? "--tokenizer-type PretrainedFromHF needs --tokenizer-name-or-path"
                                     : "--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file");
        if ((gpt2 && !wants_gpt2) || (hf && !wants_hf))
            return usage(j, "--tokenizer-type says another tokenizer than the files that are given");
    }
    if (gpt2 && (!j->vocab || !j->merges))
        return usage(j, "--vocab and --merges go together");
    if (gpt2 && hf)
        return usage(j, "--tokenizer goes without --vocab and --merges");
    return 0;
}

/* What is named twice would be learnt twice. */
static int check_inputs(struct job *j)
{
    for (int i = 0; i < j->n_inputs; i++)
        for (int k = 0; k < i; k++)
            if (path_same(j->inputs[k], j->inputs[i])) {
                cli_usage(&j->cli, "--input: '%s' and '%s' are one file: its documents would be in the data twice",
                          j->inputs[k], j->inputs[i]);
                return -1;
            }
    return 0;
}

int job_parse(struct job *j, int argc, char **argv)
{
    int c;

    while ((c = cli_getopt(&j->cli, argc, argv, CLI_SHORT "fn", longopts)) != -1) {
        if (c == OPT_HELP)
            return JOB_HELP;
        if (take_option(j, c, argc, argv) < 0)
            return -1;
    }
    if (optind < argc) {
        cli_usage(&j->cli, "'%s' belongs to no option; inputs follow --input", argv[optind]);
        return -1;
    }
    if (j->decode && (j->prefix || j->n_inputs))
        return usage(j, "--decode goes without --input and --output-prefix");
    if (!j->decode && j->n_inputs == 0)
        return usage(j, "no --input given");
    if (!j->decode && !j->prefix)
        return usage(j, "no --output-prefix given");
    if (j->form == INPUT_TEXT && j->n_keys)
        return usage(j, "--json-keys goes with --input-format jsonl");
    if (j->form == INPUT_TEXT && j->skip_bad_lines)
        return usage(j, "--skip-bad-lines goes with --input-format jsonl");
    if (j->n_keys == 0)
        j->keys[j->n_keys++] = "text";
    return check_inputs(j) < 0 ? -1 : check_tokenizer(j);
}

void job_free(struct job *j)
{
    free(j->inputs);
}
