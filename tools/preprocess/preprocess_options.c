/* preprocess_options.c - the options of preprocess, with our names and those of the reference implementation */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/files.h"
#include "libcommon/base/mem.h"
#include "tools/preprocess/preprocess.h"

#define FIELD(f) OPTION_FIELD(struct preprocess_job, f)

static int refuse_preprocess_value(struct err *e, const char *what)
{
    err_usage(e, "%s", what);
    return -1;
}

static int add_json_key(void *into, const char *key, struct err *e)
{
    struct preprocess_job *j = into;

    if (j->n_keys == MAX_KEYS)
        return refuse_preprocess_value(e, "--json-keys: more than 64 keys");
    if (!*key || strchr(key, '/'))      /* because it becomes a part of a file name */
        return refuse_preprocess_value(e, "--json-keys: a key that is empty or has a '/'");
    for (int i = 0; i < j->n_keys; i++)
        if (strcmp(j->keys[i], key) == 0)
            return refuse_preprocess_value(e, "--json-keys: a key is given twice");
    j->keys[j->n_keys++] = key;
    return 0;
}

static int add_input_path(void *into, const char *path, struct err *e)
{
    struct preprocess_job *j = into;

    (void)e;
    ARRAY_ROOM(j->inputs, j->cap_inputs, j->n_inputs + 1);
    j->inputs[j->n_inputs++] = path;
    return 0;
}

static int parse_dataset_impl(void *into, const char *value, struct err *e)
{
    struct preprocess_job *j = into;
    bool mmap = strcmp(value, "mmap") == 0;

    if (!mmap && strcmp(value, "cached") != 0 && strcmp(value, "lazy") != 0)
        return refuse_preprocess_value(e, "--dataset-impl: expected mmap, cached or lazy");
    j->impl = mmap ? MMIDX_MMAP : MMIDX_LEGACY;         /* the words cached and lazy only affect how such a dataset
                                                         * is read */
    return 0;
}

static int parse_document_kind(void *into, const char *value, struct err *e)
{
    static const char *const words[] = { "file", "line", "paragraph" };     /* in the order of enum document */
    struct preprocess_job *j = into;

    for (int i = 0; i < 3; i++)
        if (strcmp(value, words[i]) == 0) {
            j->document = (enum document)i;
            j->form = INPUT_TEXT;
            return 0;
        }
    return refuse_preprocess_value(e, "--document: expected file, line or paragraph");
}

static const struct option_row rows[] = {
    { "input", 0, "FILE...", "input files, processed in this order", .take = add_input_path, .many = true },
    { "output-prefix", 0, "P", "prefix of the output files", FIELD(prefix) },
    { "json-keys", 0, "KEY...", "keys of the strings to convert; each key gives one dataset (default: text)",
      .take = add_json_key, .many = true },
    { "input-format", 0, "F", "jsonl (default) or text", .words = "jsonl text", FIELD(form) },
    { "document", 0, "WHAT", "unit of a document in plain text: file (default), line or paragraph",
      .take = parse_document_kind, .words = "file line paragraph" },
    { "vocab", 0, "FILE", "vocab.json of GPT-2; requires --merges", FIELD(vocab) },
    { "merges", 0, "FILE", "merges.txt of GPT-2", FIELD(merges) },
    { "tokenizer", 0, "PATH",
      "a tokenizer.json of byte-level BPE, its folder, or the name of a model in the local cache of the Hugging Face "
      "hub (without --vocab, --merges and --tokenizer, each byte is a token, and 256 ends a document)",
      FIELD(tokenizer) },
    { "append-eod", .help = "append the end-of-document token to each document", FIELD(append_eod) },
    { "eod", 0, "TOKEN", "the end-of-document token (default: <|endoftext|>, else </s>, else "
                         "<|end_of_text|>)", FIELD(eod) },
    { "dataset-impl", 0, "I", "format of the output: mmap (default), cached or lazy", .take = parse_dataset_impl,
      .words = "mmap cached lazy" },
    { "skip-bad-lines", .help = "print a warning for each invalid line and skip it", FIELD(skip_bad_lines) },
    { "decode", 0, "PREFIX", "print the documents of PREFIX.bin as JSONL", FIELD(decode) },
    { "force", 'f', .help = "replace existing output", FIELD(cli.force) },
    { "dry-run", 'n', .help = "print what would be written, and write nothing", FIELD(cli.dry_run) },
    { 0 },
};

static const struct option_row part_rows[] = {          /* values are stored in the struct cli */
    { "part", 0, "I/N", "convert part I of N (0 <= I < N) of the input files; the part that ends last merges all "
                        "parts; auto: take I and N from mpirun or srun", .take = cli_parse_part },
    {0},
};

static const struct option_row reference_rows[] = {
    { "vocab-file", 0, "FILE", "same as --vocab", OPTION_ALIAS, .def = "vocab" },
    { "merge-file", 0, "FILE", "same as --merges", OPTION_ALIAS, .def = "merges" },
    { "tokenizer-name-or-path", 0, "PATH", "same as --tokenizer", OPTION_ALIAS, .def = "tokenizer" },
    { "tokenizer-type", 0, "TYPE", "GPT2BPETokenizer, PretrainedFromHF or bytes; must match the tokenizer files",
      FIELD(type) },
    { "workers", 0, "N", "same as --threads", OPTION_ALIAS, .def = "threads" },
    {0},
};

