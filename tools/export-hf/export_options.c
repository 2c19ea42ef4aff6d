/*
 * export_options.c - the options of export-hf
 */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/mem.h"
#include "libcommon/base/parse.h"
#include "libcommon/ckpt/source_parts.h"
#include "tools/export-hf/export.h"

#define FIELD(f) OPTION_FIELD(struct export_job, f)
/*
 * Marks of options. SHAPES: the output depends on the option. EXPORTS: the option cannot be used with --import.
 * IMPORTS: it requires --import.
 */
enum { SHAPES = 1, EXPORTS = 2, IMPORTS = 4 };
enum { RANKS_MAX = 1 << 16 };

static int refuse_export_value(struct err *e, const char *what)
{
    err_usage(e, "%s", what);
    return -1;
}

/* Return the index of `arg` in a NULL-terminated list of words, or -1. */
static int find_word_index(const char *arg, const char *const *words)
{
    for (int i = 0; words[i]; i++)
        if (strcmp(arg, words[i]) == 0)
            return i;
    return -1;
}

static int parse_export_dtype(void *into, const char *arg, struct err *e)
{
    struct export_job *j = into;
    static const char *const words[] = { "bf16", "bfloat16", "fp16", "float16", "fp32", "float32", NULL };
    static const enum dtype dtypes[] = { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    int w = find_word_index(arg, words);

    if (w < 0)
        return refuse_export_value(e, "--dtype: the value must be bf16, fp16 or fp32");
    j->convert.request.dtype = dtypes[w / 2];
    return 0;
}

/*
 * Parse the maximum size of a file. As in Transformers, "5GB" is in powers of 1000. As in all other options, "5G" is in
 * powers of 1024.
 */
static int parse_shard_size(void *into, const char *arg, struct err *e)
{
    struct export_job *j = into;
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
        return refuse_export_value(e, "--max-shard-size: the value must be a size, such as 5GB");
    j->hf.q.max_shard_bytes = n;
    return 0;
}

/*
 * Read a config.json. `path` is the file or the folder that contains it. It is needed for a model that is in none of
 * the tables.
 */
static int read_config_file(struct export_job *j, const char *path, struct err *e)
{
    json_error_t why;
    char *file = hf_config_file(path);

    json_decref(j->config_file);
    j->config_file = json_load_file(file, 0, &why);
    free(file);
    j->hf.config_path = path;
    if (json_is_object(j->config_file))
        return 0;
    err_usage(e, "--config: the value must be KEY=JSON, such as n_positions=2048 or 'architectures=[\"BloomModel\"]', "
                 "or a FILE with a JSON object: %s: %s", path, j->config_file ? "another value" : why.text);
    return -1;
}

static int parse_config_key(struct export_job *j, const char *arg, struct err *e)
{
    const char *eq = strchr(arg, '=');
    char *key = eq && eq > arg ? str_fmt("%.*s", (int)(eq - arg), arg) : NULL;
    json_t *v = key ? json_loads(eq + 1, JSON_DECODE_ANY, NULL) : NULL;
    int rc = 0;

    if (!j->config)
        j->config = json_object();
    if (!v || json_object_set_new(j->config, key, v) < 0)
        rc = refuse_export_value(
            e, "--config: the value must be KEY=JSON, such as n_positions=2048 or 'architectures=[\"BloomModel\"]'");
    free(key);
    return rc;
}

static int parse_config_option(void *into, const char *arg, struct err *e)
{
    return strchr(arg, '=') ? parse_config_key(into, arg, e) : read_config_file(into, arg, e);
}

static int parse_vocab_tokens(void *into, const char *arg, struct err *e)
{
    struct export_job *j = into;

    if (parse_int(arg, 1, (int64_t)1 << 40, &j->hf.vocab_tokens) < 0)
        return refuse_export_value(e, "--vocab-tokens: the value must be a number of rows");
    j->hf.strip_vocab = true;
    return 0;
}

static const struct option_row export_rows[] = {
    { "dtype", 0, "TYPE",
      "type of the weights in OUT: bf16, fp16 or fp32. If it differs from the type of the weights in IN, the fp32 "
      "masters are converted (default: the type in IN; on import fp16 if the model is in fp16, else bf16)",
      .take = parse_export_dtype, .words = "bf16 fp16 fp32", .marks = SHAPES },
    { "format", 0, "FORM", "format of the weight files: safetensors (default) or bin",
      .words = "safetensors bin", FIELD(hf.q.format),
      .marks = EXPORTS | SHAPES },
    { "max-shard-size", 0, "SIZE", "maximum size of the tensors in one file; 5GB is 5 * 10^9 bytes, 5G is 5 * 2^30 "
                                   "bytes (default 5GB)",
      .take = parse_shard_size, .marks = EXPORTS | SHAPES },
    { "ranks", 0, "N",
      "write safetensors shards for N ranks without an index, as torch's HuggingFaceStorageWriter does; FSDP2 and "
      "torchtitan load them with HuggingFaceStorageReader", OPTION_INT,
      FIELD(convert.request.ranks), .min = 1, .max = RANKS_MAX,
      .marks = EXPORTS | SHAPES },
    { "per-layer", .help = "write one file per layer, as in the published BLOOM", FIELD(hf.q.per_layer),
      .marks = EXPORTS | SHAPES },
    { "no-prefix", .help = "omit 'transformer.' from tensor names", FIELD(hf.q.bare_names), .marks = EXPORTS | SHAPES },
    { "strip-vocab-padding", .help = "omit the padding rows of the vocabulary", FIELD(hf.strip_vocab),
      .marks = EXPORTS | SHAPES },
    { "vocab-tokens", 0, "N", "number of vocabulary rows that are tokens, if IN does not store it",
      .take = parse_vocab_tokens,
      .marks = SHAPES },
    { "tokenizer", 0, "DIR", "copy the tokenizer files from DIR, and use its special token ids", FIELD(hf.tokenizer),
      .marks = EXPORTS | SHAPES },
    { "config", 0, "KEY=JSON",
      "set a key of config.json (KEY=JSON), or copy the config.json of a model of another family (FILE, or the folder "
      "that holds it); if all mp_rank files of IN are lost, FILE replaces them",
      .take = parse_config_option, .marks = EXPORTS | SHAPES },
    { "rules", 0, "FAMILY",
      "rules that map the names of parameters: a built-in family such as llama or mixtral, or a FILE whose name has a "
      "dot or a slash (default: those of model_type in --config FILE)",
      FIELD(convert.request.rules), .marks = EXPORTS | SHAPES },
    { "experts", 0, "FORM", "how the experts of a layer are stored: split (one tensor for each expert, as "
                            "save_pretrained writes them) or fused (one tensor for all experts of a layer, as "
                            "Transformers 5 and FSDP2 hold them in memory) (default: as in IN, and split in a "
                            "Transformers folder that is made from another layout)",
      .words = "split fused", FIELD(convert.request.experts), .min = 1, .marks = EXPORTS | SHAPES },
    { "arch", 0, "ARCH", "architecture of the model, bloom or gpt2, even if the arguments in IN contradict it",
      FIELD(hf.arch), .words = "bloom gpt2",
      .marks = EXPORTS | SHAPES },
    { "lossy", .help = "with --dtype fp16: convert values above 65504 to infinity instead of failing",
      FIELD(hf.q.lossy),
      .marks = EXPORTS | SHAPES },
    { "all-steps", .help = "IN is the folder of a run: export each of its checkpoints to OUT/TAG",
      FIELD(all_steps), .marks = EXPORTS },
    { 0 },
};

static const struct option_row import_rows[] = {
    { "import", .help = "convert a Transformers folder to a new 3D-sharded "
                        "checkpoint", FIELD(import), .marks = SHAPES },
    { "repeat-last", .help = "fill additional vocabulary rows with the values of the last row instead of 0",
      FIELD(repeat_last),
      .marks = IMPORTS | SHAPES },
    { "weights-only", .help = "write no optimizer states", FIELD(target.q.no_optimizer), .marks = IMPORTS | SHAPES },
    { "drop-optimizer", .help = "same as --weights-only", .kind = OPTION_ALIAS, .def = "weights-only" },
    {0},
};

static const struct option_row operands[] = { { "IN", FIELD(in) }, { "OUT", FIELD(out) }, {0} };

static const char head[] =
    "Usage: export-hf [options] IN OUT\n"
    "       export-hf --import [options] HFDIR OUT\n"
    "Convert a checkpoint to a model folder that Transformers loads. IN is a checkpoint of\n"
    "Megatron-DeepSpeed (3D shards, BLOOM and GPT-2) or in the universal form (.pt, HDF5), of\n"
    "DeepSpeed ZeRO-1, 2 or 3, of torch.distributed (DCP: FSDP2) or of Megatron-core (torch_dist),\n"
    "a model folder of Transformers, a folder whose file 'latest' names one, or a tar archive of\n"
    "one. --import does the reverse: it makes 3D shards of a BLOOM or GPT-2 model, with moments\n"
    "of 0, for further training.\n";
static const char tail[] =
    "Exit status: 0 done, 1 IN is damaged, Transformers cannot represent it, or the export failed\n"
    "(no OUT), 2 wrong usage.\n"
    "Examples:\n"
    "  export-hf --tokenizer tok run/global_step95000 bloom-hf\n"
    "  export-hf --dtype fp32 --max-shard-size 10GB fsdp_ckpt model\n"
    "  export-hf --import --target-tp 2 --set-latest bloom-hf new/global_step0\n";

static const struct option_lead lead = {
    "import", EXPORTS,
    "Convert a BLOOM or GPT-2 model folder of Transformers to 3D shards of Megatron-DeepSpeed, with\n"
    "moments of 0, for further training. OUT is a new folder, which appears only when it is complete.\n",
    "0 done, 1 HFDIR is damaged or the import failed (no OUT), 2 wrong usage",
};

static int refuse_export_usage(struct export_job *j, const char *what)
{
    cli_usage(&j->cli, "%s", what);
    return -1;
}

/* The first given option that applies to the export only, and the first that applies to the import only. */
struct export_given {
    struct export_job *job;
    const char *exports, *imports;      /* names without "--"; NULL: none */
};

static void record_export_option(void *ctx, const struct option_given *o)
{
    const unsigned marks = o->group->marks | o->row->marks;
    struct export_given *g = ctx;

    if ((marks & EXPORTS) && !g->exports)
        g->exports = o->row->name;
    if ((marks & IMPORTS) && !g->imports)
        g->imports = o->row->name;
    /* The output depends on this option, so a resumed run must have the same one. */
    if (marks & SHAPES)
        strbuf_addf(&g->job->shape, "%s %s\n", o->row->name, o->n ? o->words[0] : "");
}

/* Fail with the name of an option that was given and applies only with --import, or only without it. */
static int refuse_export_option(struct export_job *j, const char *name)
{
    cli_usage(&j->cli, "--%s does not apply to %s", name, j->import ? "an import (--import), which writes 3D shards"
              : "a model folder; it is for --import, which writes 3D shards");
    return -1;
}

static int check_export_options(struct export_job *j, const struct export_given *g)
{
    if (!j->in || !*j->in)
        return refuse_export_usage(j, j->import ? "no HFDIR given" : "no IN given");
    if (!j->out || !*j->out)
        return refuse_export_usage(j, "no OUT given");
    if (j->import ? g->exports != NULL : g->imports != NULL)
        return refuse_export_option(j, j->import ? g->exports : g->imports);
    if (j->convert.request.ranks && (j->hf.q.per_layer || j->hf.q.format == HF_BIN))
        return refuse_export_usage(j, "--ranks cannot be combined with --per-layer or --format bin");
    if (j->hf.q.lossy && j->convert.request.dtype != DTYPE_F16)
        return refuse_export_usage(j, "--lossy applies only with --dtype fp16");
    if (j->target.q.stages && j->target.q.method)
        return refuse_export_usage(j, "--stages and --pp-partition-method exclude each other");
    if (j->all_steps && j->cli.n_parts > 1)
        return refuse_export_usage(j,
                                   "--all-steps cannot be combined with --part; --part 0/1 exports everything in this "
                                   "task");
    return 0;
}

int export_job_parse(struct export_job *j, int argc, char **argv)
{
    const struct option_group groups[] = {
        { "Export", export_rows, NULL, 0 },
        { "Import (default: 1 rank for each degree, 3 groups, new layer numbering)", import_rows, NULL, 0 },
        { NULL, cli_rows_latest, &j->cli, IMPORTS },
        { NULL, ds_rows_topology, &j->target, IMPORTS | SHAPES }, { NULL, ds_rows_set, &j->target, IMPORTS | SHAPES },
        CLI_GROUPS_CONVERT("Running", &j->cli, cli_rows_write_fail), {0},
    };
    struct export_given given = { .job = j };
    const struct option_table table = {
        "export-hf", head, tail, groups, j, .operands = operands, .ctx = &given, .given = record_export_option,
        .lead = &lead,
    };

    if (cli_parse(&j->cli, &table, argc, argv) < 0)
        return -1;
    strbuf_addf(&j->shape, "replicas %d\n", j->cli.replicas);
    j->hf.q.override = j->config;
    j->hf.q.verify = j->cli.verify;
    j->hf.config = j->config_file;
    return check_export_options(j, &given);
}
