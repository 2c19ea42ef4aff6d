/*
 * reshape - a training checkpoint for another number of GPUs
 */
#include "libcommon/base/mem.h"
#include "tools/reshape/reshape.h"

static const char help[] =
    "Usage: reshape [options] IN OUT\n"
    "Write a Megatron-DeepSpeed checkpoint of another topology: weights, optimizer state,\n"
    "schedules, counters, arguments and random states. IN is a tag folder (sharded or\n"
    "universal), a folder with 'latest', or a tar of one; OUT is the tag folder to make.\n"
    "Degrees that are not given stay. Memory is fixed, every byte read is CRC-checked, and\n"
    "a run that is killed leaves no OUT.\n"
    "\nTopology:\n"
    "      --target-tp T --target-pp P --target-dp D\n"
    "      --pp-partition-method M  type:transformer, type:transformer|embedding, parameters,\n"
    "                         uniform, cost (of arithmetic) or even (layers)\n"
    "      --pp-balance WHEN  deal layers out as DeepSpeed does: old, new or its version\n"
    "      --stages A,B,C     transformer layers of each stage\n"
    "      --pad-vocab-size-to V  rows of the word embedding\n"
    "      --groups N         optimizer groups, 2 or 3\n"
    "      --layer-numbering ERA  new, old or msmd: numbers of layer files\n"
    "      --like DIR         numbering, groups and partition method of that checkpoint\n"
    "\nContents:\n"
    "      --weights-only     no optimizer shards are written, and those of IN not opened\n"
    "      --drop-optimizer   no optimizer shards are written\n"
    "      --zero-moments     Adam starts anew: moments and step are 0\n"
    "      --step N           iteration to claim; the optimizer's step moves along\n"
    "      --set KEY=VALUE    change a value of the mp_rank files, e.g. lr=0.0001; JSON of the\n"
    "                         present value's type\n"
    "      --set-type KEY=VALUE  the same, of any type\n"
    "\nRunning:\n"
    "      --set-latest       'latest' beside OUT names it once it is there\n"
    "      --certificate FILE  write there the digest of every tensor before and after\n"
    CLI_HELP_CONVERT
    CLI_HELP_WRITE("fail")
    CLI_HELP
    "\nExit status: 0 done, 1 IN is damaged or the work failed (no OUT), 2 wrong usage or a\n"
    "topology that the model cannot have.\n"
    "Example: reshape --target-pp 12 --target-dp 4 run/global_step95000 new/global_step95000\n";

int main(int argc, char **argv)
{
    struct job job = { .cli.replicas = REPLICAS_FAIL, .target.q.step = -1 };
    struct cli *cli = &job.cli;
    int rc;

    cli_start(cli, argv, "reshape");
    rc = job_parse(&job, argc, argv);
    if (rc == 0)
        rc = cli_done(cli, job_run(&job));
    else
        rc = rc == JOB_HELP ? cli_help(help) : EXIT_USAGE;
    strbuf_free(&job.shape);
    return rc;
}