static const struct option_row ignored_rows[] = {
    { "log-interval", .arg = "N", .kind = OPTION_NOTE },
    { "make-vocab-size-divisible-by", .arg = "N", .kind = OPTION_NOTE },
    { "pad-vocab-size-to", .arg = "N", .kind = OPTION_NOTE },
    {0},
};

/* Report a word that is not the value of an option. Inputs are given by an option, too. */
static int refuse_word(void *into, const char *word, struct err *e)
{
    (void)into;
    err_usage(e, "'%s' is not the value of an option; inputs follow --input", word);
    return -1;
}

static const struct option_row operands[] = { { "FILE", .take = refuse_word }, {0} };

static const char head[] =
    "Usage: preprocess --input FILE... --output-prefix PREFIX [options]\n"
    "       preprocess --decode PREFIX [options]\n"
    "Convert text to token files for Megatron: PREFIX_KEY_document.bin and .idx. FILE is JSONL\n"
    "(one JSON object per line) or, with --input-format text, plain text; it may be compressed\n"
    "with gzip, zstd or xz. '-' reads stdin. The output appears only when it is complete.\n";
static const char tail[] =
    "Exit status: 0 done, 1 invalid input or the conversion failed (nothing is written), 2 wrong\n"
    "usage.\n"
    "Examples:\n"
    "  preprocess --input oscar.jsonl --output-prefix oscar --tokenizer bloom/ --append-eod\n"
    "  preprocess --input-format text --input book.txt --output-prefix book\n"
    "  preprocess --decode oscar_text_document | head\n";

static int refuse_preprocess_usage(struct preprocess_job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

/* Check that the tokenizer options are consistent and complete. */
static int check_tokenizer(struct preprocess_job *j)
{
    bool gpt2 = j->vocab || j->merges, hf = j->tokenizer != NULL;

    if (j->type) {
        bool wants_gpt2 = strcasecmp(j->type, "GPT2BPETokenizer") == 0;
        bool wants_hf = strcasecmp(j->type, "PretrainedFromHF") == 0, wants_bytes = strcasecmp(j->type, "bytes") == 0;

        if (!wants_gpt2 && !wants_hf && !wants_bytes)
            return refuse_preprocess_usage(j, "--tokenizer-type: expected GPT2BPETokenizer, PretrainedFromHF or bytes");
        if ((wants_gpt2 && !gpt2) || (wants_hf && !hf))
            return refuse_preprocess_usage(
                j, wants_hf ? "--tokenizer-type PretrainedFromHF needs --tokenizer-name-or-path"
                            : "--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file");
        if ((gpt2 && !wants_gpt2) || (hf && !wants_hf))
            return refuse_preprocess_usage(j, "--tokenizer-type names another tokenizer than the given files");
    }
    if (gpt2 && (!j->vocab || !j->merges))
        return refuse_preprocess_usage(j, "--vocab and --merges need each other");
    if (gpt2 && hf)
        return refuse_preprocess_usage(j, "--tokenizer excludes --vocab and --merges");
    return 0;
}

/* Check that no input is given twice, because its documents would then be in the training data twice. */
static int check_inputs(struct preprocess_job *j)
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

int preprocess_job_parse(struct preprocess_job *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Options", rows, NULL, 0 }, { NULL, part_rows, &j->cli, 0 }, { NULL, cli_rows, &j->cli, 0 },
        { "Options of Megatron's preprocess_data.py", reference_rows, NULL, 0 },
        { "Accepted for existing scripts, without effect", ignored_rows, NULL, 0 }, {0},
    };
    const struct option_table table = { "preprocess", head, tail, groups, j, .operands = operands };

    if (cli_parse(&j->cli, &table, argc, argv) < 0)
        return -1;
    if (j->decode && j->cli.n_parts > 1)
        return refuse_preprocess_usage(j, "--part and --decode exclude each other");
    if (j->decode && (j->prefix || j->n_inputs))
        return refuse_preprocess_usage(j, "--decode excludes --input and --output-prefix");
    if (!j->decode && j->n_inputs == 0)
        return refuse_preprocess_usage(j, "no --input given");
    if (!j->decode && !j->prefix)
        return refuse_preprocess_usage(j, "no --output-prefix given");
    if (j->form == INPUT_TEXT && j->n_keys)
        return refuse_preprocess_usage(j, "--json-keys needs --input-format jsonl");
    if (j->form == INPUT_TEXT && j->skip_bad_lines)
        return refuse_preprocess_usage(j, "--skip-bad-lines needs --input-format jsonl");
    if (j->n_keys == 0)
        j->keys[j->n_keys++] = "text";
    return check_inputs(j) < 0 ? -1 : check_tokenizer(j);
}

char *job_output(const struct preprocess_job *j, int key)
{
    return str_fmt("%s_%s_document", j->prefix, j->keys[key]);
}

void preprocess_job_free(struct preprocess_job *j)
{
    free(j->inputs);
}
