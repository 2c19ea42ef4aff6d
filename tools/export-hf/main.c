/*
 * export-hf - a checkpoint for Hugging Face Transformers, and back
 */
#include "libcommon/base/mem.h"
#include "tools/export-hf/export.h"

static const char help[] =
    "Usage: export-hf [options] IN OUT\n"
    "       export-hf --import [options] HFDIR OUT\n"
    "Write a Megatron-DeepSpeed checkpoint as a model folder that Transformers loads: BLOOM\n"
    "(ALiBi, embedding LayerNorm) or GPT-2 (learned positions). IN is a tag folder (sharded\n"
    "or universal), a folder with 'latest', or a tar of one. With --import, the way back: a\n"
    "sharded checkpoint to train on from, its moments zero.\n"
    "\nExport:\n"
    "      --dtype TYPE       bf16, fp16 or fp32 (default: that of the weights); another one\n"
    "                         than the weights' is made from the fp32 masters\n"
    "      --format FORM      safetensors (default) or bin\n"
    "      --max-shard-size SIZE  tensor bytes of a file: 5GB is decimal, 5G binary (default 5GB)\n"
    "      --per-layer        one file a layer, as the published BLOOM has them\n"
    "      --no-prefix        tensor names without 'transformer.'\n"
    "      --strip-vocab-padding  leave the padding rows of the vocabulary out\n"
    "      --vocab-tokens N   the rows that are tokens, where IN does not say\n"
    "      --tokenizer DIR    copy the tokenizer's files from there, and take its special ids\n"
    "      --config KEY=JSON  set a key of config.json\n"
    "      --arch ARCH        bloom or gpt2, though arguments of IN contradict\n"
    "      --lossy            fp16: numbers beyond 65504 become infinite instead of an error\n"
    "      --all-steps        IN is a run: every tag goes to OUT/TAG\n"
    "\nImport:\n"
    "      --import           read a Transformers folder, write a sharded checkpoint\n"
    "      --target-tp T --target-pp P --target-dp D  (default 1)\n"
    "      --pp-partition-method M  type:transformer or type:transformer|embedding\n"
    "      --stages A,B,C     transformer layers of each stage\n"
    "      --pad-vocab-size-to V  rows of the word embedding\n"
    "      --repeat-last      new rows repeat the last one instead of being zeros\n"
    "      --groups N         optimizer groups, 2 or 3 (default 3)\n"
    "      --layer-numbering ERA  new (default), old or msmd: numbers of layer files\n"
    "      --weights-only     no optimizer shards\n"
    "      --set KEY=VALUE    a value of the mp_rank files, e.g. lr=0.0001 (JSON of its type)\n"
    "      --set-type KEY=VALUE  the same, of any type\n"
    "      --set-latest       'latest' beside OUT names it once it is there\n"
    "\nRunning:\n"
    CLI_HELP_CONVERT
    CLI_HELP_WRITE("fail")
    CLI_HELP
    "\nExit status: 0 done, 1 IN is damaged, Transformers cannot express it, or the work failed\n"
    "(no OUT), 2 wrong usage.\n"
    "Example: export-hf --tokenizer tok run/global_step95000 bloom-hf\n";

int main(int argc, char **argv)
{
    struct job job = { .cli.replicas = REPLICAS_FAIL, .arch = -1, .dtype = -1, .target.q.step = -1,
                       .hf.max_shard_bytes = 5000000000u };
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "export-hf");
    rc = job_parse(&job, argc, argv);
    if (rc == 0)
        rc = cli_done(cli, job.import ? job_import(&job) : job.all_steps ? job_export_all(&job) : job_export(&job));
    else
        rc = rc == JOB_HELP ? cli_help(help) : EXIT_USAGE;
    strbuf_free(&job.shape);
    json_decref(job.config);
    return rc;
}
